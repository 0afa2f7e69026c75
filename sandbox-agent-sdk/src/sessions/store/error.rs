//! Why a store failed.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Error;
use crate::client::network::check_runtime;
use crate::convert::text::printable;
use crate::sessions::status::{SessionStatus, TransitionError, UserAction};

/// The error of a store. `Display` is safe to print; the fields hold the original text.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The session does not exist.
    #[error("the store has no session `{}`", printable(.id))]
    NotFound {
        /// The id of the session.
        id: String,
    },
    /// A session with this id already exists.
    #[error("the store already has a session `{}`", printable(.id))]
    Exists {
        /// The id of the session.
        id: String,
    },
    /// The fence is no longer current: another process acquired the session, or it was released. Nothing was written.
    #[error("session `{}` is owned by another process (epoch {epoch})", printable(.id))]
    OwnershipLost {
        /// The id of the session.
        id: String,
        /// The current epoch.
        epoch: u64,
    },
    /// The session's status does not allow the action. Nothing was written.
    #[error("session `{}` is {status}; the operation is not allowed", printable(.id))]
    NotAllowed {
        /// The id of the session.
        id: String,
        /// The action that is not allowed.
        action: UserAction,
        /// The status of the session.
        status: SessionStatus,
    },
    /// The session cannot change to the status of the patch. Nothing was written.
    #[error(transparent)]
    Status(#[from] TransitionError),
    /// A value is invalid: empty, too long, nested too deep, or with a NUL character. Nothing was written.
    ///
    /// All stores reject the same values.
    #[error("invalid value: {}", printable(.0))]
    Invalid(String),
    /// The text is not a valid cursor.
    #[error("{cursor:?} is not a valid cursor")]
    BadCursor {
        /// The invalid text.
        cursor: String,
    },
    /// The store was written by a newer version of this library.
    #[error("the store has schema {found}; this version supports up to {known}")]
    NewerSchema {
        /// The schema version of the store.
        found: i64,
        /// The newest schema version that this version supports.
        known: i64,
    },
    /// The store is read-only.
    #[error("the store {} is read-only", printable(&.path.to_string_lossy()))]
    ReadOnly {
        /// The path of the file.
        path: PathBuf,
    },
    /// The store is unreachable or too busy. A later attempt may succeed.
    #[error("the store is unavailable")]
    Unavailable(#[source] Arc<dyn StdError + Send + Sync>),
    /// The stored record is damaged.
    #[error("the stored record of session `{}` is damaged", printable(.id))]
    Unreadable {
        /// The id of the session.
        id: String,
        /// The parse error.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// A line of a transcript is invalid.
    #[error("line {line} of the transcript is invalid: {}", printable(.reason))]
    Transcript {
        /// The line number, starting at 1.
        line: usize,
        /// Why the line is invalid.
        reason: String,
    },
    /// The call needs a tokio runtime. Nothing was written.
    #[error("a call needs a tokio runtime")]
    NoRuntime,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// The database failed.
    #[error("the database failed")]
    Database(#[source] Arc<dyn StdError + Send + Sync>),
}

impl StoreError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the call may have been executed, or may succeed when it is repeated.
    pub(crate) fn may_be_done(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Database(_))
    }

    /// Checks that there is a tokio runtime.
    pub(crate) fn check_runtime() -> Result<(), Self> {
        check_runtime().map_err(|_| Self::NoRuntime)
    }

    /// The store did not respond in time.
    pub(crate) fn timed_out(what: &'static str) -> Self {
        Self::Unavailable(Arc::new(std::io::Error::new(std::io::ErrorKind::TimedOut, what)))
    }

    pub(super) fn not_found(id: &str) -> Self {
        Self::NotFound { id: id.to_owned() }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Status(error) => Self::Status(error),
            StoreError::NoRuntime => Self::config(error.to_string()),
            StoreError::NotAllowed { action, status, .. } => Self::NotAllowed { action, status },
            error => Self::Store(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::StoreError;
    use crate::sessions::store::StoredError;

    #[test]
    fn an_error_is_safe_to_print_whatever_a_session_or_a_transcript_says() {
        let text = || "\u{1b}]0;owned\u{7}\u{9b}2J".to_owned();
        let errors = [
            StoreError::NotFound { id: text() },
            StoreError::Exists { id: text() },
            StoreError::OwnershipLost { id: text(), epoch: 1 },
            StoreError::Invalid(text()),
            StoreError::BadCursor { cursor: text() },
            StoreError::ReadOnly { path: text().into() },
            StoreError::Unreadable { id: text(), source: Arc::new(io::Error::other("damaged")) },
            StoreError::Transcript { line: 1, reason: text() },
        ];
        let stored = StoredError { message: text(), ..StoredError::default() };
        let shown = errors.iter().map(ToString::to_string).chain([stored.to_string()]);
        for shown in shown {
            assert!(!shown.contains(char::is_control) && shown.contains("owned"), "{shown:?}");
        }
    }
}
