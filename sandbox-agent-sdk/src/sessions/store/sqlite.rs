//! A store in one file.

use std::fmt;
use std::path::{Path, PathBuf};

use sqlx::Sqlite;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqliteRow};

use self::writer::Writer;
use super::rows::{Failure, Prepared};
use super::{Appended, StoreError};

mod open;
mod schema;
#[allow(clippy::duplicate_mod, reason = "the statements are compiled for each database")]
#[path = "sql/mod.rs"]
mod sql;
#[cfg(test)]
mod tests;
mod writer;

pub use open::{SqliteOptions, SqliteSync};

type Store = SqliteStore;
type Database = Sqlite;
type Connection = SqliteConnection;
type Row = SqliteRow;
/// In a damaged file a text may not be UTF-8, so documents and payloads are read as bytes.
type Text = Vec<u8>;
/// The type of `octet_length`.
type Size = i64;
const BEGIN: &str = "BEGIN IMMEDIATE";
/// A transaction that writes has locked the whole file.
const FOR_UPDATE: &str = "";
const FOR_UPDATE_UNLESS_LOCKED: &str = "";

/// A store in one SQLite file. Several tasks and several programs on one machine can use it at the same time.
///
/// A write that has returned `Ok` is in the file and survives if the program is killed. With the default
/// [`SqliteSync::Full`] it also survives a power failure. Appends of many tasks are committed together.
///
/// Only the user of this program can read the file and the files that SQLite creates beside it. They have mode 0600.
/// Opening the store reduces wider permissions of existing files, unless [`SqliteOptions::keep_permissions`] is set.
/// Missing parent directories are created with mode 0700.
pub struct SqliteStore {
    path: PathBuf,
    /// One connection: SQLite has one writer at a time, and this queue is fairer than that of SQLite.
    writing: SqlitePool,
    reading: SqlitePool,
    appends: Writer,
}

impl SqliteStore {
    /// Opens the store in this file and creates the file if it does not exist. Requires a Tokio runtime; the store
    /// works only as long as this runtime runs.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] if the file is not writable, [`StoreError::NewerSchema`] if a newer version of this
    /// library wrote it, [`StoreError::Unavailable`] if it cannot be opened.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Opens the store in this file with these options.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        StoreError::check_runtime()?;
        let path = path.as_ref().to_owned();
        let (writing, reading) = open::open(&path, &options).await?;
        let appends = Writer::start(writing.clone(), path.clone());
        Ok(Self { path, writing, reading, appends })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn reader(&self) -> Result<Checkout<'_>, StoreError> {
        Checkout::of(&self.reading, &self.path).await
    }

    async fn writer(&self) -> Result<Checkout<'_>, StoreError> {
        Checkout::of(&self.writing, &self.path).await
    }

    async fn append_prepared(&self, prepared: Prepared) -> Result<Appended, StoreError> {
        self.appends.append(prepared).await
    }

    async fn close_pools(&self) {
        self.reading.close().await;
        self.writing.close().await;
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A connection that a call has taken from the pool.
struct Checkout<'a> {
    connection: PoolConnection<Sqlite>,
    watch: Watch<'a>,
}

/// What failures of a connection mean.
struct Watch<'a> {
    path: &'a Path,
}

impl<'a> Checkout<'a> {
    async fn of(pool: &SqlitePool, path: &'a Path) -> Result<Self, StoreError> {
        StoreError::check_runtime()?;
        let connection = pool.acquire().await.map_err(|error| open::failure(path, error))?;
        Ok(Self { connection, watch: Watch { path } })
    }

    fn parts(&mut self) -> (&mut SqliteConnection, &Watch<'a>) {
        (&mut self.connection, &self.watch)
    }
}

impl Watch<'_> {
    async fn step<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, StoreError> {
        work.await.map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::Database(error) => open::failure(self.path, error),
        })
    }
}
