//! Who owns a session, and how far an owner has read.

use super::limits::{check_key, check_moment};
use super::{SessionRecord, StoreError, StreamPosition};
use crate::session::Timestamp;

/// The proof of being the owner of a session: its epoch when it was acquired.
///
/// A session that was deleted and created again under the same id has another creation time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The epoch.
    pub epoch: u64,
    /// When the session was created.
    pub created_at: Timestamp,
}

impl Fence {
    /// Returns whether this is the current fence of a session. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it is of a deleted session, [`StoreError::OwnershipLost`] if it is of another epoch.
    pub fn check(self, id: &str, current: Self) -> Result<(), StoreError> {
        if self.created_at != current.created_at {
            return Err(StoreError::not_found(id));
        }
        if self.epoch != current.epoch {
            return Err(StoreError::OwnershipLost { id: id.to_owned(), epoch: current.epoch });
        }
        Ok(())
    }

    /// Ends the ownership of a record that this is the fence of. `scanned_to` is how far its owner had read the record's
    /// endpoint. For implementors of stores.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn release(
        self,
        record: &mut SessionRecord,
        scanned_to: Option<StreamPosition>,
    ) -> Result<(), StoreError> {
        self.check(&record.id, record.fence())?;
        record.end_ownership(scanned_to);
        Ok(())
    }
}

/// How far an owner has read the stream of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedTo {
    /// The process.
    pub owner: String,
    /// The endpoint.
    pub endpoint: String,
    /// Every event up to there of every session that the owner has caught up with is stored, at the latest by the
    /// transaction that stores this.
    pub position: StreamPosition,
}

impl ScannedTo {
    /// Returns whether every store can hold it. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check(&self) -> Result<(), StoreError> {
        check_key("an owner", &self.owner)?;
        check_key("an endpoint", &self.endpoint)?;
        self.position.check()
    }
}

/// How a session is acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The process that becomes the owner.
    pub owner: String,
    /// Only if this is the session's epoch, as for an attachment.
    pub expected_epoch: Option<u64>,
}

impl Acquire {
    /// Makes this process the owner.
    #[must_use]
    pub fn by(owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), expected_epoch: None }
    }

    /// Only if this is the session's epoch.
    #[must_use]
    pub fn if_epoch(mut self, epoch: u64) -> Self {
        self.expected_epoch = Some(epoch);
        self
    }

    /// Gives the record to the new owner. `scanned_to` is how far the owner before had read the record's endpoint. For
    /// implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::OwnershipLost`] if the epoch is not the expected one, [`StoreError::Invalid`].
    pub fn apply(
        &self,
        record: &mut SessionRecord,
        scanned_to: Option<StreamPosition>,
    ) -> Result<Option<String>, StoreError> {
        check_key("an owner", &self.owner)?;
        if self.expected_epoch.is_some_and(|expected| expected != record.epoch) {
            return Err(StoreError::OwnershipLost { id: record.id.clone(), epoch: record.epoch });
        }
        let previous = record.owner.clone();
        record.end_ownership(scanned_to);
        record.owner = Some(self.owner.clone());
        Ok(previous)
    }
}

/// What an acquire did.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Acquired {
    /// The record. Its position is where to read the server's stream from.
    pub record: SessionRecord,
    /// The owner before, if there was one.
    pub previous_owner: Option<String>,
}

impl Acquired {
    /// What an acquire did. For implementors of stores.
    #[must_use]
    pub fn new(record: SessionRecord, previous_owner: Option<String>) -> Self {
        Self { record, previous_owner }
    }

    /// The fence of the new owner.
    #[must_use]
    pub fn fence(&self) -> Fence {
        self.record.fence()
    }
}

/// Which active sessions are suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// Those that this process owns.
    Own(String),
    /// All of the store, also those of other programs.
    All,
}

impl Suspend {
    /// Returns whether every store can hold it. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check(&self, now: Timestamp) -> Result<(), StoreError> {
        check_moment("the time of a shutdown", now)?;
        match self {
            Self::Own(owner) => check_key("an owner", owner),
            Self::All => Ok(()),
        }
    }
}
