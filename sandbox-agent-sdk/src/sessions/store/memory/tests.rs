use super::{MemoryStore, SessionStore};
use crate::session::Timestamp;
use crate::sessions::store::{Append, EventQuery, NewEvent, RecordQuery, SessionRecord};

fn event(n: u64) -> NewEvent {
    NewEvent::new(format!("e{n}"), Timestamp::from_millis(9), "update", n)
}

#[tokio::test]
async fn beyond_its_bounds_the_oldest_sessions_and_events_are_dropped() {
    let store = MemoryStore::with_bounds(2, 3);
    for (id, created) in [("a", 1), ("b", 2), ("c", 3)] {
        let record = SessionRecord::new(id, "mock", Timestamp::from_millis(created));
        store.create(record, Vec::new()).await.unwrap();
    }
    let page = store.list(&RecordQuery::all()).await.unwrap();
    assert_eq!(page.records.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["c", "b"]);
    for n in 0..5 {
        store.append(Append::to("c").events([event(n)])).await.unwrap();
    }
    let stored = store.events(&EventQuery::of("c")).await.unwrap().events;
    assert_eq!(stored.iter().map(|event| event.index).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(store.get("c").await.unwrap().unwrap().last_index, 5);
    // Events that were dropped recently keep their indexes when they are repeated.
    let again = store.append(Append::to("c").events([1, 4, 0, 9].map(event))).await.unwrap();
    assert_eq!(again.indexes, [2, 5, 1, 6]);
}

#[tokio::test]
async fn by_default_it_holds_1024_sessions_with_500_events_each() {
    let store = MemoryStore::new();
    for n in 0..=1024u64 {
        let record = SessionRecord::new(format!("s{n}"), "mock", Timestamp::from_millis(n));
        store.create(record, Vec::new()).await.unwrap();
    }
    assert_eq!(store.count(&RecordQuery::all()).await.unwrap(), 1024);
    assert_eq!(store.get("s0").await.unwrap(), None);
    store.append(Append::to("s9").events((1..=501).map(event))).await.unwrap();
    let stored = store.events(&EventQuery::of("s9").limit(1000)).await.unwrap().events;
    assert_eq!((stored.len(), stored[0].index, stored[499].index), (500, 2, 501));
}
