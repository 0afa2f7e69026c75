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
/// Each request runs on its own task. Its future is dropped when the response is no longer wanted.
pub trait TextFiles: Send + Sync + 'static {
    /// Reads a file, or some lines of it: [`LineRange::of`].
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>>;

    /// Replaces the content of a file.
    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>>;

    /// The access that is advertised to the agent. By default reading and writing.
    fn access(&self) -> FileAccess {
        FileAccess::ReadWrite
    }
}

/// The access of an agent to files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileAccess {
    /// None.
    Nothing,
    /// Read them.
    Read,
    /// Write them.
    Write,
    /// Read and write them.
    #[default]
    ReadWrite,
}

impl FileAccess {
    /// Whether files can be read.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether files can be written.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }

    /// The access to advertise to an agent of this name, of the access that is allowed.
    ///
    /// `gemini` reads a file before it writes it, and fails to create one if that read fails. It reads files by itself if
    /// only writing is advertised.
    #[must_use]
    pub fn advertised_to(self, agent: &str) -> Self {
        match self {
            Self::ReadWrite if agent.to_ascii_lowercase().contains("gemini") => Self::Write,
            access => access,
        }
    }
}

/// A request to read a file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadText {
    /// The session of the request.
    pub session_id: Option<String>,
    /// The absolute path of the file.
    pub path: PathBuf,
    /// Which lines of it.
    pub range: LineRange,
    /// The raw request; `null` if it did not come from an agent.
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

/// A request to write a file.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct WriteText {
    /// The session of the request.
    pub session_id: Option<String>,
    /// The absolute path of the file.
    pub path: PathBuf,
    /// The new content.
    pub content: String,
    /// The raw request without the content; `null` if it did not come from an agent.
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
