//! A store in a database that several programs can share.

use std::fmt;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::postgres::{PgConnection, PgPool, PgRow};

use self::checkout::Checkout;
use super::rows::Prepared;
use super::{Appended, StoreError};

mod checkout;
mod options;
mod schema;
#[allow(clippy::duplicate_mod, reason = "the statements are compiled for each database")]
#[path = "sql/mod.rs"]
mod sql;

pub use options::{PostgresOptions, PostgresTls};

type Store = PostgresStore;
type Database = Postgres;
type Connection = PgConnection;
type Row = PgRow;
type Text = String;
/// The type of `octet_length`.
type Size = i32;
const BEGIN: &str = "BEGIN";
const FOR_UPDATE: &str = " FOR UPDATE";
const FOR_UPDATE_UNLESS_LOCKED: &str = " FOR UPDATE SKIP LOCKED";

/// A store in a PostgreSQL database. Any number of programs on any number of machines can share it.
///
/// Opening the store creates its tables, whose names start with `sandbox_agent_`. The search path of the connection
/// determines their schema, for example `?options=-csearch_path%3Dagents` in the URL.
pub struct PostgresStore {
    pool: PgPool,
    /// How long a call waits for the database.
    limit: Option<Duration>,
}

impl PostgresStore {
    /// Opens the store in the database at this URL: `postgres://user:password@host/database`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the database is unreachable, [`StoreError::NewerSchema`] if a newer version of
    /// this library wrote the store, [`StoreError::Invalid`] if the URL is not a database URL.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(PostgresOptions::new(url)).await
    }

    /// Opens the store with these options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn open_with(options: PostgresOptions) -> Result<Self, StoreError> {
        StoreError::check_runtime()?;
        let store = Self { pool: options.connect().await?, limit: options.response_limit() };
        let migrated = match Checkout::of(&store.pool, None).await {
            Ok(mut checkout) => {
                let (connection, watch) = checkout.parts();
                watch.step(schema::migrate(connection)).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = migrated {
            store.pool.close().await;
            return Err(error);
        }
        Ok(store)
    }

    async fn reader(&self) -> Result<Checkout, StoreError> {
        Checkout::of(&self.pool, self.limit).await
    }

    async fn writer(&self) -> Result<Checkout, StoreError> {
        self.reader().await
    }

    /// The database commits the transactions of several connections together.
    async fn append_prepared(&self, prepared: Prepared) -> Result<Appended, StoreError> {
        let mut checkout = self.writer().await?;
        let (connection, watch) = checkout.parts();
        let results =
            watch.step(sql::events::append_all(connection, std::slice::from_ref(&prepared))).await?;
        results.into_iter().next().unwrap_or(Err(StoreError::Closed))
    }

    async fn close_pools(&self) {
        self.pool.close().await;
    }
}

/// The URL may hold a password, and is left out.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("connections", &self.pool.size()).finish_non_exhaustive()
    }
}
