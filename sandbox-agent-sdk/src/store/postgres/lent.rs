//! A connection that a call has for its statements.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, Postgres};
use tokio::runtime::Handle;

use super::super::StoreError;
use super::super::rows::failure;

/// A connection that a call has for its statements.
///
/// One that was asked for something and has not answered is not used again: nobody knows whether it ever will answer,
/// and as long as it does not, it would take the place of one that does.
#[derive(Debug)]
pub(super) struct Lent {
    connection: PoolConnection<Postgres>,
    watch: Watch,
}

/// Waits for what a connection is asked for, though not for ever.
#[derive(Debug)]
pub(super) struct Watch {
    limit: Option<Duration>,
    /// Whether the connection owes an answer.
    owes: AtomicBool,
}

impl Lent {
    /// A connection of this pool, whose every answer is waited for so long.
    pub(super) async fn of(pool: &PgPool, limit: Option<Duration>) -> Result<Self, StoreError> {
        let connection = pool.acquire().await.map_err(failure)?;
        Ok(Self { connection, watch: Watch { limit, owes: AtomicBool::new(false) } })
    }

    /// What statements are given to, and what waits for them.
    pub(super) fn parts(&mut self) -> (&mut PgConnection, &Watch) {
        (&mut self.connection, &self.watch)
    }
}

impl Watch {
    /// Waits for what the connection was asked for.
    pub(super) async fn step<T>(
        &self,
        asking: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        self.owes.store(true, Ordering::Relaxed);
        let answer = match self.limit {
            Some(limit) => match tokio::time::timeout(limit, asking).await {
                Ok(answer) => answer,
                Err(_) => return Err(StoreError::late("the database does not answer")),
            },
            None => asking.await,
        };
        self.owes.store(false, Ordering::Relaxed);
        answer.map_err(failure)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.watch.owes.load(Ordering::Relaxed) {
            self.connection.close_on_drop();
            return;
        }
        // The pool asks a connection whether it is there before it takes it back, and would wait for that without end.
        if let (Some(limit), Ok(runtime)) = (self.watch.limit, Handle::try_current()) {
            let returning = self.connection.return_to_pool();
            runtime.spawn(tokio::time::timeout(limit, returning));
        }
    }
}
