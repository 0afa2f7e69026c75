//! The trait that every store implements.

use std::fmt;

use futures::future::BoxFuture;

use super::{
    EventPage, EventQuery, InactiveQuery, MAX_PAGE, NewEvent, RecordPage, RecordQuery, SessionRecord,
    StoreError,
};
use crate::session::Timestamp;
use crate::sessions::SessionStatus;

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Keeps sessions and what happened in them.
///
/// Several tasks, and with some stores several programs, use one store at the same time. What a call has
/// acknowledged is kept; what it has not may be kept or not, but never by half.
pub trait SessionStore: fmt::Debug + Send + Sync + 'static {
    /// Writes a record: a new one if its revision is 0, else in the place of the revision that was read. Gives it as
    /// it is kept, with its new revision. The last index is left as it is, and the last activity never moves back.
    ///
    /// Fails with [`StoreError::Exists`], [`StoreError::NotFound`] or [`StoreError::Conflict`].
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord>;

    /// A record, if there is one of this id.
    fn get<'a>(&'a self, id: &'a str) -> Answer<'a, Option<SessionRecord>>;

    /// A page of records, the newest first; of those made in the same millisecond, the greatest id first.
    fn list<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, RecordPage>;

    /// How many records fit the query, whatever its cursor and its limit.
    fn count<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, u64>;

    /// A page of records in which nothing has happened for a while, the longest first.
    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> Answer<'a, RecordPage>;

    /// Deletes a session with its events, and tells whether there was one.
    fn delete<'a>(&'a self, id: &'a str) -> Answer<'a, bool>;

    /// Deletes a session as [`delete`](Self::delete) does, if nobody has written to it, or to its record, since this
    /// record was read. A store that others write to should do both in one; what is here looks first and then deletes.
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> Answer<'a, bool> {
        Box::pin(async move {
            let found = self.get(&record.id).await?;
            let unchanged = |found: &SessionRecord| {
                (found.revision, found.last_index) == (record.revision, record.last_index)
            };
            Ok(found.as_ref().is_some_and(unchanged) && self.delete(&record.id).await?)
        })
    }

    /// Suspends every active session, as a program does that shuts down, and tells how many. The last activity of each
    /// becomes this moment, unless it is later, and its revision goes up. What cannot be read does not keep the others
    /// from it.
    ///
    /// There may be very many and little time, so that a store should do this in one step; what is here writes session by
    /// session. It fails with the first failure, after it has tried all.
    fn suspend_active(&self, now: Timestamp) -> Answer<'_, u64> {
        Box::pin(async move {
            let (mut suspended, mut failure) = (0, None);
            let mut query = RecordQuery::all().statuses([SessionStatus::Active]).limit(MAX_PAGE);
            loop {
                let page = self.list(&query).await?;
                for record in page.records {
                    match suspend(self, record, now).await {
                        Ok(was_active) => suspended += u64::from(was_active),
                        Err(error) => failure = failure.or(Some(error)),
                    }
                }
                match page.next {
                    Some(next) => query = query.after(next),
                    None => return failure.map_or(Ok(suspended), Err),
                }
            }
        })
    }

    /// Writes a new record with everything that happened in the session, all of it or nothing, whatever becomes of the
    /// call and of the program. The events get the indexes 1, 2, 3 and so on.
    ///
    /// Fails with [`StoreError::Exists`]; with [`StoreError::Invalid`] if an event is of another session, or an id is
    /// there twice.
    fn import(&self, record: SessionRecord, events: Vec<NewEvent>) -> Answer<'_, SessionRecord>;

    /// Writes events, all of them or none, and gives their indexes in the same order.
    ///
    /// The events of one session get indexes that follow one another, whoever else writes at the same time. An event
    /// whose id the session has already is not written again and keeps its index, so that whoever does not know whether
    /// a batch was written just writes it again.
    ///
    /// Fails with [`StoreError::NotFound`] if the session of one of them is not there, or is not the one that was made
    /// at [the moment it names](NewEvent::session_made_at).
    /// Fails with [`StoreError::TakenOver`] if one names an [epoch](NewEvent::epoch) that is not the one of its session.
    fn append(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<u64>>;

    /// A page of the events of a session, in their order. It is empty if there is no such session.
    fn events<'a>(&'a self, query: &'a EventQuery) -> Answer<'a, EventPage>;

    /// Lets go of the store. Every later call fails with [`StoreError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Suspends a session if it is active, and tells whether it was.
async fn suspend<S: SessionStore + ?Sized>(
    store: &S,
    mut record: SessionRecord,
    now: Timestamp,
) -> Result<bool, StoreError> {
    while record.status == SessionStatus::Active {
        let id = record.id.clone();
        record.status = SessionStatus::Suspended;
        record.last_active = record.last_active.max(now);
        match store.put(record).await {
            Ok(_) => return Ok(true),
            // Whoever was quicker got something done, so that this comes to an end.
            Err(StoreError::Conflict { .. }) => match store.get(&id).await? {
                Some(changed) => record = changed,
                None => return Ok(false),
            },
            Err(StoreError::NotFound { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
