//! Why a store failed.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;

use crate::convert::text::printable;
use crate::sessions::status::{SessionStatus, TransitionError, UserAction};

/// Why a store failed. `Display` is safe to print; the fields hold the original text.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such session.
    #[error("the store has no session `{}`", printable(.id))]
    NotFound {
        /// The session.
        id: String,
    },
    /// A session of this id exists.
    #[error("the store already has a session `{}`", printable(.id))]
    Exists {
        /// The session.
        id: String,
    },
    /// The fence is not of the current epoch: another process acquired the session, or it was released. Nothing was
    /// written.
    #[error("session `{}` is owned by another process (epoch {epoch})", printable(.id))]
    OwnershipLost {
        /// The session.
        id: String,
        /// The current epoch.
        epoch: u64,
    },
    /// The session's status does not allow the action. Nothing was written.
    #[error("session `{}` is {status}, which does not allow this", printable(.id))]
    NotAllowed {
        /// The session.
        id: String,
        /// The action.
        action: UserAction,
        /// The status.
        status: SessionStatus,
    },
    /// The session cannot change to the status of the patch. Nothing was written.
    #[error(transparent)]
    Status(#[from] TransitionError),
    /// A value is not one that every store can hold. Nothing was written.
    #[error("invalid value: {}", printable(.0))]
    Invalid(String),
    /// The text is not a cursor of a store.
    #[error("{cursor:?} is not a cursor of a store")]
    BadCursor {
        /// The text.
        cursor: String,
    },
    /// A newer version of this library wrote the store.
    #[error("the store has schema {found}; this version supports up to {known}")]
    NewerSchema {
        /// The schema of the store.
        found: i64,
        /// The newest schema that this version supports.
        known: i64,
    },
    /// The store is read-only.
    #[error("the store {} is read-only", .path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The store cannot be reached, or is too busy. A later attempt may succeed.
    #[error("the store is unavailable")]
    Unavailable(#[source] Arc<dyn StdError + Send + Sync>),
    /// The stored record is damaged.
    #[error("the stored record of session `{}` is damaged", printable(.id))]
    Unreadable {
        /// The session.
        id: String,
        /// What is wrong with it.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// A line of a transcript cannot be read.
    #[error("line {line} of the transcript is invalid: {}", printable(.reason))]
    Transcript {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
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

    /// The store did not respond in time.
    pub(crate) fn timed_out(what: &'static str) -> Self {
        Self::Unavailable(Arc::new(std::io::Error::new(std::io::ErrorKind::TimedOut, what)))
    }

    pub(super) fn not_found(id: &str) -> Self {
        Self::NotFound { id: id.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::StoreError;

    #[test]
    fn an_error_is_safe_to_print_whatever_a_session_or_a_transcript_says() {
        let text = || "\u{1b}]0;owned\u{7}\u{9b}2J".to_owned();
        let errors = [
            StoreError::NotFound { id: text() },
            StoreError::Exists { id: text() },
            StoreError::OwnershipLost { id: text(), epoch: 1 },
            StoreError::Invalid(text()),
            StoreError::BadCursor { cursor: text() },
            StoreError::Unreadable { id: text(), source: Arc::new(io::Error::other("damaged")) },
            StoreError::Transcript { line: 1, reason: text() },
        ];
        for error in errors {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control) && shown.contains("owned"), "{shown:?}");
        }
    }
}
