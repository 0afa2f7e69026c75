//! A store in a database. These files are compiled once for each database, as a module of its store, which names the types
//! and the few words that differ.

use futures::future::BoxFuture;

use super::super::rows::Prepared;
use super::super::{
    Acquire, Append, Appended, EventPage, EventQuery, Fence, NewEvent, OpenEvents, RecordPage, RecordQuery,
    ScannedTo, SessionRecord, SessionStore, StoreFuture, StreamPosition, Suspend,
};
use super::Store;
use crate::session::Timestamp;

mod columns;
pub(super) mod events;
pub(super) mod records;

/// Runs statements on a connection of the pool.
macro_rules! run {
    ($checkout:expr, |$connection:ident| $work:expr) => {
        Box::pin(async move {
            let mut checkout = $checkout.await?;
            let ($connection, watch) = checkout.parts();
            watch.step($work).await
        })
    };
}

impl SessionStore for Store {
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord> {
        run!(self.writer(), |connection| records::create(connection, record, &events))
    }

    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>> {
        run!(self.reader(), |connection| records::get(connection, id))
    }

    fn append(&self, append: Append) -> StoreFuture<'_, Appended> {
        Box::pin(async move { self.append_prepared(Prepared::new(append)?).await })
    }

    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, SessionRecord> {
        run!(self.writer(), |connection| records::end_ownership(connection, id, |record, scanned_to| acquire
            .apply(record, scanned_to)))
    }

    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord> {
        run!(self.writer(), |connection| records::end_ownership(connection, id, |record, scanned_to| fence
            .release(record, scanned_to)))
    }

    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents> {
        run!(self.reader(), |connection| events::open(connection, id))
    }

    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage> {
        run!(self.reader(), |connection| events::events(connection, query))
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage> {
        run!(self.reader(), |connection| records::list(connection, query))
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64> {
        run!(self.reader(), |connection| records::count(connection, query))
    }

    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64> {
        run!(self.writer(), |connection| records::suspend(connection, &which, now))
    }

    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        run!(self.writer(), |connection| records::delete(connection, id))
    }

    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool> {
        run!(self.writer(), |connection| records::delete_unchanged(connection, record))
    }

    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64> {
        run!(self.reader(), |connection| records::incarnation(connection, endpoint))
    }

    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64> {
        run!(self.writer(), |connection| records::raise_incarnation(connection, endpoint, from))
    }

    fn scanned_to<'a>(
        &'a self,
        owner: &'a str,
        endpoint: &'a str,
    ) -> StoreFuture<'a, Option<StreamPosition>> {
        run!(self.reader(), |connection| records::scanned_to(connection, owner, endpoint))
    }

    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()> {
        run!(self.writer(), |connection| records::advance(connection, &scanned_to))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.close_pools())
    }
}
