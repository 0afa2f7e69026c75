use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

mod failures;
mod overflow;

use super::{Recorder, RecorderOptions, Unrecorded};
use crate::session::Timestamp;
use crate::store::{
    EventPage, EventQuery, InactiveQuery, MemoryStore, NewEvent, RecordPage, RecordQuery, SessionRecord,
    SessionStore, StoreError, StoredEvent, StoredEventKind,
};

/// What a store does with the next batches.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Good,
    /// It fails before it writes.
    FailsBefore,
    /// It writes, and then fails.
    FailsAfter,
    /// It writes the first half, and then fails, as no store should.
    FailsBetween,
    /// It fails in a way that no store should.
    Panics,
}

/// A store that is slow, or fails, on demand. It has the sessions `s` and `t`.
#[derive(Debug)]
struct Moody {
    store: MemoryStore,
    /// How many batches it will take.
    room: Semaphore,
    moods: std::sync::Mutex<Vec<Mood>>,
    appends: AtomicUsize,
    /// The session whose record cannot be read.
    spoilt: std::sync::OnceLock<String>,
}

const PLENTY: usize = 1 << 40;

impl Moody {
    async fn new() -> Arc<Self> {
        let store = MemoryStore::with_bounds(10, 100_000);
        for id in ["s", "t"] {
            store.put(SessionRecord::new(id, "mock", Timestamp::from_millis(1))).await.unwrap();
        }
        let (room, moods) = (Semaphore::new(PLENTY), std::sync::Mutex::default());
        Arc::new(Self {
            store,
            room,
            moods,
            appends: AtomicUsize::new(0),
            spoilt: std::sync::OnceLock::new(),
        })
    }

    fn will(&self, moods: &[Mood]) {
        *self.moods.lock().unwrap() = moods.iter().rev().copied().collect();
    }

    /// From now on every batch waits.
    fn stop(&self) {
        self.room.forget_permits(PLENTY);
    }

    /// So many batches more are taken.
    fn go_on(&self, batches: usize) {
        self.room.add_permits(batches);
    }

    /// Waits until a batch of events has come, so that it is not in the queue any more.
    async fn reached(&self, appends: usize) {
        while self.appends.load(Ordering::SeqCst) < appends {
            tokio::task::yield_now().await;
        }
    }

    async fn stored(&self) -> Vec<StoredEvent> {
        self.stored_of("s").await
    }

    async fn stored_of(&self, session: &str) -> Vec<StoredEvent> {
        let mut all = Vec::new();
        let mut query = EventQuery::of(session).limit(1000);
        loop {
            let page = self.store.events(&query).await.unwrap();
            all.extend(page.events);
            match page.next {
                Some(next) => query = query.after(next),
                None => return all,
            }
        }
    }
}

