//! The tables, and how old files get them.

use sqlx::{Executor as _, SqliteConnection, SqlitePool};

use super::super::StoreError;

/// What each version of the schema adds to the one before.
pub(super) const MIGRATIONS: [&str; 3] = [
    "CREATE TABLE sessions (
        id TEXT NOT NULL PRIMARY KEY,
        agent TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        last_active INTEGER NOT NULL,
        last_index INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        document TEXT NOT NULL
    );
    CREATE INDEX sessions_by_status ON sessions (status, created_at, id);
    CREATE INDEX sessions_by_agent ON sessions (agent, status, created_at, id);
    CREATE INDEX sessions_by_activity ON sessions (status, last_active, id);
    CREATE TABLE events (
        session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        id TEXT NOT NULL,
        recorded_at INTEGER NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        PRIMARY KEY (session_id, position)
    ) WITHOUT ROWID;",
    // Once there were five states: sessions no longer complete, and only archiving puts them away.
    "UPDATE sessions SET status = CASE status WHEN 'completed' THEN 'active' ELSE 'archived' END
        WHERE status IN ('completed', 'cancelled');",
    // An event whose writing was tried again could be stored twice. Indexes are remembered elsewhere and cannot change,
    // so what repeats stays where it is, under an id of its own.
    "UPDATE events SET id = 'repeat-' || hex(randomblob(8)) || '-' || position WHERE (session_id, position) IN (
        SELECT session_id, position FROM (
            SELECT session_id, position, ROW_NUMBER() OVER (PARTITION BY session_id, id ORDER BY position) AS time
            FROM events
        ) WHERE time > 1
    );
    CREATE UNIQUE INDEX events_by_id ON events (session_id, id);",
];

/// Brings a file to the newest schema, once, whoever else is at it.
pub(super) async fn migrate(writer: &SqlitePool) -> Result<(), Failure> {
    let known = MIGRATIONS.len() as i64;
    // Most files are up to date, and looking needs no lock.
    if version(&mut *writer.acquire().await?).await? == known {
        return Ok(());
    }
    let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await?;
    let found = version(&mut transaction).await?;
    if found > known {
        return Err(Failure::Refused(StoreError::NewerSchema { found, known }));
    }
    let done = usize::try_from(found).unwrap_or_default();
    for migration in MIGRATIONS.iter().skip(done) {
        transaction.execute(*migration).await?;
    }
    transaction.execute(format!("PRAGMA user_version = {known}").as_str()).await?;
    transaction.commit().await?;
    Ok(())
}

async fn version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let (version,) = sqlx::query_as("PRAGMA user_version").fetch_one(connection).await?;
    Ok(version)
}

/// Why a file could not be brought to the newest schema.
#[derive(Debug)]
pub(super) enum Failure {
    Refused(StoreError),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}
