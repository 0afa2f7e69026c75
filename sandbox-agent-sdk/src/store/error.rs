//! What can go wrong with a store.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;

use super::Unrecorded;

/// Why a store could not do what it was asked for.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such session.
    #[error("the store has no session `{id}`")]
    NotFound {
        /// The session that was asked for.
        id: String,
    },
    /// There is a session of this id already.
    #[error("the store has a session `{id}` already")]
    Exists {
        /// The id.
        id: String,
    },
    /// Somebody else changed the session since it was read. Read it again.
    #[error("session `{id}` was changed by somebody else")]
    Conflict {
        /// The session.
        id: String,
    },
    /// Somebody else has taken the session up since, and writes what happens in it. Nothing was changed.
    #[error("session `{id}` was taken up by somebody else")]
    TakenOver {
        /// The session.
        id: String,
        /// How often it has been taken up now.
        epoch: u64,
    },
    /// What was given cannot be kept. Nothing was changed.
    #[error("it cannot be kept: {0}")]
    Invalid(String),
    /// A cursor that no store has handed out.
    #[error("{cursor:?} is not a cursor of a store")]
    BadCursor {
        /// The cursor.
        cursor: String,
    },
    /// The store was written by a newer version of this library, which may keep things that this one would damage.
    #[error("the store has schema {found}, and this version knows {known} at most")]
    NewerSchema {
        /// The schema that was found.
        found: i64,
        /// The newest schema that this version knows.
        known: i64,
    },
    /// The store cannot be written to.
    #[error("the store {} cannot be written to", .path.display())]
    ReadOnly {
        /// Where it is.
        path: PathBuf,
    },
    /// The store cannot be opened or reached, or is too busy. It may be, later.
    #[error("the store cannot be reached")]
    Unavailable(#[source] Arc<dyn StdError + Send + Sync>),
    /// What is kept cannot be read.
    #[error("what the store keeps of session `{id}` cannot be read")]
    Unreadable {
        /// The session.
        id: String,
        /// What is wrong with it.
        #[source]
        source: Arc<dyn StdError + Send + Sync>,
    },
    /// Events were not stored, although the store was tried again for a while.
    #[error("events of {} were not stored", sessions(.losses))]
    NotStored {
        /// Of which sessions, how many, and why.
        losses: Vec<Unrecorded>,
        /// Why those of the first one were not.
        #[source]
        source: Box<StoreError>,
    },
    /// A transcript that cannot be read.
    #[error("line {line} of the transcript cannot be read: {reason}")]
    Transcript {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The store, or what writes to it, was closed.
    #[error("the store is closed")]
    Closed,
    /// The database failed.
    #[error("the store failed")]
    Database(#[source] Arc<dyn StdError + Send + Sync>),
}

impl StoreError {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn database(error: impl StdError + Send + Sync + 'static) -> Self {
        Self::Database(Arc::new(error))
    }

    /// The store did not do something in time.
    pub(crate) fn late(what: &'static str) -> Self {
        Self::Unavailable(Arc::new(std::io::Error::new(std::io::ErrorKind::TimedOut, what)))
    }

    /// What flushing gives when these were lost.
    pub(super) fn not_stored(losses: Vec<Unrecorded>) -> Result<(), Self> {
        let source = losses.iter().find_map(|loss| loss.error.clone());
        match source {
            Some(source) => Err(Self::NotStored { losses, source: Box::new(source) }),
            None => Ok(()),
        }
    }

    /// Whether the same may succeed a little later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Conflict { .. })
    }
}

fn sessions(losses: &[Unrecorded]) -> String {
    match losses {
        [one] => format!("session `{}`", one.session_id),
        several => format!("{} sessions", several.len()),
    }
}
