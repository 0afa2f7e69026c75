//! Opens a file and classifies failures.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::time::Instant;

use super::super::StoreError;
use super::super::rows::{self, Failure, sqlite_code};
use super::schema::migrate;
use crate::client::deadline::deadline_after;

/// The pause between attempts to open a file that another program has locked. SQLite reports no end of a lock.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// What a write waits for before it returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SqliteSync {
    /// Waits for the disk. Completed writes survive a power failure.
    #[default]
    Full,
    /// Waits for the operating system. Completed writes survive unless the machine loses power.
    Normal,
}

/// Options for opening a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a store is opened with them"]
#[non_exhaustive]
pub struct SqliteOptions {
    /// What a write waits for. Default [`SqliteSync::Full`].
    pub sync: SqliteSync,
    /// How many reads run at the same time. Default 4.
    pub readers: u32,
    /// How long to wait for other programs that are writing. Default 30 s.
    pub busy_timeout: Duration,
    /// Whether existing files keep their permissions for other users. Default false.
    pub keep_permissions: bool,
}

impl SqliteOptions {}

setters! { SqliteOptions:
    /// Keeps the permissions of existing files, for a store that several users share. New files are always private.
    keep_permissions() => keep_permissions = true;
    /// Sets what a write waits for.
    sync(sync: SqliteSync) => sync = sync;
    /// Sets how many reads run at the same time; at least one.
    readers(readers: u32) => readers = readers.max(1);
    /// Sets how long to wait for other programs that are writing.
    busy_timeout(timeout: Duration) => busy_timeout = timeout;
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            sync: SqliteSync::Full,
            readers: 4,
            busy_timeout: Duration::from_secs(30),
            keep_permissions: false,
        }
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
        // Connections are few and cheap, so that they stay open.
        let pool =
            SqlitePoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
        pool.acquire_timeout(options.busy_timeout).after_release(|connection, _| {
            Box::pin(async move {
                // A call that is dropped just after its transaction has begun would leave it open and block every
                // writer. A rollback that was queued has run once the connection responds.
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            })
        })
    };
    private::create(path);
    let deadline = deadline_after(options.busy_timeout);
    let writer = loop {
        let error = match connect_writer(pool(1), connect.clone()).await {
            Ok(writer) => break writer,
            Err(Failure::Refused(error)) => return Err(error),
            Err(Failure::Database(error)) => error,
        };
        if !is_busy(&error) || Instant::now() >= deadline {
            return Err(failure(path, error));
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    };
    // Not earlier: only now is it certain that these are the files of a store.
    if !options.keep_permissions {
        private::restrict(path);
    }
    let readers = pool(options.readers.max(1)).connect_lazy_with(connect.read_only(true));
    Ok((writer, readers))
}

/// Opens the connection that writes, and brings the file to the newest schema.
async fn connect_writer(
    pool: SqlitePoolOptions,
    connect: SqliteConnectOptions,
) -> Result<SqlitePool, Failure> {
    let writer = pool.connect_with(connect).await?;
    if let Err(error) = migrate(&writer).await {
        writer.close().await;
        return Err(error);
    }
    Ok(writer)
}

/// Whether another program has locked the file. SQLite waits for most locks by itself, but not for those of the first
/// program that opens a file and the last one that closes it.
fn is_busy(error: &sqlx::Error) -> bool {
    const BUSY: u32 = 5;
    error.as_database_error().and_then(sqlite_code).is_some_and(|code| code & 0xff == BUSY)
}

/// The permissions of files with the contents of sessions.
#[cfg(unix)]
mod private {
    use std::fs::{DirBuilder, OpenOptions, Permissions, metadata, set_permissions};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
    use std::path::{Path, PathBuf};

    use crate::convert::text::printable;

    /// Permissions of other users.
    const OTHERS: u32 = 0o077;

    /// Creates a missing file and its missing parent directories, for this user alone. SQLite copies the mode of the
    /// file to the files beside it.
    pub(super) fn create(path: &Path) {
        // SQLite has no file for these names.
        if path.as_os_str().is_empty() || path == Path::new(":memory:") {
            return;
        }
        // Opening reports what is wrong with the path.
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        }
        // A link is followed, as SQLite follows it.
        let _ = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    }

    /// Removes the permissions of other users from the files of a store.
    pub(super) fn restrict(path: &Path) {
        // SQLite puts its files beside the file that a link leads to.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut file = path.as_os_str().to_owned();
            file.push(suffix);
            let file = PathBuf::from(file);
            let Ok(found) = metadata(&file) else { continue };
            let mode = found.permissions().mode();
            if mode & OTHERS != 0
                && let Err(error) = set_permissions(&file, Permissions::from_mode(mode & 0o7777 & !OTHERS))
            {
                let file = file.to_string_lossy();
                tracing::warn!(file = %printable(&file), %error, "other users may be able to read a session store");
            }
        }
    }
}

#[cfg(not(unix))]
mod private {
    use std::path::Path;

    pub(super) fn create(_: &Path) {}

    pub(super) fn restrict(_: &Path) {}
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

/// Whether this program may not write to the file, or create files beside it, as SQLite has to.
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
            // It was created only to test whether that is possible.
            let _ = std::fs::remove_file(&probe);
            false
        }
        Err(error) => refused(&error),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::private;

    #[test]
    fn every_file_of_a_store_is_made_private() {
        let directory = tempfile::tempdir().unwrap();
        let files = ["store", "store-wal", "store-shm", "store-journal"];
        let at = |name: &str| directory.path().join(name);
        for name in files {
            fs::write(at(name), "content").unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o644)).unwrap();
        }
        private::restrict(&at("store"));
        for name in files {
            assert_eq!(fs::metadata(at(name)).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
    }
}
