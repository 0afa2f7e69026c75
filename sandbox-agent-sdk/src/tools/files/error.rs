//! Why a file could not be read or written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use crate::convert::text::printable;
use crate::error::RpcError;

/// Why a file could not be read or written. The agent gets it as an error response.
///
/// `Display` is safe to print; the path as the agent sent it is in the fields.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path is not absolute, or invalid.
    #[error("{} is no absolute path", shown(.0))]
    NotAbsolute(PathBuf),
    /// The path is longer than allowed.
    #[error("the path is longer than {limit} bytes")]
    PathTooLong {
        /// How many bytes are allowed.
        limit: usize,
    },
    /// The path leads out of the directories that the agent may use: by its name, by `..` or by a link.
    #[error("{} is outside of the directories that may be used", shown(.0))]
    Outside(PathBuf),
    /// The file does not exist.
    #[error("Resource not found: {}", shown(.0))]
    NotFound(PathBuf),
    /// It is a directory, a device, a pipe or a socket.
    #[error("{} is no regular file", shown(.0))]
    NotAFile(PathBuf),
    /// Its content, or the requested part of it, is not valid UTF-8.
    #[error("{} is not valid UTF-8 at offset {offset} of what was read", shown(path))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte in what was read.
        offset: usize,
    },
    /// It is, or would become, larger than allowed.
    #[error("{} is larger than the {limit} bytes that are allowed", shown(path))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// How many bytes are allowed.
        limit: u64,
    },
    /// The requested lines end behind the part of the file that one request scans.
    #[error("the requested lines of {} do not end within its first {limit} bytes", shown(path))]
    ScanLimit {
        /// The file.
        path: PathBuf,
        /// How many bytes are scanned.
        limit: u64,
    },
    /// Files may only be read here, or this file is read-only.
    #[error("{} may not be written", shown(.0))]
    ReadOnly(PathBuf),
    /// A file of this name, or in a directory of this name, can make other programs run code.
    #[error("{} is protected: it can make other programs run code", shown(.0))]
    Protected(PathBuf),
    /// It belongs to another user or group, and a new file in its place would not.
    #[error("{} belongs to another user or group", shown(.0))]
    OtherOwner(PathBuf),
    /// The system refused.
    #[error("{} cannot be used", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// A reason of your own, which the agent gets as it is.
    #[error("{}", printable(.0))]
    Refused(String),
}

impl FileError {
    /// Converts an error of the system.
    #[cfg_attr(not(feature = "files"), allow(dead_code))]
    pub(crate) fn from_io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound(path),
            // A path that leads out is refused without a system call.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => Self::Outside(path),
            io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => Self::NotAFile(path),
            io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => Self::NotAbsolute(path),
            _ => Self::Io { path, source: Arc::new(error) },
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::NotAbsolute(_) => "not_absolute",
            Self::PathTooLong { .. } => "path_too_long",
            Self::Outside(_) => "outside",
            Self::NotFound(_) => "not_found",
            Self::NotAFile(_) => "not_a_file",
            Self::NotText { .. } => "not_text",
            Self::TooLarge { .. } => "too_large",
            Self::ScanLimit { .. } => "scan_limit",
            Self::ReadOnly(_) => "read_only",
            Self::Protected(_) => "protected",
            Self::OtherOwner(_) => "other_owner",
            Self::Io { .. } => "io",
            Self::Refused(_) => "refused",
        }
    }

    /// The error response for the agent, with a word for the reason in its data.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let code = match self {
            Self::NotFound(_) => RpcError::NOT_FOUND,
            Self::Io { .. } => RpcError::INTERNAL_ERROR,
            _ => RpcError::INVALID_PARAMS,
        };
        let message = match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            Self::Refused(reason) => reason.clone(),
            _ => self.to_string(),
        };
        RpcError::new(code, message).with_data(json!({"reason": self.reason()}))
    }
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::text::is_unsafe;

    #[test]
    fn an_error_is_safe_to_print_whatever_the_agent_calls_a_file() {
        let path = || PathBuf::from("/a\u{1b}]0;owned\u{7}");
        let source = Arc::new(io::Error::other("broken"));
        let errors = [
            FileError::NotAbsolute(path()),
            FileError::PathTooLong { limit: 1 },
            FileError::Outside(path()),
            FileError::NotFound(path()),
            FileError::NotAFile(path()),
            FileError::NotText { path: path(), offset: 1 },
            FileError::TooLarge { path: path(), limit: 1 },
            FileError::ScanLimit { path: path(), limit: 1 },
            FileError::ReadOnly(path()),
            FileError::Protected(path()),
            FileError::OtherOwner(path()),
            FileError::Io { path: path(), source },
            FileError::Refused("no\u{1b}[2J".to_owned()),
        ];
        for error in errors {
            assert!(!error.to_string().contains(is_unsafe), "{error:?}");
        }
        // The agent gets the reason as it is.
        assert_eq!(FileError::Refused("\u{1b}".to_owned()).to_rpc().message, "\u{1b}");
    }
}
