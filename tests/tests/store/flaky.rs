//! A recorder that writes to a store which fails at random.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, Recorder, RecorderOptions,
    SessionRecord, SessionStore, StoreError, StoredEventKind,
};

use crate::support::{all_events, assert_gap_free, record};

type Store = Arc<dyn SessionStore>;

/// A store that writes every second batch as it should. Of the others it writes all, a part, or nothing, and says that
/// it failed; or whoever waits for it is told so while it is still writing.
#[derive(Debug)]
struct Flaky {
    store: Store,
    seed: AtomicU64,
}

impl Flaky {
    fn random(&self, below: u64) -> u64 {
        let step =
            |seed: u64| seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let seed =
            self.seed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |seed| Some(step(seed))).unwrap();
        (seed >> 33) % below
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl SessionStore for Flaky {
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord> {
        self.store.put(record)
    }
    fn get<'a>(&'a self, _id: &'a str) -> Answer<'a, Option<SessionRecord>> {
        Box::pin(std::future::ready(Err(failure())))
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
            let part = self.random(events.len() as u64 + 1) as usize;
            match self.random(8) {
                0 => Err(failure()),
                1 => self.store.append(events).await.and_then(|_| Err(failure())),
                2 => self.store.append(events[..part].to_vec()).await.and_then(|_| Err(failure())),
                3 => {
                    // The store goes on with what its caller has given up.
                    let store = Arc::clone(&self.store);
                    tokio::spawn(async move { store.append(events).await });
                    Err(failure())
                }
                _ => self.store.append(events).await,
            }
        })
    }
    fn events<'a>(&'a self, _query: &'a EventQuery) -> Answer<'a, EventPage> {
        Box::pin(std::future::ready(Err(failure())))
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

fn failure() -> StoreError {
    StoreError::Unavailable(Arc::new(std::io::Error::other("flaky")))
}

pub(crate) async fn keeps_every_event_once_and_in_order_however_it_fails(store: Store) {
    for seed in 1..=4u64 {
        let sessions = ["a", "b", "c"].map(|session| format!("{session}{seed}"));
        let flaky: Store = Arc::new(Flaky { store: Arc::clone(&store), seed: AtomicU64::new(seed) });
        let told = Arc::new(Mutex::new(Vec::new()));
        let listening = Arc::clone(&told);
        let listener = Box::new(move |loss| listening.lock().unwrap().push(loss));
        let options = RecorderOptions::default().batch(40).patience(Duration::from_secs(600));
        let recorder = Recorder::start_with(flaky, options, listener);
        for session in &sessions {
            recorder.know(&store.put(record(session, 5)).await.unwrap());
        }
        let mut expected: HashMap<&str, Vec<u64>> = HashMap::new();
        for n in 0..400u64 {
            let session = &sessions[(n * n % 7 % 3) as usize];
            expected.entry(session).or_default().push(n);
            recorder.record(session, StoredEventKind::Update, n.into());
            if n % 130 == 0 {
                recorder.flush().await.unwrap();
            }
        }
        recorder.close().await.unwrap();
        for session in &sessions {
            let events = all_events(&*store, session).await;
            assert_gap_free(&events);
            let kept: Vec<u64> = events.iter().filter_map(|event| event.payload.as_u64()).collect();
            assert_eq!(kept, expected[session.as_str()], "session {session}");
        }
        assert!(told.lock().unwrap().is_empty(), "everything was stored");
    }
}
