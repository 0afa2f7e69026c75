//! The stores to test.

use std::collections::HashSet;
use std::sync::Arc;

use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    EventQuery, MemoryStore, NewEvent, PostgresStore, RecordQuery, SessionRecord, SessionStore, SqliteStore,
    StoredEvent,
};
use sdk_tests::Cluster;
use serde_json::Value;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

impl Kind {
    /// Runs a check with a new store of this kind.
    pub(crate) async fn run(self, check: impl AsyncFnOnce(Arc<dyn SessionStore>)) {
        match self {
            Self::Memory => check(Arc::new(MemoryStore::with_bounds(10_000, 100_000))).await,
            Self::Sqlite => {
                let directory = tempfile::tempdir().unwrap();
                let store = SqliteStore::open(directory.path().join("sessions.db")).await.unwrap();
                check(Arc::new(store)).await;
            }
            Self::Postgres => {
                let Some(cluster) = Cluster::find().await else { return };
                let schema = cluster.schema().await;
                let store = Arc::new(PostgresStore::open(&schema.url).await.unwrap());
                check(store.clone()).await;
                store.close().await;
                schema.remove().await;
            }
        }
    }
}

pub(crate) fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

pub(crate) fn record(id: &str, made: u64) -> SessionRecord {
    SessionRecord::new(id, "mock", at(made))
}

pub(crate) fn event(session: &str, id: impl ToString, payload: impl Into<Value>) -> NewEvent {
    NewEvent::new(id.to_string(), session, at(1_000), "update", payload)
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

/// The ids of all sessions that fit, by pages.
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

/// Checks the session `s` of an old store, whose six events had the ids 1 and 0 in turn when it was opened.
pub(crate) async fn assert_repeats_have_ids_of_their_own(store: &dyn SessionStore) {
    let events = all_events(store, "s").await;
    assert_gap_free(&events);
    let payloads: Vec<u64> = events.iter().filter_map(|event| event.payload.as_u64()).collect();
    assert_eq!(payloads, [1, 2, 3, 4, 5, 6], "nothing is lost or moved");
    let ids: HashSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(
        (ids.len(), events[0].id.as_str(), events[1].id.as_str()),
        (6, "1", "0"),
        "the first keeps its id"
    );
    assert_eq!(store.append(vec![event("s", 0, 9), event("s", "new", 9)]).await.unwrap(), [2, 7]);
}
