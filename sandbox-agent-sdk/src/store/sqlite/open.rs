//! Opening a file, and what its failures mean.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::super::StoreError;
use super::super::rows::{self, sqlite_code};
use super::schema::{self, migrate};

/// What a write waits for before it is acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SqliteSync {
    /// For the disk: nothing acknowledged is lost even if the machine loses power.
    #[default]
    Full,
    /// For the operating system: nothing acknowledged is lost unless the machine loses power.
    Normal,
}

/// How a file is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a store is opened with them"]
#[non_exhaustive]
pub struct SqliteOptions {
    /// What a write waits for. For the disk by default.
    pub sync: SqliteSync,
    /// How many reads may go on at the same time. 4 by default.
    pub readers: u32,
    /// How long to wait for other programs that write. 30 s by default.
    pub busy_timeout: Duration,
}

impl SqliteOptions {
    /// Sets what a write waits for.
    pub fn sync(mut self, sync: SqliteSync) -> Self {
        self.sync = sync;
        self
    }

    /// Sets how many reads may go on at the same time; at least one.
    pub fn readers(mut self, readers: u32) -> Self {
        self.readers = readers.max(1);
        self
    }

    /// Sets how long to wait for other programs that write.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { sync: SqliteSync::Full, readers: 4, busy_timeout: Duration::from_secs(30) }
    }
}

/// Opens a file: the one connection that writes, and those that read.
pub(super) async fn open(
    path: &Path,
    options: &SqliteOptions,
) -> Result<(SqlitePool, SqlitePool), StoreError> {
    let synchronous = match options.sync {
        SqliteSync::Full => SqliteSynchronous::Full,
        SqliteSync::Normal => SqliteSynchronous::Normal,
    };
    let connect = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous)
        .busy_timeout(options.busy_timeout);
    let pool = |connections: u32| {
        // A connection is never idle for so long that closing it would be worth it.
        let pool =
            SqlitePoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
        pool.acquire_timeout(options.busy_timeout).after_release(|connection, _| {
            Box::pin(async move {
                // A call that is dropped just after its transaction has begun would leave it open, and nobody could
                // write any more. What ends by itself has ended once the connection answers.
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            })
        })
    };
    let writer = pool(1).connect_with(connect.clone()).await.map_err(|error| failure(path, error))?;
    if let Err(error) = migrate(&writer).await {
        writer.close().await;
        return Err(match error {
            schema::Failure::Refused(error) => error,
            schema::Failure::Database(error) => failure(path, error),
        });
    }
    let readers = pool(options.readers.max(1)).connect_lazy_with(connect.read_only(true));
    Ok((writer, readers))
}

/// What a failure means for this file.
pub(super) fn failure(path: &Path, error: sqlx::Error) -> StoreError {
    const READONLY: u32 = 8;
    const IO: u32 = 10;
    const CANTOPEN: u32 = 14;
    const NOT_A_DATABASE: u32 = 26;
    let code = error.as_database_error().and_then(sqlite_code).map(|code| code & 0xff);
    match code {
        Some(READONLY) => StoreError::ReadOnly { path: path.to_owned() },
        Some(CANTOPEN | IO) if is_write_protected(path) => StoreError::ReadOnly { path: path.to_owned() },
        Some(CANTOPEN | NOT_A_DATABASE) => StoreError::Unavailable(Arc::new(error)),
        _ => rows::failure(error),
    }
}

/// Whether this program may not write to the file, or make files beside it, as SQLite has to.
fn is_write_protected(path: &Path) -> bool {
    let refused = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    };
    if path.exists()
        && std::fs::OpenOptions::new().append(true).open(path).is_err_and(|error| refused(&error))
    {
        return true;
    }
    let mut probe = path.as_os_str().to_owned();
    probe.push("-probe");
    match std::fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => {
            // It was made only to see whether it can be.
            let _ = std::fs::remove_file(&probe);
            false
        }
        Err(error) => refused(&error),
    }
}
