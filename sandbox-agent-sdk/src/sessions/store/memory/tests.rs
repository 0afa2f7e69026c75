#[cfg(feature = "conformance")]
use std::sync::Arc;

use serde_json::{Value, json};

use super::{MemoryStore, SessionStore};
use crate::session::Timestamp;
use crate::sessions::store::{
    Append, EventKey, EventQuery, NewEvent, RecordQuery, SessionRecord, StoredEventKind,
};

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

#[tokio::test]
async fn beyond_its_bounds_what_a_session_needs_to_continue_stays() {
    let store = MemoryStore::with_bounds(2, 20);
    store.create(SessionRecord::new("s", "mock", Timestamp::from_millis(1)), Vec::new()).await.unwrap();
    let of_turn = |kind: &str, turn: u64, payload: Value| {
        NewEvent::new(format!("{kind}{turn}"), Timestamp::from_millis(9), kind, payload)
            .turn_id(format!("t{turn}"))
    };
    let mut next = 0;
    for turn in 1..=6 {
        // The fifth prompt never ran.
        let end = json!({"executed": turn != 5});
        let chunks = std::iter::repeat_with(|| {
            next += 1;
            event(next)
        });
        let mut events = vec![of_turn("prompt", turn, json!({}))];
        events.extend(chunks.take(100));
        events.extend((turn < 6).then(|| of_turn("turn_ended", turn, end)));
        store.append(Append::to("s").events(events)).await.unwrap();
    }
    let stored = store.events(&EventQuery::of("s").limit(1000)).await.unwrap().events;
    assert_eq!(stored.len(), 20);
    let prompts = stored.iter().filter(|event| event.kind == StoredEventKind::Prompt);
    let turns: Vec<_> = prompts.filter_map(|event| event.turn_id.as_deref()).collect();
    assert_eq!(turns, ["t3", "t4", "t6"]);
    let open = store.open("s").await.unwrap();
    assert_eq!(
        open.turns.iter().filter_map(|open| open.prompt.turn_id.as_deref()).collect::<Vec<_>>(),
        ["t6"]
    );
    // Even if everything is open, the bound holds.
    let request = |n: u64| of_turn("permission", 6, json!({})).rpc_id(n.to_string());
    let request = |n: u64| NewEvent { key: EventKey::Id { id: format!("r{n}") }, ..request(n) };
    store.append(Append::to("s").events((0..50).map(request))).await.unwrap();
    let stored = store.events(&EventQuery::of("s").limit(1000)).await.unwrap().events;
    assert_eq!((stored.len(), stored[0].turn_id.as_deref()), (20, Some("t3")));
    assert_eq!(store.open("s").await.unwrap().turns.len(), 1);
}

#[cfg(feature = "conformance")]
#[tokio::test]
async fn a_store_with_the_default_bounds_keeps_what_the_conformance_suite_demands() {
    let demanded = "keeps_what_a_session_needs_to_continue";
    let checks = crate::sessions::store::conformance::checks();
    let (_, check) = checks.into_iter().find(|(name, _)| *name == demanded).unwrap();
    check(Arc::new(MemoryStore::new())).await;
}
