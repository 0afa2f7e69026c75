//! The queue between what happens and the store that keeps it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::writer::Writer;
use super::{NewEvent, SessionStore, StoreError, StoredEventKind};
use crate::Timestamp;
use crate::random::random_id;

#[cfg(test)]
mod tests;
mod writer;

/// How a [`Recorder`] works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a recorder is started with them"]
#[non_exhaustive]
pub struct RecorderOptions {
    /// How many events may wait for the store. 8192 by default.
    pub capacity: usize,
    /// How many bytes these may take, about. 32 MiB by default.
    pub bytes: usize,
    /// How many events are written at once. 512 by default.
    pub batch: usize,
    /// How long a store that fails is tried again before a batch is given up. 30 s by default.
    pub patience: Duration,
}

impl RecorderOptions {
    /// Sets how many events may wait; at least one.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events.max(1);
        self
    }

    /// Sets how many events are written at once; at least one.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events.max(1);
        self
    }

    /// Sets how long a store that fails is tried again.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self { capacity: 8192, bytes: 32 << 20, batch: 512, patience: Duration::from_secs(30) }
    }
}

/// Events that were not stored: the store was too slow for too long, or refused them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unrecorded {
    /// The session whose events they were.
    pub session_id: String,
    /// How many.
    pub count: u64,
    /// Why, if the store said; else the queue was full.
    pub error: Option<StoreError>,
}

type Listener = Box<dyn Fn(Unrecorded) + Send + Sync>;

/// Takes events down without ever waiting, and writes them in batches.
///
/// What does not fit into its queue is counted and told of, and the store gets an event of the kind
/// [`StoredEventKind::Lost`] in its place. Dropping a recorder drops what waits; [`close`](Self::close) writes it.
pub struct Recorder {
    shared: Arc<Shared>,
    /// Owns the one task that writes, which ends with this.
    _writer: JoinSet<()>,
}

struct Shared {
    options: RecorderOptions,
    /// What tells the ids of this recorder's events from those of all others.
    prefix: String,
    /// Guards what waits; held for a push or for taking a batch.
    state: Mutex<State>,
    /// Wakes the writer.
    filled: Notify,
    /// How many events were written, or given up.
    settled: watch::Sender<u64>,
    /// Whom to tell of events that were not stored. It is called on the task that writes alone, and must not wait.
    listener: Listener,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<NewEvent>,
    bytes: usize,
    /// How many events were taken down so far, including what stands for lost ones.
    taken: u64,
    /// How many events of each session were lost since the last one that fitted, and how many of them were not told
    /// of yet.
    lost: BTreeMap<String, (u64, u64)>,
    /// Losses that nobody was told of yet.
    untold: Vec<Unrecorded>,
    /// Why events were lost since somebody last asked.
    failure: Option<StoreError>,
    closed: bool,
}

impl Recorder {
    /// Starts a recorder for a store, on the runtime it is called on.
    pub fn start(store: Arc<dyn SessionStore>, options: RecorderOptions) -> Self {
        Self::start_with(store, options, Box::new(|_| {}))
    }

    /// Starts a recorder that tells somebody of every loss, from the task that writes. The listener must not wait.
    pub fn start_with(store: Arc<dyn SessionStore>, options: RecorderOptions, listener: Listener) -> Self {
        let shared = Arc::new(Shared {
            options,
            prefix: random_id(),
            state: Mutex::default(),
            filled: Notify::new(),
            settled: watch::Sender::new(0),
            listener,
        });
        let mut writer = JoinSet::new();
        writer.spawn(Writer::new(store, Arc::clone(&shared)).run());
        Self { shared, _writer: writer }
    }

    /// Takes down that something happened in a session just now. It never waits.
    pub fn record(&self, session_id: &str, kind: StoredEventKind, payload: serde_json::Value) {
        self.record_sized(session_id, kind, payload, 0);
    }

