//! A store that waits, or does something in between, when a test wants it to.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::{
    Acquire, Append, Appended, EventPage, EventQuery, Fence, NewEvent, OpenEvents, RecordPage, RecordQuery,
    ScannedTo, SessionRecord, SessionStore, StoreError, StoreFuture, StoredEventKind, StreamPosition,
    Suspend,
};

type Between = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// Passes everything on to another store.
pub(crate) struct Gated {
    store: Arc<dyn SessionStore>,
    /// Storing anything but a prompt waits while this is held.
    pub(crate) appending: tokio::sync::Mutex<()>,
    /// How many appends wait for it.
    pub(crate) waiting: AtomicUsize,
    /// What happens after the next look that finds sessions without activity.
    pub(crate) after_look: Mutex<Option<Between>>,
    /// What happens before a session is acquired next.
    pub(crate) before_acquire: Mutex<Option<Between>>,
    /// What happens before the agent's session is stored next.
    pub(crate) before_binding: Mutex<Option<Between>>,
    /// What happens before a prompt is stored next.
    pub(crate) before_prompt: Mutex<Option<Between>>,
    /// What happens after the next look at what is open in a session.
    pub(crate) after_open: Mutex<Option<Between>>,
    /// What happens before a status is stored next.
    pub(crate) before_status: Mutex<Option<Between>>,
    /// What happens before sessions are suspended.
    pub(crate) before_suspending: Mutex<Option<Between>>,
    /// Reading events fails while this is set.
    pub(crate) blind: AtomicBool,
    /// Every call takes this long; those of a store that is stuck never end.
    pub(crate) slowness: Mutex<Slowness>,
    /// The next change of ownership is stored, and the response never arrives.
    pub(crate) mute: AtomicBool,
    /// Acquiring and deleting fail while this is set, and so do appends without a prompt.
    pub(crate) refusing: AtomicBool,
    /// How many queries for more than one event had no limit of bytes.
    pub(crate) unbounded: AtomicUsize,
    /// Events with this text are invalid. After one was refused alone, the store is refusing.
    pub(crate) invalid: Mutex<Option<&'static str>>,
    /// Calls that are refused fail with an error of the database.
    pub(crate) broken: AtomicBool,
    /// What becomes of the response to the next append of a prompt, which is stored.
    pub(crate) prompt_response: Mutex<Response>,
    /// What becomes of the next append of an agent request.
    pub(crate) request_response: Mutex<Response>,
    /// How many appends were refused.
    refused: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slowness {
    None,
    Slow(Duration),
    Stuck,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Response {
    #[default]
    Arrives,
    /// It is stored, and the response does not arrive.
    Lost,
    Hangs,
    /// It is not stored.
    Refused,
}

impl Gated {
    pub(crate) fn new(store: impl SessionStore) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::new(store),
            appending: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
            after_look: Mutex::default(),
            before_acquire: Mutex::default(),
            before_binding: Mutex::default(),
            before_prompt: Mutex::default(),
            after_open: Mutex::default(),
            before_status: Mutex::default(),
            before_suspending: Mutex::default(),
            blind: AtomicBool::new(false),
            slowness: Mutex::new(Slowness::None),
            mute: AtomicBool::new(false),
            refusing: AtomicBool::new(false),
            unbounded: AtomicUsize::new(0),
            invalid: Mutex::default(),
            broken: AtomicBool::new(false),
            prompt_response: Mutex::default(),
            request_response: Mutex::default(),
            refused: AtomicUsize::new(0),
        })
    }

    /// Waits until so many appends were refused.
    pub(crate) async fn refused(&self, count: usize) {
        while self.refused.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How many appends were refused so far.
    pub(crate) fn refusals(&self) -> usize {
        self.refused.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        let slowness = *self.slowness.lock().unwrap();
        match slowness {
            Slowness::None => {}
            Slowness::Slow(time) => tokio::time::sleep(time).await,
            Slowness::Stuck => std::future::pending().await,
        }
    }

    async fn between(&self, hook: &Mutex<Option<Between>>) {
        let between = hook.lock().unwrap().take();
        if let Some(between) = between {
            between().await;
        }
    }

    async fn respond<T>(&self, response: T) -> T {
        if self.mute.swap(false, Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        response
    }

    async fn respond_to(&self, append: Append, response: &Mutex<Response>) -> Result<Appended, StoreError> {
        let response = std::mem::take(&mut *response.lock().unwrap());
        if response == Response::Refused {
            return Err(self.refuse());
        }
        let appended = self.store.append(append).await;
        match response {
            Response::Arrives | Response::Refused => appended,
            Response::Lost => Err(StoreError::Unavailable(Arc::new(std::io::Error::other("lost")))),
            Response::Hangs => std::future::pending().await,
        }
    }

    fn refuse(&self) -> StoreError {
        self.refused.fetch_add(1, Ordering::SeqCst);
        let source = Arc::new(std::io::Error::other("refusing"));
        match self.broken.load(Ordering::SeqCst) {
            true => StoreError::Database(source),
            false => StoreError::Unavailable(source),
        }
    }
}

impl std::fmt::Debug for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gated").finish_non_exhaustive()
    }
}

