//! The migrations of a database.

use sqlx::migrate::Migrator;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::super::StoreError;
use super::super::rows::Failure;

/// What each version of the schema changes. Applied versions are in a table of our own, as they were in every release: the
/// table of the driver may be that of the application.
static MIGRATIONS: Migrator = sqlx::migrate!("migrations/postgres");

/// The number of the advisory lock by which programs that open a store wait for each other.
const LOCK: i64 = 0x5ab0_a6e7_5e55_1045;

/// Brings a database to the newest schema, in one transaction.
pub(super) async fn migrate(connection: &mut PgConnection) -> Result<(), Failure> {
    let known = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default();
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *transaction).await?;
    let create = "CREATE TABLE IF NOT EXISTS sandbox_agent_schema \
                  (version BIGINT NOT NULL PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())";
    transaction.execute(create).await?;
    let select = sqlx::query_as("SELECT MAX(version) FROM sandbox_agent_schema");
    let found: (Option<i64>,) = select.fetch_one(&mut *transaction).await?;
    let found = found.0.unwrap_or_default();
    if found > known {
        return Err(StoreError::NewerSchema { found, known }.into());
    }
    if found < known {
        // A migration may take as long as it needs: nothing works without it.
        transaction.execute("SET LOCAL statement_timeout = 0").await?;
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        transaction.execute(&*migration.sql).await?;
        let insert = sqlx::query("INSERT INTO sandbox_agent_schema (version) VALUES ($1)");
        insert.bind(migration.version).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}
