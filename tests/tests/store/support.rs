//! What the tests of stores share.

use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::{
    Append, EventQuery, NewEvent, RecordQuery, SessionRecord, SessionStore, StoreError, StoredEvent,
};
use serde_json::Value;

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn record(id: &str, created: u64) -> SessionRecord {
    SessionRecord::new(id, "mock", at(created))
}

/// Creates a session of this id at the time 5.
pub(crate) async fn create(store: &dyn SessionStore, id: &str) -> SessionRecord {
    store.create(record(id, 5), Vec::new()).await.unwrap()
}

pub(crate) fn event(id: impl ToString, payload: impl Into<Value>) -> NewEvent {
    NewEvent::new(id.to_string(), at(1_000), "update", payload)
}

/// Appends events, and returns their indexes.
pub(crate) async fn append(
    store: &dyn SessionStore,
    id: &str,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<u64>, StoreError> {
    store.append(Append::to(id).events(events)).await.map(|appended| appended.indexes)
}

/// All events of a session, by small pages.
pub(crate) async fn all_events(store: &dyn SessionStore, session: &str) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut query = EventQuery::of(session).limit(97);
    loop {
        let page = store.events(&query).await.unwrap();
        all.extend(page.events);
        match page.next {
            Some(next) => query = query.after(next),
            None => return all,
        }
    }
}

/// The ids of all sessions that match, by pages.
pub(crate) async fn all_ids(store: &dyn SessionStore, mut query: RecordQuery) -> Vec<String> {
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

/// Fails unless the indexes are 1, 2, 3 and so on.
pub(crate) fn assert_gap_free(events: &[StoredEvent]) {
    for (expected, event) in (1..).zip(events) {
        assert_eq!(event.index, expected, "a hole, or one out of order");
    }
}
