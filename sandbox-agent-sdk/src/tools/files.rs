//! Text files for the agent.

#[cfg(feature = "files")]
mod confined;
mod error;
mod lines;

use std::path::PathBuf;

use futures::future::BoxFuture;
use serde_json::Value;

#[cfg(feature = "files")]
pub use self::confined::ConfinedFiles;
pub use self::error::FileError;
pub use self::lines::LineRange;

/// Text files that an agent can read and write: those of a directory, the buffers of an editor, or anything else that
/// has paths and text.
///
/// Each request runs on a task of its own. When nobody wants the answer any more, its future is dropped.
pub trait TextFiles: Send + Sync + 'static {
    /// Reads a file, or some lines of it. [`LineRange::of`] cuts them out of a text.
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>>;

    /// Writes a file: it has this text and nothing else afterwards.
    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>>;

    /// What the agent is told that it can do. By default both.
    fn access(&self) -> FileAccess {
        FileAccess::ReadWrite
    }
}

/// What an agent can do with files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileAccess {
    /// Read them.
    Read,
    /// Read and write them.
    #[default]
    ReadWrite,
}

/// The agent wants to read a file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadText {
    /// The session that asks.
    pub session_id: Option<String>,
    /// The file. Agents are to give absolute paths.
    pub path: PathBuf,
    /// Which lines of it.
    pub range: LineRange,
    /// The request as it came; `null` if it did not come from an agent.
    pub raw: Value,
}

impl ReadText {
    /// Reads a whole file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { session_id: None, path: path.into(), range: LineRange::default(), raw: Value::Null }
    }

    /// Reads these lines of it.
    #[must_use]
    pub fn range(mut self, range: LineRange) -> Self {
        self.range = range;
        self
    }
}

/// The agent wants to write a file.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct WriteText {
    /// The session that asks.
    pub session_id: Option<String>,
    /// The file. Agents are to give absolute paths.
    pub path: PathBuf,
    /// The text that it is to have.
    pub content: String,
    /// The rest of the request as it came; `null` if it did not come from an agent.
    pub raw: Value,
}

impl WriteText {
    /// Writes a file.
    pub fn new(path: impl Into<PathBuf>, content: impl Into<String>) -> Self {
        Self { session_id: None, path: path.into(), content: content.into(), raw: Value::Null }
    }
}

impl std::fmt::Debug for WriteText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteText")
            .field("session_id", &self.session_id)
            .field("path", &self.path)
            .field("bytes", &self.content.len())
            .finish_non_exhaustive()
    }
}
