//! The tables, and how old databases get them.

use sqlx::{Connection as _, Executor as _};

use super::super::StoreError;
use super::super::rows::failure;
use super::lent::Lent;

/// What each version of the schema adds to the one before.
const MIGRATIONS: [&str; 3] = [
    // Ids are ordered by their bytes, as everywhere else, and not by the rules of a language.
    r#"CREATE TABLE sandbox_agent_sessions (
        id TEXT COLLATE "C" NOT NULL PRIMARY KEY,
        agent TEXT COLLATE "C" NOT NULL,
        status TEXT COLLATE "C" NOT NULL,
        created_at BIGINT NOT NULL,
        last_active BIGINT NOT NULL,
        last_index BIGINT NOT NULL,
        revision BIGINT NOT NULL,
        document TEXT NOT NULL
    );
    CREATE INDEX sandbox_agent_sessions_by_status ON sandbox_agent_sessions (status, created_at, id);
    CREATE INDEX sandbox_agent_sessions_by_agent ON sandbox_agent_sessions (agent, status, created_at, id);
    CREATE INDEX sandbox_agent_sessions_by_activity ON sandbox_agent_sessions (status, last_active, id);
    CREATE TABLE sandbox_agent_events (
        session_id TEXT COLLATE "C" NOT NULL REFERENCES sandbox_agent_sessions (id) ON DELETE CASCADE,
        position BIGINT NOT NULL,
        id TEXT NOT NULL,
        recorded_at BIGINT NOT NULL,
        kind TEXT NOT NULL,
        payload TEXT NOT NULL,
        PRIMARY KEY (session_id, position)
    );"#,
    // Once there were five states: sessions no longer complete, and only archiving puts them away.
    "UPDATE sandbox_agent_sessions SET status = CASE status WHEN 'completed' THEN 'active' ELSE 'archived' END
        WHERE status IN ('completed', 'cancelled');",
    // An event whose writing was tried again could be stored twice. Indexes are remembered elsewhere and cannot change,
    // so what repeats stays where it is, under an id of its own.
    r#"UPDATE sandbox_agent_events SET id = 'repeat-' || md5(random()::text) || '-' || position
        WHERE (session_id, position) IN (
            SELECT session_id, position FROM (
                SELECT session_id, position, ROW_NUMBER() OVER (PARTITION BY session_id, id ORDER BY position) AS time
                FROM sandbox_agent_events
            ) AS numbered WHERE time > 1
        );
    ALTER TABLE sandbox_agent_events ALTER COLUMN id TYPE TEXT COLLATE "C";
    CREATE UNIQUE INDEX sandbox_agent_events_by_id ON sandbox_agent_events (session_id, id);"#,
];

/// A number of our own under which all programs that open a store wait for each other.
const LOCK: i64 = 0x5ab0_a6e7_5e55_1045;

/// Brings a database to the newest schema, once, whoever else is at it.
pub(super) async fn migrate(lent: &mut Lent) -> Result<(), StoreError> {
    let known = MIGRATIONS.len() as i64;
    let (connection, watch) = lent.parts();
    let mut transaction = watch.step(connection.begin()).await?;
    let lock = sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK);
    watch.step(lock.execute(&mut *transaction)).await?;
    let create = "CREATE TABLE IF NOT EXISTS sandbox_agent_schema \
                  (version BIGINT NOT NULL PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())";
    watch.step(transaction.execute(create)).await?;
    let select = sqlx::query_as("SELECT MAX(version) FROM sandbox_agent_schema");
    let found: (Option<i64>,) = watch.step(select.fetch_one(&mut *transaction)).await?;
    let found = found.0.unwrap_or_default();
    if found > known {
        return Err(StoreError::NewerSchema { found, known });
    }
    if found < known {
        // However long that takes: it has to be done before anything else can be.
        watch.step(transaction.execute("SET LOCAL statement_timeout = 0")).await?;
    }
    let done = usize::try_from(found).unwrap_or_default();
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        transaction.execute(*migration).await.map_err(failure)?;
        sqlx::query("INSERT INTO sandbox_agent_schema (version) VALUES ($1)")
            .bind(number as i64 + 1)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
    }
    watch.step(transaction.commit()).await
}
