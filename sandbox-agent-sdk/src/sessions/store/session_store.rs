//! The trait that every store implements.

use std::fmt;

use futures::future::BoxFuture;

use super::{
    Acquire, Append, Appended, EventPage, EventQuery, Fence, NewEvent, OpenEvents, RecordPage, RecordQuery,
    ScannedTo, SessionRecord, StoreError, StreamPosition, Suspend,
};
use crate::session::Timestamp;

/// The future that methods of a store return.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Stores sessions and their events.
///
/// Several tasks use a store at the same time, and with some stores several programs. After a call has returned `Ok`,
/// its data is stored. If a call fails or its future is dropped, its data is stored completely or not at all.
///
/// See the [module](super) for the concepts. Run the conformance suite to check an implementation.
pub trait SessionStore: fmt::Debug + Send + Sync + 'static {
    /// Stores a new session with its history, completely or not at all. Returns the stored record.
    ///
    /// The events get the indexes 1, 2, 3 and so on. They are history: none of them counts as [open](Self::open).
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the id is already in use, [`StoreError::Invalid`] if a value is invalid.
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord>;

    /// Returns the record of a session, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if the record is damaged.
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>>;

    /// Stores events, a patch, the session's position and the owner's `scanned_to` in one transaction.
    ///
    /// The events get consecutive indexes. An event whose key is already stored is not stored again and keeps its
    /// index. Events of the kinds `turn_ended` and `request_closed` close the turn or request that they name; a
    /// turn is closed with its requests.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the session does not exist, or if the fence belongs to a deleted session with the
    /// same id. [`StoreError::OwnershipLost`] if the fence has another epoch. [`StoreError::NotAllowed`] and
    /// [`StoreError::Status`] if the session's status does not allow the change. [`StoreError::Invalid`] if a value is
    /// invalid. After an error nothing is stored.
    fn append(&self, append: Append) -> StoreFuture<'_, Appended>;

    /// Makes a process the owner. Increments the epoch, resets `caught_up`, and moves the position to the previous
    /// owner's `scanned_to` if that owner had caught up. Returns the stored record. Start reading the server's
    /// stream at the record's position.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the session does not exist, [`StoreError::OwnershipLost`] if its epoch is not the
    /// expected one.
    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, SessionRecord>;

    /// Ends the ownership and increments the epoch. Returns the stored record.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the session does not exist, [`StoreError::OwnershipLost`] if the fence is not
    /// current.
    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord>;

    /// Returns the open turns and agent requests of a session. Empty if the session does not exist.
    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents>;

    /// Returns a page of the events of a session. Empty if the session does not exist.
    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage>;

    /// Returns a page of records, newest first. Records created in the same millisecond are ordered by descending id.
    ///
    /// With [`inactive_before`](RecordQuery::inactive_before) they are ordered by their last activity, then by id, both
    /// ascending.
    ///
    /// # Errors
    /// [`StoreError::BadCursor`] if the cursor is invalid.
    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage>;

    /// Returns the number of records that match the query. Ignores its cursor and limit.
    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64>;

    /// Suspends active sessions in one step and returns their number. Sets their last activity to `now`, unless it is
    /// later. Damaged records are suspended too.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid.
    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64>;

    /// Deletes a session with its events. Returns whether it existed.
    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool>;

    /// Deletes a session if it has not been written since this record was read. Returns whether it was deleted.
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool>;

    /// Returns the current incarnation of an endpoint. It is 1 until it is raised.
    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64>;

    /// Raises the incarnation of an endpoint by one if it is still `from`. Returns the current incarnation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid.
    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64>;

    /// Returns the read position of an owner on an endpoint.
    fn scanned_to<'a>(&'a self, owner: &'a str, endpoint: &'a str)
    -> StoreFuture<'a, Option<StreamPosition>>;

    /// Stores the read position of an owner on an endpoint, without an append. It only moves forward.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid.
    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()>;

    /// Closes the store. Every later call fails with [`StoreError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}
