//! Publishes events and holds the state of sessions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

pub(super) use self::decided::warn_undecided;
pub(super) use self::ends::{EndListener, SessionEnd, ended_event};
pub(super) use self::open_request::OpenRequest;
pub(super) use self::pending_call::{Opening, PendingCall};
pub(super) use self::progress::Progress;
use self::state::State;
pub(crate) use self::unused::SessionHandle;
use super::log::LogQueue;
use super::session::TurnState;
use super::stream::{LogEntry, LogRecord, StreamPosition};
use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::client::event::{Hold, Queue};
use crate::client::limits::Limits;
use crate::event::Origin;
use crate::update::Missed;
use crate::{ConnectionState, Event, Events, Update};

mod decided;
mod ends;
#[cfg(test)]
mod interleavings;
mod known;
mod known_prompts;
mod messages;
mod open_request;
mod pending_call;
mod progress;
mod resuming;
mod session_state;
mod state;
#[cfg(test)]
mod tests;
mod turns;
mod unused;

/// Receives every entry of the log, in order, under the lock of the hub. It must not block or use the hub.
pub(crate) trait LogSink: fmt::Debug + Send + Sync {
    /// Receives an entry. Returns a hold if readers must not see it yet. `is_of_turn` is `false` for an update that
    /// does not belong to the running turn of its session.
    fn push(&self, entry: &LogEntry, is_of_turn: bool) -> Option<Hold>;
    /// Returns the hold on the latest entry of a session.
    fn latest_hold(&self, session: &str) -> Option<Hold> {
        let _ = session;
        None
    }
    /// The response to this request came without proof that everything before it on the stream had arrived.
    fn unordered(&self, request_id: &str) {
        let _ = request_id;
    }
    /// The prompt of a session's running turn is sent again, in this session, to which the turn moves.
    fn moved(&self, from: &str, to: &str) {
        let _ = (from, to);
    }
    /// Whether another process responds to the agent requests of a session after this connection has ended.
    fn leaves_requests(&self, session: &str) -> bool {
        let _ = session;
        false
    }
    /// Whether anything reads what is pushed.
    fn is_read(&self) -> bool;
    /// No more entries follow.
    fn end(&self) {}
}

/// A numbered event of the stream. Its position is computed only for logs: the fingerprint costs time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered<'a> {
    pub(crate) offset: u64,
    pub(crate) content: &'a [u8],
}

