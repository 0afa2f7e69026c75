//! A connection that a call has taken from the pool.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

use super::super::StoreError;
use super::super::rows::{Failure, failure};

/// A connection that a call has taken from the pool.
///
/// One that has not responded is closed, so that it does not block the pool.
#[derive(Debug)]
pub(super) struct Checkout {
    connection: PoolConnection<Postgres>,
    watch: Watch,
}

/// Limits how long a call waits for its connection.
#[derive(Debug)]
pub(super) struct Watch {
    limit: Option<Duration>,
    /// Whether a response is outstanding.
    is_waiting: AtomicBool,
}

impl Checkout {
    /// A connection of this pool, with a limit for the statements of a call.
    pub(super) async fn of(pool: &PgPool, limit: Option<Duration>) -> Result<Self, StoreError> {
        StoreError::check_runtime()?;
        let connection = pool.acquire().await.map_err(failure)?;
        Ok(Self { connection, watch: Watch { limit, is_waiting: AtomicBool::new(false) } })
    }

    /// The connection, and what waits for it.
    pub(super) fn parts(&mut self) -> (&mut PgConnection, &Watch) {
        (&mut self.connection, &self.watch)
    }
}

impl Watch {
    /// Waits for statements on the connection.
    pub(super) async fn step<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        self.is_waiting.store(true, Ordering::Relaxed);
        let result = match self.limit {
            Some(limit) => match tokio::time::timeout(limit, work).await {
                Ok(result) => result,
                Err(_) => return Err(StoreError::timed_out("the database does not respond")),
            },
            None => work.await,
        };
        self.is_waiting.store(false, Ordering::Relaxed);
        result.map_err(|error| match error {
            Failure::Refused(error) => error,
            Failure::Database(error) => failure(error),
        })
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if self.watch.is_waiting.load(Ordering::Relaxed) {
            self.connection.close_on_drop();
            return;
        }
        // The pool pings a connection before it takes it back, and would wait for that without a limit.
        if let (Some(limit), Ok(runtime)) = (self.watch.limit, Handle::try_current()) {
            let returning = self.connection.return_to_pool();
            runtime.spawn(tokio::time::timeout(limit, returning));
        }
    }
}
