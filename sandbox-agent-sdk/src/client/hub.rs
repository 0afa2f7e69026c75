//! Publishes events and holds the state of sessions.

use std::fmt;
#[cfg(feature = "sessions")]
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use self::book::SessionBook;
use self::books::State;
pub(super) use self::ends::{EndListener, ended_event};
pub(super) use self::open_request::OpenRequest;
pub(super) use self::pending_call::{Opening, PendingCall};
pub(super) use self::progress::Progress;
use super::log::LogQueue;
#[cfg(feature = "sessions")]
use super::session::TurnState;
use super::stream::{LogEntry, LogRecord, StreamPosition};
use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::client::event::Queue;
use crate::client::limits::Limits;
use crate::client::snapshot::Patch;
use crate::event::Origin;
use crate::update::Missed;
use crate::usage::UsageBook;
use crate::{ConnectionState, Error, Event, Events, TurnOutcome, Update};

mod book;
mod books;
mod ends;
#[cfg(test)]
mod interleavings;
mod known;
mod open_request;
mod pending_call;
mod progress;
mod taking_up;
#[cfg(test)]
mod tests;
mod turns;

/// Sees everything before anybody else does, and while nothing else can happen. It must not wait, nor use the hub.
pub(crate) trait Observer: fmt::Debug + Send + Sync {
    /// Something happened; with its place in the stream, where every client of the server finds it in the same one.
    fn happened(&self, event: &Event, place: Option<&str>);
    /// A turn is over, and so is everything it reported.
    fn turn_ended(&self, session: &str, outcome: &Result<TurnOutcome, Error>);
    /// An answer tells of a session.
    fn answered(&self, session: &str, patch: &Patch);
    /// What an agent asked in a session was answered.
    fn replied(&self, session: &str, payload: Value);
    /// The stream had something in this place that is not told.
    fn passed(&self, place: &str);
}

/// Where an event stands in the stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct At<'a> {
    pub(crate) position: Option<Numbered<'a>>,
    /// What the observer identifies it by.
    pub(crate) place: Option<&'a str>,
}

/// A numbered event of the stream. Its position is computed only for logs: the fingerprint costs time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered<'a> {
    pub(crate) offset: u64,
    pub(crate) content: &'a [u8],
}

/// Publishes events and holds the state of sessions. Nothing here waits.
///
/// It outlives connections, so subscriptions continue when the client reconnects.
#[derive(Debug)]
pub(crate) struct Hub {
    budget: usize,
    /// The longest id of a session that is stored because the server names it.
    longest_id: usize,
    /// Guards subscribers and sessions; held for a look-up and for pushing into queues.
    state: Mutex<State>,
    /// Counts the incarnations of the server's stream.
    incarnation: AtomicU64,
    /// A logical clock: it orders responses and updates about sessions.
    clock: AtomicU64,
    /// The usage of sessions.
    pub(crate) usage: UsageBook,
    /// Who keeps what happens, if somebody does.
    observer: OnceLock<Arc<dyn Observer>>,
}

impl Hub {
    #[cfg(test)]
    pub(crate) fn new(budget: usize) -> Self {
        Self::with_limits(budget, &Limits::default())
    }

    pub(crate) fn with_limits(budget: usize, limits: &Limits) -> Self {
        Self {
            budget,
            longest_id: limits.session_id,
            state: Mutex::default(),
            incarnation: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            usage: UsageBook::new(),
            observer: OnceLock::new(),
        }
    }

    /// Subscribes to the events of the client.
    pub(crate) fn subscribe(&self) -> Events {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().subscribers.push(Arc::clone(&queue));
        Events::new(queue)
    }

    /// Opens a log of the client.
    pub(super) fn open_log(&self) -> Arc<LogQueue> {
        let queue = Arc::new(LogQueue::new(self.budget));
        self.lock().logs.push(Arc::clone(&queue));
        queue
    }

    /// Whether a log is read.
    pub(super) fn has_logs(&self) -> bool {
        self.lock().logs.iter().any(LogQueue::is_read)
    }

    /// Adds an entry to the logs that is not an event.
    pub(super) fn log(&self, record: LogRecord, position: Option<StreamPosition>, origin: Origin) {
        self.lock().log(&LogEntry::new(record, position, origin));
    }

    /// Which incarnation of the server's stream is read.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    /// Another incarnation of the stream begins.
    pub(super) fn next_incarnation(&self) {
        self.incarnation.fetch_add(1, Ordering::AcqRel);
    }

    /// Subscribes to the events of a session, beginning with the stored ones.
    pub(crate) fn subscribe_session(&self, id: &str) -> Events {
        let queue = Arc::new(Queue::new(self.budget));
        let mut state = self.lock();
        let book = state.book(id);
        let (missed, backlog) = book.take_backlog();
        if missed > 0 {
            queue.push(Event::Lagged(missed));
        }
        for event in backlog {
            queue.push(event);
        }
        book.subscribers.push(Arc::clone(&queue));
        Events::new(queue)
    }

