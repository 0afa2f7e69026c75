//! Group commit: one task writes what many tasks append.

use std::path::PathBuf;

use sqlx::sqlite::SqlitePool;
use tokio::sync::{mpsc, oneshot};

use super::super::rows::Prepared;
use super::super::{Appended, StoreError};
use super::Checkout;
use super::sql::events::append_all;

/// How many appends wait at most; more callers wait for room.
const QUEUE: usize = 1024;
/// How many appends one transaction executes at most.
const GROUP: usize = 256;

/// The handle of the task that appends. The task ends when the handle is dropped.
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

/// An append and its waiter.
struct Job {
    prepared: Prepared,
    done: oneshot::Sender<Result<Appended, StoreError>>,
}

impl Writer {
    /// Starts the task on the current runtime.
    pub(super) fn start(pool: SqlitePool, path: PathBuf) -> Self {
        let (jobs, waiting) = mpsc::channel(QUEUE);
        tokio::spawn(run(waiting, pool, path));
        Self { jobs }
    }

    /// Appends, and waits until it is committed. An append whose caller was dropped may still be executed.
    pub(super) async fn append(&self, prepared: Prepared) -> Result<Appended, StoreError> {
        let (done, result) = oneshot::channel();
        self.jobs.send(Job { prepared, done }).await.map_err(|_| StoreError::Closed)?;
        result.await.map_err(|_| StoreError::Closed)?
    }
}

/// Repeatedly executes all waiting appends in one transaction.
async fn run(mut waiting: mpsc::Receiver<Job>, pool: SqlitePool, path: PathBuf) {
    let mut jobs = Vec::new();
    while waiting.recv_many(&mut jobs, GROUP).await > 0 {
        let (group, done): (Vec<_>, Vec<_>) = jobs.drain(..).map(|job| (job.prepared, job.done)).unzip();
        let results = match write(&pool, &path, &group).await {
            Ok(results) => results,
            // One that the database cannot hold must not fail the others.
            Err(StoreError::Database(_)) if group.len() > 1 => {
                let mut results = Vec::with_capacity(group.len());
                for prepared in group.chunks(1) {
                    results.push(match write(&pool, &path, prepared).await {
                        Ok(result) => result.into_iter().next().unwrap_or(Err(StoreError::Closed)),
                        Err(error) => Err(error),
                    });
                }
                results
            }
            Err(error) => vec![Err(error); group.len()],
        };
        for (done, result) in done.into_iter().zip(results) {
            // The caller may be gone.
            let _ = done.send(result);
        }
    }
}

async fn write(
    pool: &SqlitePool,
    path: &std::path::Path,
    group: &[Prepared],
) -> Result<Vec<Result<Appended, StoreError>>, StoreError> {
    let mut checkout = Checkout::of(pool, path).await?;
    let (connection, watch) = checkout.parts();
    watch.step(append_all(connection, group)).await
}
