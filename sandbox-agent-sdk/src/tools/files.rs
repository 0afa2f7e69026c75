//! Text files that an agent can access.

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

/// Text files that an agent can read and write.
///
/// These can be the files of a directory, the buffers of an editor, or anything else that has paths and text. Each
/// request runs in its own task. Its future is dropped when the agent no longer waits for the response.
pub trait TextFiles: Send + Sync + 'static {
    /// Reads a file, or some of its lines. See [`LineRange::of`].
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>>;

    /// Replaces the content of a file.
    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>>;

    /// Returns the access that is advertised to the agent. By default [`FileAccess::ReadWrite`].
    fn access(&self) -> FileAccess {
        FileAccess::ReadWrite
    }
}

/// How an agent may access files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileAccess {
    /// No access.
    Nothing,
    /// Reading only.
    Read,
    /// Writing only.
    Write,
    /// Reading and writing.
    #[default]
    ReadWrite,
}

impl FileAccess {
    /// Returns whether files can be read.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Returns whether files can be written.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }

    /// Returns the access to advertise to the agent with this name. `self` is the allowed access.
    ///
    /// For `gemini`, reading is not advertised together with writing. If both are advertised, gemini reads a file
    /// through the client before it writes the file, and therefore fails to create files. If only writing is
    /// advertised, gemini reads files by itself.
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
    /// The lines to read.
    pub range: LineRange,
    /// The raw request; `null` if no agent sent it.
    pub raw: Value,
}

impl ReadText {
    /// Creates a request to read a whole file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { session_id: None, path: path.into(), range: LineRange::default(), raw: Value::Null }
    }

    /// Restricts the request to these lines.
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
    /// The raw request without the content; `null` if no agent sent it.
    pub raw: Value,
}

impl WriteText {
    /// Creates a request to write a file.
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