    #[cfg(feature = "sessions")]
    /// Has subscribers of sessions go on with another one, that took the place of theirs.
    pub(crate) fn follow(&self, followers: &[(Weak<Queue<Event>>, String)], to: &str) {
        let mut state = self.lock();
        let mut moved = Vec::new();
        for (follower, from) in followers {
            let is_follower = |queue: &mut Arc<Queue<Event>>| follower.as_ptr() == Arc::as_ptr(queue);
            moved.extend(state.book(from).subscribers.extract_if(.., is_follower));
        }
        if moved.is_empty() {
            return;
        }
        let book = state.book(to);
        let (missed, backlog) = book.take_backlog();
        for queue in &moved {
            if missed > 0 {
                queue.push(Event::Lagged(missed));
            }
            backlog.iter().for_each(|event| queue.push(event.clone()));
        }
        book.subscribers.extend(moved);
    }

    /// Collects the history of a session that is about to be loaded. It decides no requests.
    pub(super) fn collect_history(&self, id: &str) -> Arc<Queue<Update>> {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().book(id).histories.push(Arc::clone(&queue));
        queue
    }

    /// Publishes an event, and returns how many readers decide requests.
    pub(crate) fn publish(&self, event: &Event) -> usize {
        self.publish_at(event, At::default())
    }

    /// Something happened that nobody has to hear of but whoever sees everything.
    pub(super) fn note(&self, event: &Event, place: Option<&str>) {
        let _state = self.lock();
        if let Some(observer) = self.observer.get() {
            observer.happened(event, place);
        }
    }

    /// What an agent asked in a session was answered. This may be said while the hub gives out events.
    pub(super) fn replied(&self, session: &str, payload: Value) {
        if let Some(observer) = self.observer.get() {
            observer.replied(session, payload);
        }
    }

    /// Publishes an event that has a position in the stream.
    pub(crate) fn publish_at(&self, event: &Event, at: At<'_>) -> usize {
        self.publish_in(&mut self.lock(), event, at)
    }

    fn publish_in(&self, state: &mut State, event: &Event, at: At<'_>) -> usize {
        if let Some(observer) = self.observer.get() {
            observer.happened(event, at.place);
        }
        if !state.logs.is_empty() {
            let position =
                at.position.map(|at| StreamPosition::of(self.incarnation(), at.offset, at.content));
            state.log(&LogEntry::of_event(event, position));
        }
        state.subscribers.retain(|queue| Arc::strong_count(queue) > 1);
        let mut deciders = 0;
        for queue in &state.subscribers {
            let deciding = queue.is_deciding();
            deciders += usize::from(deciding);
            queue.push(event.copy_for(deciding));
        }
        if let Event::UnclaimedRequest(request) = event {
            // The session is followed here only if it is known.
            let book = request.session_id().and_then(|id| state.sessions.get_mut(id));
            if let Some(book) = book {
                book.push(event, 0);
            }
            return deciders;
        }
        let Some(id) = event.session_id() else {
            let missed = match event {
                Event::Gap(gap) => Some(Missed::Gap(*gap)),
                Event::Lagged(count) => Some(Missed::Lagged(*count)),
                Event::Malformed { lost: true, .. } => Some(Missed::Malformed),
                _ => None,
            };
            for (id, book) in &mut state.sessions {
                deciders = book.push(event, deciders);
                if let Some(missed) = missed {
                    book.miss(id, missed);
                }
            }
            return deciders;
        };
        // Most events are of a session that is known.
        if let Some(book) = state.sessions.get_mut(id) {
            return self.publish_in(book, event, deciders);
        }
        if id.len() > self.longest_id || !state.remembers_unknown() {
            return deciders;
        }
        self.publish_in(state.known_or_unnamed(id), event, deciders)
    }

    /// Publishes an event to the readers of its session.
    fn publish_in(&self, book: &mut SessionBook, event: &Event, deciders: usize) -> usize {
        let deciders = book.push(event, deciders);
        book.learn(event, self.tick());
        if let (Event::Update(update), true) = (event, book.is_named) {
            self.usage.observe(update);
        }
        deciders
    }

    /// Whether an observer sees everything.
    pub(super) fn is_observed(&self) -> bool {
        self.observer.get().is_some()
    }

    #[cfg(feature = "sessions")]
    /// Has somebody see everything from now on. There is one such observer; a second one is not taken.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        // Whoever is refused shares the observer that is there.
        let _ = self.observer.set(observer);
    }

    /// Publishes a change of the connection.
    pub(crate) fn connection(&self, state: ConnectionState) {
        // Under one lock, so that the state that is published last is the last one.
        let mut books = self.lock();
        let before = books.connection.replace(state.clone());
        // A stream that is reopened while the connection is made reports that it is connected as well.
        if before.as_ref() != Some(&state) {
            self.publish_in(&mut books, &Event::Connection(state), At::default());
        }
    }

    /// Returns the time of the logical clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    #[cfg(feature = "sessions")]
    /// Whether no turn is running.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().sessions.values().all(|book| *book.turn_state.borrow() == TurnState::Idle)
    }

    /// Ends every subscription, log and turn.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        for queue in state.subscribers.drain(..) {
            queue.end();
        }
        state.logs.drain(..).for_each(|queue| queue.end());
        for book in state.sessions.values_mut() {
            book.subscribers.drain(..).for_each(|queue| queue.end());
            if let Some(turn) = book.turn.take() {
                turn.end();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
