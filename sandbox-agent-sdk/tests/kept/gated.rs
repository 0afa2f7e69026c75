//! A store that waits, or does something in between, when a test wants it to.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, SessionStore,
    StoreError,
};

type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;
type Between = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Passes everything on to another store.
pub(crate) struct Gated {
    store: Arc<dyn SessionStore>,
    /// Writing events waits while this is held.
    pub(crate) appending: tokio::sync::Mutex<()>,
    /// What happens after the next look that finds sessions without activity.
    pub(crate) after_look: Mutex<Option<Between>>,
    /// What happens before the next record is written.
    pub(crate) before_put: Mutex<Option<Between>>,
    /// What happens before all active sessions are suspended.
    pub(crate) before_suspending: Mutex<Option<Between>>,
    /// Reading events fails while this is set.
    pub(crate) blind: AtomicBool,
    /// Every call takes this long; those of a store that is stuck never end.
    pub(crate) slowness: Mutex<Slowness>,
    /// The next record is written, and nobody ever hears of it.
    pub(crate) mute: AtomicBool,
    /// Writing records fails while this is set.
    pub(crate) refusing: AtomicBool,
    /// How many records were to be written, and how many of them were refused.
    puts: AtomicUsize,
    refused: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slowness {
    None,
    Slow(Duration),
    Stuck,
}

impl Gated {
    pub(crate) fn new(store: impl SessionStore) -> Arc<Self> {
        let (after_look, before_put) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            store: Arc::new(store),
            appending: tokio::sync::Mutex::default(),
            after_look,
            before_put,
            before_suspending: Mutex::default(),
            blind: AtomicBool::new(false),
            slowness: Mutex::new(Slowness::None),
            mute: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            puts: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        })
    }

    /// How many records were to be written so far.
    pub(crate) fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }

    /// Waits until so many records were refused.
    pub(crate) async fn refused(&self, count: usize) {
        while self.refused.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn wait(&self) {
        let slowness = *self.slowness.lock().unwrap();
        match slowness {
            Slowness::None => {}
            Slowness::Slow(time) => tokio::time::sleep(time).await,
            Slowness::Stuck => std::future::pending().await,
        }
    }
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gated").finish_non_exhaustive()
    }
}

impl SessionStore for Gated {
    fn put(&self, record: SessionRecord) -> Answer<'_, SessionRecord> {
        Box::pin(async move {
            self.wait().await;
            let between = self.before_put.lock().unwrap().take();
            if let Some(between) = between {
                between().await;
            }
            self.puts.fetch_add(1, Ordering::SeqCst);
            if self.refusing.load(Ordering::SeqCst) {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return Err(StoreError::Unavailable(Arc::new(std::io::Error::other("refusing"))));
            }
            let put = self.store.put(record).await;
            if self.mute.swap(false, Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            put
        })
    }
    fn get<'a>(&'a self, id: &'a str) -> Answer<'a, Option<SessionRecord>> {
        Box::pin(async move {
            self.wait().await;
            self.store.get(id).await
        })
    }
    fn list<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, RecordPage> {
        self.store.list(query)
    }
    fn count<'a>(&'a self, query: &'a RecordQuery) -> Answer<'a, u64> {
        self.store.count(query)
    }
    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> Answer<'a, RecordPage> {
        Box::pin(async move {
            let page = self.store.inactive(query).await;
            let found = page.as_ref().is_ok_and(|page| !page.records.is_empty());
            let between = if found { self.after_look.lock().unwrap().take() } else { None };
            if let Some(between) = between {
                between().await;
            }
            page
        })
    }
    fn delete<'a>(&'a self, id: &'a str) -> Answer<'a, bool> {
        self.store.delete(id)
    }
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> Answer<'a, bool> {
        self.store.delete_unchanged(record)
    }
    fn suspend_active(&self, now: Timestamp) -> Answer<'_, u64> {
        Box::pin(async move {
            let between = self.before_suspending.lock().unwrap().take();
            if let Some(between) = between {
                between().await;
            }
            self.store.suspend_active(now).await
        })
    }
    fn import(&self, record: SessionRecord, events: Vec<NewEvent>) -> Answer<'_, SessionRecord> {
        self.store.import(record, events)
    }
    fn append(&self, events: Vec<NewEvent>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move {
            self.wait().await;
            let _open = self.appending.lock().await;
            self.store.append(events).await
        })
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> Answer<'a, EventPage> {
        if self.blind.load(Ordering::SeqCst) {
            let blind = StoreError::Unavailable(Arc::new(std::io::Error::other("blind")));
            return Box::pin(async { Err(blind) });
        }
        Box::pin(async move {
            self.wait().await;
            self.store.events(query).await
        })
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
