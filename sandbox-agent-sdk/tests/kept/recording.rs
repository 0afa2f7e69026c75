//! A store that is slow, or fails, while events come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use mock_server::{Script, Step};
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    EventPage, EventQuery, InactiveQuery, MemoryStore, NewEvent, RecordPage, RecordQuery, RecorderOptions,
    SessionRecord, SessionStore, StoreError, StoredEventKind,
};
use sandbox_agent_sdk::{Event, Events, NewSession};

use crate::support::{KINDS, event, options, within};
use crate::world::{World, stored};

/// A store whose every batch takes long.
#[derive(Debug)]
struct Slow {
    store: MemoryStore,
    slow: AtomicBool,
}

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl SessionStore for Slow {
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord> {
        self.store.put(record)
    }
    fn get<'a>(&'a self, id: &'a str) -> Answer<'a, Option<SessionRecord>> {
        self.store.get(id)
    }
    fn list<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, RecordPage> {
        self.store.list(query)
    }
    fn count<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, u64> {
        self.store.count(query)
    }
    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> Answer<'a, RecordPage> {
        self.store.inactive(query)
    }
    fn delete<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        self.store.delete(id)
    }
    fn suspend_active(&self, now: Timestamp) -> Answer<'_, u64> {
        self.store.suspend_active(now)
    }
    fn import(&self, record: SessionRecord, events: Vec<NewEvent>) -> Answer<'_, SessionRecord> {
        self.store.import(record, events)
    }
    fn append(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move {
            while self.slow.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.store.append(events).await
        })
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> Answer<'a, EventPage> {
        self.store.events(query)
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

/// How many events the program is told of next that were not stored.
async fn unrecorded(events: &mut Events) -> u64 {
    let told = event(events, |event| match event {
        Event::Unrecorded(unrecorded) => Some(unrecorded),
        _ => None,
    });
    let told = told.await;
    assert!(told.session_id == "s" && told.error.is_none(), "{told:?}");
    told.count
}

#[tokio::test]
async fn a_store_that_stands_still_does_not_hold_up_a_turn_and_what_is_lost_is_told() {
    for kind in KINDS {
        let world = World::new(kind, Script::steps(vec![Step::Flood { updates: 500, bytes: 10 }])).await;
        let store = Arc::new(Slow { store: MemoryStore::with_bounds(9, 9999), slow: AtomicBool::new(true) });
        let recorder = RecorderOptions::default().capacity(100).batch(10);
        let client =
            options(&world.server, kind).shared_store(store.clone()).recorder(recorder).build().unwrap();
        let mut events = client.events();
        let session = within(client.sessions().create_as("s", NewSession::in_dir("/"))).await.unwrap();
        let mut turn = within(session.prompt("flood")).await.unwrap();
        let mut updates = 0;
        while within(turn.next()).await.is_some() {
            updates += 1;
        }
        within(turn.outcome()).await.unwrap();
        assert_eq!(updates, 500, "the stream is whole although nothing was stored yet");
        // The program hears of it while the store still stands still.
        let mut told = 0;
        while told < 300 {
            told += unrecorded(&mut events).await;
        }
        store.slow.store(false, Ordering::SeqCst);
        within(client.sessions().flush()).await.unwrap();

        let kept = stored(&*store, "s").await;
        let lost = kept.iter().filter(|event| event.kind == StoredEventKind::Lost);
        let lost: Vec<u64> = lost.map(|event| event.payload["count"].as_u64().unwrap()).collect();
        let (written, lost) = ((kept.len() - lost.len()) as u64, lost.into_iter().sum::<u64>());
        assert_eq!(written + lost, 502, "prompt, reports, end: all accounted for");
        while told < lost {
            told += unrecorded(&mut events).await;
        }
        assert_eq!(told, lost, "everything that was lost is told of, and nothing else");
        client.disconnect().await.unwrap();
    }
}

#[tokio::test]
async fn what_comes_before_the_answer_that_makes_a_session_is_stored_too() {
    let early = Script::steps(vec![]).on_request(|method, _| {
        (method == "session/new").then(|| {
            let commands =
                serde_json::json!({"sessionUpdate": "available_commands_update", "availableCommands": []});
            let update = serde_json::json!({"jsonrpc": "2.0", "method": "session/update",
                "params": {"sessionId": "made-here", "update": commands}});
            vec![Step::Raw(update), Step::Finish(serde_json::json!({"sessionId": "made-here"}))]
        })
    });
    let world = World::new(KINDS[0], early).await;
    let (_client, sessions) = world.program().await;
    within(sessions.create_as("s", NewSession::in_dir("/"))).await.unwrap();
    sessions.flush().await.unwrap();
    let kept = stored(&**sessions.store(), "s").await;
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(kept[0].payload["sessionUpdate"], "available_commands_update");
}
