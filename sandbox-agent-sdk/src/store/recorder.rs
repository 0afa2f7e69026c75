//! The queue between what happens and the store that keeps it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use self::queue::{Entry, Queue};
use self::writer::Writer;
use super::{SessionRecord, SessionStore, StoreError, StoredEventKind};
use crate::client::random::random_id;
use crate::session::Timestamp;

mod claims;
mod losses;
mod options;
mod queue;
#[cfg(test)]
mod tests;
mod writer;

pub(crate) use claims::{life_of, number_of, place_of};
pub use options::RecorderOptions;
pub(crate) use options::deadline_after;

/// Events that were not stored, or are not known to be: the store was too slow for too long, refused them, or was given
/// no time to take them.
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
type TakenListener = Box<dyn Fn(&SessionRecord) -> Option<u64> + Send + Sync>;
type GoneListener = Box<dyn Fn(&str, Timestamp) + Send + Sync>;

/// Whom a recorder tells what it finds out. None of them may wait.
pub(crate) struct Listeners {
    /// Is told of events that were not stored.
    pub(crate) lost: Listener,
    /// Is told of sessions that somebody else has taken up, and says up to which number of the stream what was seen here
    /// is this program's to store; without one, all of it is.
    pub(crate) taken: TakenListener,
    /// Is told of sessions that are not there any more, by their id and when they were made.
    pub(crate) gone: GoneListener,
}

/// Takes events down without ever waiting, and writes them in batches.
///
/// What does not fit into its queue is counted and told of at once, whatever the store is doing, and the store gets an
/// event of the kind [`StoredEventKind::Lost`] in its place. [`close`](Self::close) writes what waits; dropping a
/// recorder gives it up, which is told of as well.
pub struct Recorder {
    shared: Arc<Shared>,
    /// Owns the task that writes and the one that tells, which end with this.
    _tasks: JoinSet<()>,
}

struct Shared {
    /// Guards what waits; held for a push or for taking a batch.
    queue: Mutex<Queue>,
    /// How long a store that fails is tried again.
    patience: Duration,
    /// Wakes the writer.
    filled: Notify,
    /// Wakes the task that tells.
    lost: Notify,
    /// How many events were written, or given up.
    settled: watch::Sender<u64>,
    listeners: Listeners,
}

impl Recorder {
    /// Starts a recorder for a store, on the runtime it is called on.
    pub fn start(store: Arc<dyn SessionStore>, options: RecorderOptions) -> Self {
        Self::start_with(store, options, Box::new(|_| {}))
    }

    /// Starts a recorder that tells somebody of every loss, from a task that does nothing else. The listener must not
    /// wait.
    pub fn start_with(store: Arc<dyn SessionStore>, options: RecorderOptions, listener: Listener) -> Self {
        let listeners = Listeners { lost: listener, taken: Box::new(|_| None), gone: Box::new(|_, _| ()) };
        Self::start_telling(store, options, listeners)
    }

    /// Starts a recorder that tells, besides, what became of sessions.
    pub(crate) fn start_telling(
        store: Arc<dyn SessionStore>,
        options: RecorderOptions,
        listeners: Listeners,
    ) -> Self {
        let shared = Arc::new(Shared {
            patience: options.patience,
            queue: Mutex::new(Queue::new(options, random_id())),
            filled: Notify::new(),
            lost: Notify::new(),
            settled: watch::Sender::new(0),
            listeners,
        });
        let mut tasks = JoinSet::new();
        let ending = Ending(Arc::clone(&shared));
        let writer = Writer::new(store, Arc::clone(&shared));
        tasks.spawn(async move {
            let _ending = ending;
            writer.run().await;
        });
        let telling = Arc::clone(&shared);
        // The writer may wait for a store that stands still, so it cannot be the one who tells.
        tasks.spawn(async move {
            loop {
                telling.lost.notified().await;
                telling.tell();
            }
        });
        Self { shared, _tasks: tasks }
    }

    /// What is taken down of this session from now on happened in this one: if it is deleted, one that is made of the
    /// same id later gets nothing of it. Without this an event goes to whichever session has the id when it is written.
    pub fn know(&self, record: &SessionRecord) {
        self.shared.lock().know(&record.id, record.created_at);
    }

    /// This program deletes a session: what is left of it is not missed. `false` if it does not after all.
    pub(crate) fn delete(&self, session_id: &str, is_deleted: bool) {
        self.shared.lock().delete(session_id, is_deleted);
    }

