//! The conformance suite for implementations of [`SessionStore`].
//!
//! Call [`run`] in a test of your store, with a function that opens an empty store. It prints the name of each check,
//! and a failed check panics. [`checks`] returns the individual checks.
//!
//! A store may limit how many events of a session it holds. It may drop any event that is neither open nor the prompt of
//! one of the latest three turns that may have run. The other events keep their indexes, and `last_index` does not
//! change. The checks need room for 2,000 events of a session, except `keeps_what_a_session_needs_to_continue`, which
//! is for such stores.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() {
//! use std::sync::Arc;
//! use sandbox_agent_sdk::sessions::store::{MemoryStore, SessionStore, conformance};
//!
//! conformance::run(async || Arc::new(MemoryStore::with_bounds(10_000, 10_000)) as Arc<dyn SessionStore>).await;
//! # }
//! ```

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a check that fails panics")]
#![allow(
    clippy::field_reassign_with_default,
    reason = "the options are written as users of the crate have to"
)]

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::{
    Append, EventQuery, NewEvent, RecordQuery, SessionRecord, SessionStore, StoredEvent, StreamPosition,
};
use crate::session::Timestamp;

mod appending;
mod lists;
mod ownership;
mod records;

/// A check. It receives an empty store.
pub type Check = fn(Arc<dyn SessionStore>) -> BoxFuture<'static, ()>;

macro_rules! checks {
    ($($group:ident { $($name:ident,)* })*) => {
        /// Returns all checks with their names.
        #[must_use]
        pub fn checks() -> Vec<(&'static str, Check)> {
            vec![$($((stringify!($name), |store| Box::pin($group::$name(store))),)*)*]
        }
    };
}

checks! {
    records {
        returns_a_record_as_it_was_created,
        accepts_any_text_as_an_id,
        refuses_what_not_every_store_can_hold,
        returns_values_however_deeply_they_are_nested,
        creates_a_session_whole_or_not_at_all,
        stores_nothing_of_a_creation_that_is_dropped,
        applies_every_member_of_a_patch,
        refuses_transitions_and_actions_by_status,
        loses_no_patch_of_many_tasks,
        deletes_a_session_with_its_events,
        deletes_only_what_is_unchanged,
        fails_after_it_was_closed,
    }
    appending {
        numbers_events_without_holes_under_many_writers,
        stores_an_append_whole_or_not_at_all,
        stores_an_event_once_by_its_key,
        returns_the_same_indexes_to_all_who_append_the_same,
        moves_the_last_activity_and_the_position_only_forward,
        tells_what_is_open,
        closes_only_what_is_older_and_named,
        returns_events_page_by_page_in_both_orders,
        bounds_the_bytes_of_a_page,
        filters_events_by_kind,
        keeps_what_a_session_needs_to_continue,
        works_after_a_call_was_dropped_anywhere,
    }
    ownership {
        refuses_an_append_of_an_earlier_owner,
        refuses_a_fence_of_a_deleted_session,
        ends_the_ownership_with_a_final_status,
        gives_a_session_to_one_of_many_that_expect_an_epoch,
        continues_where_the_previous_owner_had_scanned_to,
        ignores_what_an_owner_scanned_that_had_not_caught_up,
        ignores_what_an_owner_scanned_while_a_turn_is_open,
        advances_scanned_to_in_the_transaction_of_the_append,
        raises_an_incarnation_once,
        binds_an_agent_session_to_one_session_within_an_incarnation,
        suspends_own_or_all_active_sessions,
        suspends_while_others_write,
    }
    lists {
        returns_every_session_once_page_by_page,
        keeps_a_cursor_valid_while_others_write,
        filters_by_every_column,
        lists_the_longest_inactive_first,
        refuses_a_cursor_that_no_store_wrote,
    }
}

/// Runs every check, each with a new store.
///
/// # Panics
/// If the store does not conform.
pub async fn run(open: impl AsyncFn() -> Arc<dyn SessionStore>) {
    for (name, check) in checks() {
        println!("conformance: {name}");
        let store = open().await;
        check(Arc::clone(&store)).await;
        store.close().await;
    }
}

type Store = Arc<dyn SessionStore>;

const HOSTILE: [&str; 7] = [
    "'; DROP TABLE sandbox_agent_sessions; --",
    "\"quoted\" `ticked` $1 ?1 %s {}",
    "line\nbreak\ttab\r",
    "back\\slash\\0",
    "\u{1F600}\u{202E}e\u{301}\u{FEFF}",
    "%_*",
    " ",
];

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn record(id: &str, created: u64) -> SessionRecord {
    SessionRecord::new(id, "mock", at(created))
}

/// Creates a session of this id at the time 5.
async fn create(store: &Store, id: &str) -> SessionRecord {
    store.create(record(id, 5), Vec::new()).await.unwrap()
}

fn event(id: impl ToString, payload: impl Into<Value>) -> NewEvent {
    NewEvent::new(id.to_string(), at(1_000), "update", payload)
}

fn position(incarnation: u64, offset: u64) -> StreamPosition {
    StreamPosition { incarnation, offset, fingerprint: super::Fingerprint(u64::MAX - offset) }
}

/// Appends events without a fence, and returns their indexes.
async fn append(store: &Store, id: &str, events: impl IntoIterator<Item = NewEvent>) -> Vec<u64> {
    store.append(Append::to(id).events(events)).await.unwrap().indexes
}

async fn get(store: &Store, id: &str) -> SessionRecord {
    store.get(id).await.unwrap().unwrap()
}

/// All events of a session, by small pages. Their indexes are 1, 2, 3 and so on.
async fn all_events(store: &Store, id: &str) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut query = EventQuery::of(id).limit(97);
    loop {
        let page = store.events(&query).await.unwrap();
        all.extend(page.events);
        match page.next {
            Some(next) => query = query.after(next),
            None => break,
        }
    }
    for (expected, event) in (1..).zip(&all) {
        assert_eq!((event.index, event.session_id.as_str()), (expected, id), "a hole, or out of order");
    }
    all
}

/// The ids of all sessions that match, by pages.
async fn all_ids(store: &Store, mut query: RecordQuery) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap();
        all.extend(page.records.into_iter().map(|record| record.id));
        match page.next {
            Some(next) => query = query.after(next),
            None => return all,
        }
    }
}

/// Polls a future until it was pending this many times, then drops it.
async fn drop_after<T>(mut waits: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        std::task::Poll::Ready(output) => std::task::Poll::Ready(Some(output)),
        std::task::Poll::Pending if waits == 0 => std::task::Poll::Ready(None),
        std::task::Poll::Pending => {
            waits -= 1;
            std::task::Poll::Pending
        }
    })
    .await
}