/// Publishes events and holds the state of sessions. It never waits.
///
/// It outlives connections, so subscriptions continue when the client reconnects.
#[derive(Debug)]
pub(crate) struct Hub {
    budget: usize,
    /// The longest session id that is stored if only the server has named the session.
    longest_id: usize,
    /// Guards subscribers and sessions; held for a look-up and for pushing into queues.
    state: Mutex<State>,
    /// Counts the incarnations of the server's stream.
    incarnation: AtomicU64,
    /// Whether other processes can read the same stream by its event numbers.
    pub(crate) is_numbered: Arc<AtomicBool>,
    /// A logical clock: it orders responses and updates about sessions.
    clock: AtomicU64,
    /// How many calls load a session.
    loads: AtomicUsize,
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
            state: Mutex::new(State::new(limits)),
            incarnation: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            loads: AtomicUsize::new(0),
            is_numbered: Arc::default(),
        }
    }

    /// Creates the queue of a subscription.
    pub(crate) fn event_queue(&self) -> Arc<Queue<Event>> {
        Arc::new(Queue::new(self.budget))
    }

    /// Subscribes to the events of the client.
    pub(crate) fn subscribe(&self) -> Events {
        let queue = self.event_queue();
        self.lock().subscribers.push(Arc::clone(&queue));
        Events::new(queue)
    }

    /// Opens a log of the client, after a position or from now on.
    pub(super) fn open_log(&self, from: Option<StreamPosition>) -> Arc<LogQueue> {
        let queue = Arc::new(LogQueue::new(self.budget, from));
        self.attach(Arc::<LogQueue>::clone(&queue));
        queue
    }

    /// Passes every later entry of the log to this sink.
    pub(crate) fn attach(&self, sink: Arc<dyn LogSink>) {
        self.lock().logs.push(sink);
    }

    /// Whether a log is read.
    pub(super) fn has_logs(&self) -> bool {
        self.lock().logs.iter().any(|log| log.is_read())
    }

    /// Adds an entry that is not an event to the logs.
    pub(super) fn log(&self, record: LogRecord, position: Option<StreamPosition>, origin: Origin) {
        // The event that the entry causes is held until the entry is released: see `State::hold`.
        let _ = self.lock().log(&LogEntry::new(record, position, origin), true);
    }

    /// The response to this request came without proof that everything before it on the stream had arrived.
    pub(super) fn unordered(&self, request_id: &str) {
        self.lock().logs.iter().for_each(|log| log.unordered(request_id));
    }

    /// Whether another process responds to the agent requests of a session after this connection has ended.
    pub(super) fn leaves_requests(&self, session: &str) -> bool {
        self.lock().logs.iter().any(|log| log.leaves_requests(session))
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
        let queue = self.event_queue();
        self.move_subscriptions(&[Arc::clone(&queue)], None, id);
        Events::new(queue)
    }

    /// Moves subscriptions to a session, from another one if they had one. They begin with the stored events.
    pub(crate) fn move_subscriptions(&self, queues: &[Arc<Queue<Event>>], from: Option<&str>, to: &str) {
        fn is_in(list: &[Arc<Queue<Event>>], queue: &Arc<Queue<Event>>) -> bool {
            list.iter().any(|known| Arc::ptr_eq(known, queue))
        }
        let mut state = self.lock();
        let target = &state.session(to).subscribers;
        let moved: Vec<_> = queues.iter().filter(|queue| !is_in(target, queue)).cloned().collect();
        if moved.is_empty() {
            return;
        }
        if let Some(from) = from {
            state.session(from).subscribers.retain(|queue| !is_in(&moved, queue));
        }
        let session = state.session(to);
        let (missed, unread) = session.take_unread();
        for queue in &moved {
            if missed > 0 {
                queue.push(Event::Lagged(missed));
            }
            unread.iter().for_each(|(event, hold)| queue.push_held(event.clone(), hold.clone()));
        }
        session.subscribers.extend(moved);
    }

    /// Collects the history of a session that is about to be loaded. It decides no requests.
    pub(super) fn collect_history(&self, id: &str) -> Arc<Queue<Update>> {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().session(id).histories.push(Arc::clone(&queue));
        queue
    }

    /// Publishes an event, and returns how many readers decide requests.
    pub(crate) fn publish(&self, event: &Event) -> usize {
        self.publish_at(event, None)
    }

    /// Publishes an event that has a position in the stream.
    pub(crate) fn publish_at(&self, event: &Event, at: Option<Numbered<'_>>) -> usize {
        self.publish_in(&mut self.lock(), event, at)
    }

    fn publish_in(&self, state: &mut State, event: &Event, at: Option<Numbered<'_>>) -> usize {
        let mut hold = None;
        if !state.logs.is_empty() {
            let position = at.map(|at| StreamPosition::of(self.incarnation(), at.offset, at.content));
            let is_of_turn = state.is_of_turn(event);
            let logged = state.log(&LogEntry::of_event(event, position), is_of_turn);
            hold = logged.or_else(|| state.hold(event.session_id()));
        }
        state.subscribers.retain(|queue| Arc::strong_count(queue) > 1);
        let mut deciders = 0;
        for queue in &state.subscribers {
            let deciding = queue.is_deciding();
            deciders += usize::from(deciding);
            queue.push_held(event.copy_for(deciding), hold.clone());
        }
        if let Event::UnclaimedRequest(request) = event {
            // The session is followed here only if it is known.
            let session = request.session_id().and_then(|id| state.sessions.get_mut(id));
            if let Some(session) = session {
                session.push(event, 0, hold.as_ref());
            }
            return deciders;
        }
        let Some(id) = event.session_id() else {
            let missed = match event {
                Event::Gap(gap) => Some(Missed::Gap(*gap)),
                Event::Lagged(count) => Some(Missed::Lagged(*count)),
                _ => None,
            };
            for (id, session) in &mut state.sessions {
                deciders = session.push(event, deciders, None);
                if let Some(missed) = missed {
                    session.miss(id, missed);
                }
            }
            return deciders;
        };
        // Most events are of a session that is known.
        let hold = hold.as_ref();
        if let Some(deciders) = state.deliver(id, event, (deciders, hold), self.tick()) {
            return deciders;
        }
        if id.len() <= self.longest_id && state.remembers_unknown() {
            state.known_or_unnamed(id);
            return state.deliver(id, event, (deciders, hold), self.tick()).unwrap_or(deciders);
        }
        deciders
    }

    /// Publishes a change of the connection.
    pub(crate) fn connection(&self, state: ConnectionState) {
        // Under one lock, so that states are published in order.
        let mut sessions = self.lock();
        let before = sessions.connection.replace(state.clone());
        // A stream that is reopened during connecting also reports the connected state.
        if before.as_ref() != Some(&state) {
            self.publish_in(&mut sessions, &Event::Connection(state), None);
        }
    }

    /// Returns the time of the logical clock.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether no turn is running.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().sessions.values().all(|session| *session.turn_state.borrow() == TurnState::Idle)
    }

    /// Ends every subscription, log and turn.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        for queue in state.subscribers.drain(..) {
            queue.end();
        }
        state.logs.drain(..).for_each(|queue| queue.end());
        for session in state.sessions.values_mut() {
            session.subscribers.drain(..).for_each(|queue| queue.end());
            if let Some(turn) = session.turn.take() {
                turn.end();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
