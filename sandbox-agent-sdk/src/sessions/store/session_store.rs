//! The trait that every store implements.

use std::fmt;

use futures::future::BoxFuture;

use super::{
    Acquire, Acquired, Append, Appended, EventPage, EventQuery, Fence, InactiveQuery, NewEvent, OpenEvents,
    RecordPage, RecordQuery, ScannedTo, SessionRecord, StoreError, StreamPosition, Suspend,
};
use crate::session::Timestamp;

/// What a store returns.
pub type StoreFuture<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Stores sessions and what happened in them.
///
/// Several tasks, and with some stores several programs, use one store at the same time. An acknowledged call is stored.
/// A call that was not acknowledged, or whose future was dropped, is stored or not, but never by half.
///
/// See the [module](super) for the concepts. The conformance suite checks an implementation.
pub trait SessionStore: fmt::Debug + Send + Sync + 'static {
    /// Stores a new session with its history: all of it or nothing. The events get the indexes 1, 2, 3 and so on, and
    /// none of them is open. Returns the record as it is stored.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Invalid`].
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord>;

    /// The record of a session, if there is one of this id.
    ///
    /// # Errors
    /// [`StoreError::Unreadable`] if it is damaged.
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>>;

    /// Stores events, a patch, the session's position and the owner's `scanned_to` in one transaction.
    ///
    /// The events get indexes that follow one another. An event whose key is stored is not stored again and keeps its
    /// index. Events of the kinds `turn_ended` and `request_closed` close what they name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], also if the fence is of a deleted session of the same id;
    /// [`StoreError::OwnershipLost`] if the fence is of another epoch; [`StoreError::NotAllowed`] and
    /// [`StoreError::Status`] by the session's status; [`StoreError::Invalid`]. Nothing is stored then.
    fn append(&self, append: Append) -> StoreFuture<'_, Appended>;

    /// Makes a process the owner: increments the epoch, resets `caught_up`, and moves the position to where the owner
    /// before had scanned the endpoint, if that one had caught up.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::OwnershipLost`] if the epoch is not the expected one.
    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, Acquired>;

    /// Ends the ownership, and increments the epoch. Returns the record as it is stored.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::OwnershipLost`].
    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord>;

    /// What a session has open. Empty if there is no such session.
    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents>;

    /// A page of the events of a session. Empty if there is no such session.
    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage>;

    /// A page of records, the newest first; of those created in the same millisecond, the greatest id first.
    ///
    /// # Errors
    /// [`StoreError::BadCursor`].
    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage>;

    /// How many records match the query, whatever its cursor and its limit.
    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64>;

    /// A page of records without activity for a while, the longest first.
    ///
    /// # Errors
    /// [`StoreError::BadCursor`].
    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> StoreFuture<'a, RecordPage>;

    /// Suspends active sessions in one step, and returns how many. Their last activity becomes this time, unless it is
    /// later. A damaged record is suspended like any other.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64>;

    /// Deletes a session with its events, and returns whether there was one.
    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool>;

    /// Deletes a session if nothing was written to it since this record was read, and returns whether it did.
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool>;

    /// The current incarnation of an endpoint: 1 until it is raised.
    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64>;

    /// Raises the incarnation of an endpoint by one if it is still `from`, and returns the current one.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64>;

    /// How far an owner has scanned an endpoint.
    fn scanned_to<'a>(&'a self, owner: &'a str, endpoint: &'a str)
    -> StoreFuture<'a, Option<StreamPosition>>;

    /// Stores how far an owner has scanned an endpoint, without an append. It only moves forward.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()>;

    /// Closes the store. Every later call fails with [`StoreError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}
