//! The migrations of a file.

use sqlx::migrate::Migrator;
use sqlx::{Executor as _, SqliteConnection, SqlitePool};

use super::super::StoreError;
use super::super::rows::Failure;

/// What each version of the schema changes. The version of a file is its `user_version`, as it was in every release.
static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Brings a file to the newest schema, in one transaction.
pub(super) async fn migrate(pool: &SqlitePool) -> Result<(), Failure> {
    let known = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default();
    // Most files are up to date, and reading the version needs no lock.
    if version(&mut *pool.acquire().await?).await? == known {
        return Ok(());
    }
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let found = version(&mut transaction).await?;
    if found > known {
        return Err(StoreError::NewerSchema { found, known }.into());
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        transaction.execute(&*migration.sql).await?;
    }
    transaction.execute(format!("PRAGMA user_version = {known}").as_str()).await?;
    transaction.commit().await?;
    Ok(())
}

async fn version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let (version,) = sqlx::query_as("PRAGMA user_version").fetch_one(connection).await?;
    Ok(version)
}