impl SessionStore for Gated {
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord> {
        Box::pin(async move {
            self.wait().await;
            let created = self.store.create(record, events).await;
            self.respond(created).await
        })
    }
    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>> {
        Box::pin(async move {
            self.wait().await;
            self.store.get(id).await
        })
    }
    fn append(&self, append: Append) -> StoreFuture<'_, Appended> {
        Box::pin(async move {
            self.wait().await;
            if append.patch.agent_session != sandbox_agent_sdk::sessions::store::Change::Keep {
                self.between(&self.before_binding).await;
            }
            if append.patch.status.is_some() {
                self.between(&self.before_status).await;
            }
            let has_prompt = append.events.iter().any(|event| event.kind == StoredEventKind::Prompt);
            if self.refusing.load(Ordering::SeqCst) && !has_prompt {
                return Err(self.refuse());
            }
            if has_prompt {
                self.between(&self.before_prompt).await;
                return self.respond_to(append, &self.prompt_response).await;
            }
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _open = self.appending.lock().await;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if append.events.iter().any(|event| event.kind == StoredEventKind::AgentRequest) {
                return self.respond_to(append, &self.request_response).await;
            }
            if let Some(text) = *self.invalid.lock().unwrap()
                && append.events.iter().any(|event| event.payload.to_string().contains(text))
            {
                self.refusing.store(append.events.len() == 1, Ordering::SeqCst);
                return Err(StoreError::Invalid(text.to_owned()));
            }
            self.store.append(append).await
        })
    }
    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, SessionRecord> {
        Box::pin(async move {
            self.wait().await;
            self.between(&self.before_acquire).await;
            if self.refusing.load(Ordering::SeqCst) {
                return Err(self.refuse());
            }
            let acquired = self.store.acquire(id, acquire).await;
            self.respond(acquired).await
        })
    }
    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord> {
        Box::pin(async move {
            let released = self.store.release(id, fence).await;
            self.respond(released).await
        })
    }
    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents> {
        Box::pin(async move {
            self.wait().await;
            let open = self.store.open(id).await;
            self.between(&self.after_open).await;
            open
        })
    }
    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage> {
        if query.limit > 1 && query.max_bytes.is_none() {
            self.unbounded.fetch_add(1, Ordering::SeqCst);
        }
        if self.blind.load(Ordering::SeqCst) {
            let blind = StoreError::Unavailable(Arc::new(std::io::Error::other("blind")));
            return Box::pin(async { Err(blind) });
        }
        Box::pin(async move {
            self.wait().await;
            self.store.events(query).await
        })
    }
    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage> {
        Box::pin(async move {
            let page = self.store.list(query).await;
            let is_look = query.inactive_before.is_some();
            if is_look && page.as_ref().is_ok_and(|page| !page.records.is_empty()) {
                self.between(&self.after_look).await;
            }
            page
        })
    }
    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64> {
        self.store.count(query)
    }
    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.between(&self.before_suspending).await;
            self.store.suspend(which, now).await
        })
    }
    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        match self.refusing.load(Ordering::SeqCst) {
            true => Box::pin(std::future::ready(Err(self.refuse()))),
            false => self.store.delete(id),
        }
    }
    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool> {
        self.store.delete_unchanged(record)
    }
    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64> {
        self.store.incarnation(endpoint)
    }
    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64> {
        self.store.raise_incarnation(endpoint, from)
    }
    fn scanned_to<'a>(
        &'a self,
        owner: &'a str,
        endpoint: &'a str,
    ) -> StoreFuture<'a, Option<StreamPosition>> {
        self.store.scanned_to(owner, endpoint)
    }
    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()> {
        self.store.advance(scanned_to)
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