/// What this store does not take: events that say so.
fn refusal(event: &NewEvent) -> Option<StoreError> {
    match event.payload.as_str()? {
        "invalid" => Some(StoreError::Invalid("as it says".to_owned())),
        "read-only" => Some(StoreError::ReadOnly { path: "here".into() }),
        "poison" => Some(StoreError::Database(Arc::new(std::io::Error::other("poison")))),
        _ => None,
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

impl SessionStore for Moody {
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord> {
        self.store.put(record)
    }
    fn get<'a>(&'a self, id: &'a str) -> Answer<'a, Option<SessionRecord>> {
        if self.spoilt.get().is_some_and(|spoilt| spoilt == id) {
            let source = Arc::new(std::io::Error::other("spoilt"));
            return Box::pin(async move { Err(StoreError::Unreadable { id: id.to_owned(), source }) });
        }
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
            self.appends.fetch_add(1, Ordering::SeqCst);
            self.room.acquire().await.unwrap().forget();
            let mood = self.moods.lock().unwrap().pop().unwrap_or(Mood::Good);
            let failure = || StoreError::Unavailable(Arc::new(std::io::Error::other("moody")));
            if let Some(error) = events.iter().find_map(refusal) {
                return Err(error);
            }
            match mood {
                Mood::Good => self.store.append(events).await,
                Mood::FailsBefore => Err(failure()),
                Mood::FailsAfter => self.store.append(events).await.and_then(|_| Err(failure())),
                Mood::FailsBetween => {
                    let half = events.len() / 2;
                    self.store.append(events[..half].to_vec()).await.and_then(|_| Err(failure()))
                }
                Mood::Panics => panic!("a store that panics"),
            }
        })
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> Answer<'a, EventPage> {
        self.store.events(query)
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

fn recorder(store: &Arc<Moody>, options: RecorderOptions) -> (Recorder, mpsc::Receiver<Unrecorded>) {
    let (sender, receiver) = mpsc::channel(256);
    let store: Arc<dyn SessionStore> = store.clone();
    let listener = Box::new(move |unrecorded| sender.try_send(unrecorded).unwrap());
    (Recorder::start_with(store, options, listener), receiver)
}

/// What flushing says was not stored.
fn losses_of(flushed: Result<(), StoreError>) -> Vec<(String, u64, StoreError)> {
    match flushed {
        Ok(()) => Vec::new(),
        Err(StoreError::NotStored { losses, .. }) => {
            losses.into_iter().map(|loss| (loss.session_id, loss.count, loss.error.unwrap())).collect()
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// The counts of what stands for lost events.
fn marks(events: &[StoredEvent]) -> Vec<u64> {
    let marks = events.iter().filter(|event| event.kind == StoredEventKind::Lost);
    marks.map(|event| event.payload["count"].as_u64().unwrap()).collect()
}

fn numbers(events: &[StoredEvent]) -> Vec<u64> {
    events.iter().filter_map(|event| event.payload.as_u64()).collect()
}

#[tokio::test]
async fn a_flush_and_a_close_lose_nothing_and_keep_the_order() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().batch(7));
    for n in 0..100u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    recorder.flush().await.unwrap();
    assert_eq!(numbers(&store.stored().await), (0..100).collect::<Vec<_>>());
    for n in 100..200u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    recorder.close().await.unwrap();
    assert_eq!(numbers(&store.stored().await), (0..200).collect::<Vec<_>>());
    assert!(losses.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_holds_nobody_up_and_what_is_lost_is_counted_in_its_place() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().capacity(10).batch(4));
    store.stop();
    recorder.record("s", StoredEventKind::Update, 0.into());
    store.reached(1).await;
    // The store has stopped, the queue takes ten, and the rest is counted. Nothing here waits.
    for n in 1..=25u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    assert_eq!(recorder.waiting(), 10);
    store.go_on(PLENTY);
    recorder.flush().await.unwrap();
    recorder.record("s", StoredEventKind::Update, 26.into());
    recorder.flush().await.unwrap();
    let stored = store.stored().await;
    assert_eq!(numbers(&stored), (0..=10).chain([26]).collect::<Vec<_>>());
    let lost: Vec<_> = stored.iter().filter(|event| event.kind == StoredEventKind::Lost).collect();
    assert_eq!((lost.len(), &lost[0].payload, lost[0].index), (1, &json!({"count": 15}), 12));
    let told = losses.try_recv().unwrap();
    assert_eq!((told.session_id.as_str(), told.count, told.error.is_none()), ("s", 15, true));
    assert!(losses.try_recv().is_err(), "a loss is told of once");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_tried_again_and_nothing_is_stored_twice() {
    let store = Moody::new().await;
    let (recorder, mut losses) = recorder(&store, RecorderOptions::default().batch(5));
    recorder.record("s", StoredEventKind::Update, 0.into());
    recorder.flush().await.unwrap();
    // What was written before the failure is not written again, and what was not is.
    store.will(&[
        Mood::FailsBefore,
        Mood::FailsAfter,
        Mood::FailsBetween,
        Mood::FailsAfter,
        Mood::FailsBefore,
    ]);
    for n in 1..30u64 {
        recorder.record("s", StoredEventKind::Update, n.into());
    }
    recorder.flush().await.unwrap();
    let stored = store.stored().await;
    assert_eq!(numbers(&stored), (0..30).collect::<Vec<_>>());
    assert!((1..).zip(&stored).all(|(index, event)| event.index == index));
    assert!(losses.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_costs_a_batch_after_the_patience_and_it_is_told() {
    let store = Moody::new().await;
    let options = RecorderOptions::default().patience(Duration::from_secs(3));
    let (recorder, mut losses) = recorder(&store, options);
    store.will(&[Mood::FailsBefore; 64]);
    recorder.record("s", StoredEventKind::Update, 1.into());
    recorder.record("s", StoredEventKind::Update, 2.into());
    let lost = losses_of(recorder.flush().await);
    assert!(matches!(&lost[..], [(id, 2, StoreError::Unavailable(_))] if id == "s"), "{lost:?}");
    let told = losses.recv().await.unwrap();
    assert!(told.count == 2 && told.error.is_some());
    store.will(&[]);
    recorder.record("s", StoredEventKind::Update, 3.into());
    recorder.flush().await.unwrap();
    let stored = store.stored().await;
    assert_eq!((&stored[0].payload, &stored[1].payload), (&json!({"count": 2}), &json!(3)));
    assert!(losses.try_recv().is_err(), "a loss is told of once");
}