    /// Takes down that something happened in a session just now. It never waits.
    pub fn record(&self, session_id: &str, kind: StoredEventKind, payload: serde_json::Value) {
        self.record_at(session_id, kind, payload, None);
    }

    /// This program has taken a session up: what happens in it is written under this epoch, behind this index.
    pub(crate) fn claim(&self, session_id: &str, epoch: u64, since: u64) {
        self.shared.lock().claims.insert(session_id, epoch, since);
    }

    /// This program has let go of a session.
    pub(crate) fn disclaim(&self, session_id: &str) {
        self.shared.lock().claims.remove(session_id);
    }

    /// The server began to count anew.
    pub(crate) fn restarted(&self) {
        self.shared.lock().claims.restarted();
    }

    /// Takes something down with its place in the server's stream, which every program that sees it knows it by.
    pub(crate) fn record_at(
        &self,
        session_id: &str,
        kind: StoredEventKind,
        payload: serde_json::Value,
        place: Option<&str>,
    ) {
        let is_loss = {
            let mut queue = self.shared.lock();
            queue.push(session_id, now(), kind, payload, place);
            queue.has_untold()
        };
        self.shared.filled.notify_one();
        if is_loss {
            self.shared.lost.notify_one();
        }
    }

    /// Waits until everything that was taken down before is in the store.
    ///
    /// # Errors
    /// [`StoreError::NotStored`] with everything that the store has not taken since the last time that this told of it.
    /// Events that did not fit into the queue are no error here; they were told of in their place.
    pub async fn flush(&self) -> Result<(), StoreError> {
        let look = self.shared.lock().failures.begin(None);
        self.settle().await;
        self.shared.lock().failures.end(&look)
    }

    /// Waits until everything that was taken down before is in the store, and tells what became of one session. What
    /// became of others is left for those who ask for it.
    ///
    /// # Errors
    /// [`StoreError::NotStored`] with what the store has not taken of this session since the last time that this told
    /// of it.
    pub async fn flush_session(&self, session_id: &str) -> Result<(), StoreError> {
        let look = self.shared.lock().failures.begin(Some(session_id));
        self.settle().await;
        self.shared.lock().failures.end(&look)
    }

    /// Waits until everything that was taken down before is in the store, or was given up. Nothing is told.
    pub(crate) async fn settle(&self) {
        let goal = {
            let mut queue = self.shared.lock();
            queue.mark_all(now());
            queue.taken
        };
        self.shared.filled.notify_one();
        // It fails only without a sender, which is held here.
        let _ = self.shared.settled.subscribe().wait_for(|settled| *settled >= goal).await;
    }

    /// Takes nothing down any more, and waits until everything that was is in the store. What comes later is counted and
    /// told of.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn close(&self) -> Result<(), StoreError> {
        let look = {
            let mut queue = self.shared.lock();
            queue.closed = true;
            queue.failures.begin(None)
        };
        self.settle().await;
        self.shared.lock().failures.end(&look)
    }

    /// How many events wait for the store.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().len()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next batch, if there is any.
    fn take(&self) -> Vec<Entry> {
        self.lock().take(now())
    }

    fn written(&self, entries: &[Entry]) {
        self.lock().written(entries);
    }

    fn give_up(&self, entries: &[Entry], error: &StoreError) {
        self.lock().give_up(entries, error);
        self.lost.notify_one();
        if matches!(error, StoreError::NotFound { .. }) {
            for (id, made_at) in entries.iter().map(Entry::key).collect::<BTreeSet<_>>() {
                made_at.into_iter().for_each(|made_at| (self.listeners.gone)(&id, made_at));
            }
        }
    }

    /// Events are written, or given up.
    fn settle(&self, count: usize) {
        self.settled.send_modify(|settled| *settled += count as u64);
    }

    /// Tells of every loss that was not told of yet.
    fn tell(&self) {
        let untold = self.lock().untold();
        untold.into_iter().for_each(&self.listeners.lost);
    }
}

/// The end of the task that writes, in whatever way: nobody waits for it any more, and what it leaves is told of.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().abandon();
        self.0.settled.send_replace(u64::MAX);
        self.0.tell();
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
        f.debug_struct("Shared").field("patience", &self.patience).finish_non_exhaustive()
    }
}