    /// Takes down something whose size in bytes is known about.
    pub(crate) fn record_sized(
        &self,
        session_id: &str,
        kind: StoredEventKind,
        payload: serde_json::Value,
        size: usize,
    ) {
        let shared = &self.shared;
        {
            let mut state = shared.lock();
            if state.closed {
                return;
            }
            let full = state.waiting.len() >= shared.options.capacity
                || (state.bytes > 0 && state.bytes + size > shared.options.bytes);
            if full {
                let (count, untold) = state.lost.entry(session_id.to_owned()).or_default();
                (*count, *untold) = (*count + 1, *untold + 1);
            } else {
                state.mark_lost(session_id, &shared.prefix);
                let id = state.next_id(&shared.prefix);
                state.bytes += size;
                state.waiting.push_back(NewEvent::new(id, session_id, now(), kind, payload));
            }
        }
        shared.filled.notify_one();
    }

    /// Waits until everything that was taken down before is in the store.
    ///
    /// # Errors
    /// Why something was lost since the last time this was asked: [`StoreError::Closed`] after the end, else what the
    /// store said. Events that did not fit into the queue are no error here; they were told of in their place.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let goal = {
            let mut state = self.shared.lock();
            state.mark_all_lost(&self.shared.prefix);
            state.taken
        };
        self.shared.filled.notify_one();
        let mut settled = self.shared.settled.subscribe();
        if settled.wait_for(|settled| *settled >= goal).await.is_err() {
            return Err(StoreError::Closed);
        }
        match self.shared.lock().failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Takes nothing down any more, and waits until everything that was is in the store.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn close(&self) -> Result<(), StoreError> {
        let flushed = self.flush().await;
        self.shared.lock().closed = true;
        // What came between the two.
        let rest = self.flush().await;
        flushed.and(rest)
    }

    /// How many events wait for the store.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next batch, if there is any.
    fn take(&self) -> Vec<NewEvent> {
        let mut state = self.lock();
        let untold = std::mem::take(&mut state.untold);
        let count = state.waiting.len().min(self.options.batch);
        let batch: Vec<NewEvent> = state.waiting.drain(..count).collect();
        if state.waiting.is_empty() {
            state.bytes = 0;
        }
        drop(state);
        untold.into_iter().for_each(&self.listener);
        batch
    }

    /// Events are written, or given up.
    fn settle(&self, count: usize) {
        self.settled.send_modify(|settled| *settled += count as u64);
    }

    /// These are given up.
    fn give_up(&self, events: &[NewEvent], error: &StoreError) {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for event in events {
            *counts.entry(&event.session_id).or_default() += 1;
        }
        {
            let mut state = self.lock();
            state.failure = Some(error.clone());
            // Their sessions get an event in their place, as soon as the store takes one again. Those of sessions
            // that are gone would only be refused again.
            if !matches!(error, StoreError::NotFound { .. }) {
                for (session, count) in &counts {
                    state.lost.entry((*session).to_owned()).or_default().0 += count;
                }
            }
        }
        for (session, count) in counts {
            tracing::warn!(session, count, %error, "events were not stored");
            let session_id = session.to_owned();
            (self.listener)(Unrecorded { session_id, count, error: Some(error.clone()) });
        }
    }
}

impl State {
    fn next_id(&mut self, prefix: &str) -> String {
        self.taken += 1;
        format!("{prefix}-{}", self.taken)
    }

    /// Puts an event in the place of those of a session that were lost, if there were any.
    fn mark_lost(&mut self, session_id: &str, prefix: &str) {
        let Some((count, untold)) = self.lost.remove(session_id) else { return };
        let id = self.next_id(prefix);
        let payload = serde_json::json!({ "count": count });
        self.waiting.push_back(NewEvent::new(id, session_id, now(), StoredEventKind::Lost, payload));
        if untold > 0 {
            let session_id = session_id.to_owned();
            self.untold.push(Unrecorded { session_id, count: untold, error: None });
        }
    }

    fn mark_all_lost(&mut self, prefix: &str) {
        let sessions: Vec<String> = self.lost.keys().cloned().collect();
        sessions.iter().for_each(|session| self.mark_lost(session, prefix));
    }
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}
