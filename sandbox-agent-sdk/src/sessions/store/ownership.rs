//! Owners of sessions, and their read positions.

use super::limits::{check_key, check_moment};
use super::{SessionRecord, StoreError, StreamPosition};
use crate::session::Timestamp;

/// The fencing token of an owner: the epoch at which it acquired the session.
///
/// The creation time distinguishes a session from a deleted one with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The epoch at which the session was acquired.
    pub epoch: u64,
    /// When the session was created.
    pub created_at: Timestamp,
}

impl Fence {
    /// Checks that this is the current fence of a session. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the fence belongs to a deleted session, [`StoreError::OwnershipLost`] if it belongs
    /// to another epoch.
    pub fn check(self, id: &str, current: Self) -> Result<(), StoreError> {
        if self.created_at != current.created_at {
            return Err(StoreError::not_found(id));
        }
        if self.epoch != current.epoch {
            return Err(StoreError::OwnershipLost { id: id.to_owned(), epoch: current.epoch });
        }
        Ok(())
    }

    /// Ends the ownership of the record that this fence belongs to. `scanned_to` is the owner's read position on the
    /// record's endpoint. For implementors of stores.
    ///
    /// # Errors
    /// The errors of [`check`](Self::check).
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

/// The read position of an owner in the stream of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedTo {
    /// The name of the owner.
    pub owner: String,
    /// The endpoint of the server.
    pub endpoint: String,
    /// All events up to this position are stored. This applies to all sessions that the owner has caught up with. The
    /// transaction that stores this value may also store the last of these events.
    pub position: StreamPosition,
}

impl ScannedTo {
    /// Checks the value against the limits of all stores. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if it is invalid.
    pub fn check(&self) -> Result<(), StoreError> {
        check_key("an owner", &self.owner)?;
        check_key("an endpoint", &self.endpoint)?;
        self.position.check()
    }
}

/// A request to acquire a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The name of the process that becomes the owner.
    pub owner: String,
    /// The expected epoch. If it is set and differs from the session's epoch, acquiring fails.
    pub expected_epoch: Option<u64>,
}

impl Acquire {
    /// Creates a request that makes this process the owner.
    #[must_use]
    pub fn by(owner: impl Into<String>) -> Self {
        Self { owner: owner.into(), expected_epoch: None }
    }

    /// Acquires the session only if it has this epoch.
    #[must_use]
    pub fn if_epoch(mut self, epoch: u64) -> Self {
        self.expected_epoch = Some(epoch);
        self
    }

    /// Makes the new owner the owner of the record. `scanned_to` is the previous owner's read position on the
    /// record's endpoint. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::OwnershipLost`] if the epoch is not the expected one, [`StoreError::Invalid`] if a value exceeds
    /// a limit.
    pub fn apply(
        &self,
        record: &mut SessionRecord,
        scanned_to: Option<StreamPosition>,
    ) -> Result<(), StoreError> {
        check_key("an owner", &self.owner)?;
        if self.expected_epoch.is_some_and(|expected| expected != record.epoch) {
            return Err(StoreError::OwnershipLost { id: record.id.clone(), epoch: record.epoch });
        }
        record.end_ownership(scanned_to);
        record.owner = Some(self.owner.clone());
        Ok(())
    }
}

/// Selects the active sessions to suspend.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// Sessions that this process owns.
    Own(String),
    /// All sessions in the store, including those of other processes.
    All,
}

impl Suspend {
    /// Checks the values against the limits of all stores. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid.
    pub fn check(&self, now: Timestamp) -> Result<(), StoreError> {
        check_moment("the time of a shutdown", now)?;
        match self {
            Self::Own(owner) => check_key("an owner", owner),
            Self::All => Ok(()),
        }
    }
}
