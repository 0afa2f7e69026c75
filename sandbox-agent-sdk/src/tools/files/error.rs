//! Errors of reading and writing files.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use crate::convert::text::printable;
use crate::error::RpcError;

/// The error of reading or writing a file. The agent receives it as an error response.
///
/// `Display` is safe to print. The fields contain the path as the agent sent it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The path is relative or invalid.
    #[error("{} is not an absolute path", shown(.0))]
    NotAbsolute(PathBuf),
    /// The path is too long.
    #[error("the path is longer than {limit} bytes")]
    PathTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// The path is outside the allowed directories, or leaves them by `..` or a link.
    #[error("{} is outside the allowed directories", shown(.0))]
    Outside(PathBuf),
    /// The file does not exist.
    #[error("Resource not found: {}", shown(.0))]
    NotFound(PathBuf),
    /// The path is a directory, a device, a pipe or a socket.
    #[error("{} is not a regular file", shown(.0))]
    NotAFile(PathBuf),
    /// The file, or the requested part of it, is not valid UTF-8.
    #[error("{} is not valid UTF-8 (invalid byte at offset {offset} of the part that was read)", shown(path))]
    NotText {
        /// The file.
        path: PathBuf,
        /// The offset of the first invalid byte in the part that was read.
        offset: usize,
    },
    /// The file is larger than the limit, or would become larger.
    #[error("{} exceeds the limit of {limit} bytes", shown(path))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The requested lines are not within the part of the file that one request scans.
    #[error("the requested lines of {} do not end within its first {limit} bytes", shown(path))]
    ScanLimit {
        /// The file.
        path: PathBuf,
        /// How many bytes one request scans.
        limit: u64,
    },
    /// Writing is off, or the file is read-only.
    #[error("{} is read-only", shown(.0))]
    ReadOnly(PathBuf),
    /// The file, or a directory in its path, is protected. Writing it can make other programs run code.
    #[error("{} is protected: it can make other programs run code", shown(.0))]
    Protected(PathBuf),
    /// The file belongs to another user or group. Replacing it would change its owner.
    #[error("{} belongs to another user or group", shown(.0))]
    OtherOwner(PathBuf),
    /// The operating system reported an error.
    #[error("failed to access {}", shown(path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// A custom reason, which the agent receives unchanged.
    #[error("{}", printable(.0))]
    Refused(String),
}

impl FileError {
    /// Converts an error of the operating system.
    #[cfg_attr(not(feature = "files"), allow(dead_code))]
    pub(crate) fn from_io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound(path),
            // The library rejects a path that leaves the directory without a system call.
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

    /// Converts the error to an error response, with a machine-readable reason in its data.
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
    fn an_error_is_safe_to_print_for_any_file_name() {
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
        // The agent receives the reason unchanged.
        assert_eq!(FileError::Refused("\u{1b}".to_owned()).to_rpc().message, "\u{1b}");
    }
}
