//! Who listens, which turn runs, which session has ended.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

use self::book::SessionBook;
use super::session::TurnState;
use crate::event::Queue;
use crate::snapshot::{Patch, SnapshotCell};
use crate::{
    ConnectionState, Error, Event, Events, Missed, Origin, SessionEnded, TerminationInfo, TerminationReport,
    TurnOutcome, Update,
};

mod book;
#[cfg(test)]
mod tests;

/// How many sessions are remembered that this client has never named itself.
const STRANGERS: usize = 1024;
/// From how many sessions on those are forgotten that nothing happens in and nobody watches.
const BOOKS: usize = 4096;

/// Sees everything before anybody else does, and while nothing else can happen. It must not wait, nor use the hub.
pub(crate) trait Observer: fmt::Debug + Send + Sync {
    /// Something happened.
    fn happened(&self, event: &Event);
    /// A turn is over, and so is everything it reported.
    fn turn_ended(&self, session: &str, outcome: &Result<TurnOutcome, Error>);
}

/// Gives events to whoever listens and keeps the books on sessions. Nothing here waits.
///
/// It outlives connections, so that subscribers hear of disconnecting and connecting again.
#[derive(Debug)]
pub(crate) struct Hub {
    budget: usize,
    /// Guards subscribers and sessions; held for a look-up and for pushing into queues.
    state: Mutex<State>,
    /// Counts what is told of sessions, so that what is newer can be told from what is older.
    clock: AtomicU64,
    /// Who keeps what happens, if somebody does.
    observer: OnceLock<Arc<dyn Observer>>,
}

#[derive(Debug, Default)]
struct State {
    subscribers: Vec<Arc<Queue<Event>>>,
    sessions: HashMap<Arc<str>, SessionBook>,
    strangers: usize,
    /// How many sessions there may be before the next look at which can be forgotten.
    room: usize,
}

impl Hub {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, state: Mutex::default(), clock: AtomicU64::new(0), observer: OnceLock::new() }
    }

    /// The events of the client from now on.
    pub(crate) fn subscribe(&self) -> Events {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().subscribers.push(Arc::clone(&queue));
        Events::new(queue)
    }

    /// The events of one session: what came while nobody listened, and what comes from now on.
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

    /// Gives an event to everybody whom it concerns, and says to how many.
    pub(crate) fn publish(&self, event: &Event) -> usize {
        let mut state = self.lock();
        if let Some(observer) = self.observer.get() {
            observer.happened(event);
        }
        state.subscribers.retain(|queue| Arc::strong_count(queue) > 1);
        for queue in &state.subscribers {
            queue.push(event.clone());
        }
        let mut listeners = state.subscribers.len();
        let Some(id) = event.session_id() else {
            let missed = match event {
                Event::Gap(gap) => Some(Missed::Gap(*gap)),
                Event::Lagged(count) => Some(Missed::Lagged(*count)),
                _ => None,
            };
            for (id, book) in &mut state.sessions {
                book.push(event);
                listeners += book.subscribers.len();
                if let (Some(turn), Some(missed)) = (&book.turn, missed) {
                    turn.push(Update::missed(id, missed));
                }
            }
            return listeners;
        };
        if let Some(book) = state.known_or_stranger(id) {
            book.push(event);
            book.learn(event, self.tick());
            listeners += book.subscribers.len();
        }
        listeners
    }

    /// Has somebody see everything from now on. There is one such observer; a second one is not taken.
    pub(crate) fn observe(&self, observer: Arc<dyn Observer>) {
        // Whoever is refused shares the observer that is there.
        let _ = self.observer.set(observer);
    }

    /// Puts events back for the next subscriber of a session, before what came since.
    pub(crate) fn put_back(&self, id: &str, events: Vec<Event>) {
        let mut state = self.lock();
        let book = state.book(id);
        let (missed, since) = book.take_backlog();
        book.missed = missed;
        for event in events.into_iter().chain(since) {
            book.keep(event);
        }
    }

    /// Tells of a change of the connection.
    pub(crate) fn connection(&self, state: ConnectionState) {
        self.publish(&Event::Connection(state));
    }

    /// This client has made the session, or names it.
    pub(crate) fn adopt(&self, id: &str) -> Arc<SnapshotCell> {
        Arc::clone(&self.lock().book(id).snapshot)
    }

    /// The time by this hub's own clock: what is told from now on is told later.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Takes in what the answer to a call tells of a session; `began` is when the call did.
    pub(crate) fn answered(&self, id: &str, patch: Patch, began: u64) {
        self.adopt(id).answer(patch, began, self.tick());
    }

    /// Takes in what the answer tells that made the session.
    pub(crate) fn begun(&self, id: &str, patch: Patch, began: u64) {
        self.adopt(id).begin(patch, began, self.tick());
    }

    /// The session belongs to this agent.
    pub(crate) fn assign(&self, id: &str, agent: &str) {
        self.lock().book(id).agent = Some(agent.into());
    }

    /// The agent a session belongs to, if this client knows.
    pub(crate) fn agent_of(&self, id: &str) -> Option<Arc<str>> {
        self.lock().sessions.get(id)?.agent.clone()
    }

    /// The session has answered a call, so it is there.
    pub(crate) fn confirm(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        book.open = book.ended.borrow().is_none();
    }

    /// Nobody holds the session, so its end is nobody's concern.
    pub(crate) fn disown(&self, id: &str) {
        self.lock().book(id).open = false;
    }

    /// Whether this client knows that the session is there, or was.
    pub(crate) fn is_there(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|book| book.open || book.ended.borrow().is_some())
    }

    /// Whether this client has made or named the session.
    pub(crate) fn is_known(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|book| book.ours)
    }

    /// The session is active again: it was made, loaded or resumed.
    pub(crate) fn revive(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        book.stop_requested = false;
        book.open = true;
        book.ended.send_replace(None);
    }

    /// This client is about to ask for the end of a session.
    pub(crate) fn request_stop(&self, id: &str) {
        self.lock().book(id).stop_requested = true;
    }

    /// The wish for the end of a session was not granted.
    pub(crate) fn withdraw_stop(&self, id: &str) {
        self.lock().book(id).stop_requested = false;
    }

    /// How a session ended, if it has.
    pub(crate) fn ended(&self, id: &str) -> Option<TerminationInfo> {
        self.lock().sessions.get(id).and_then(|book| book.ended.borrow().clone())
    }

    /// Hears of the end of a session.
    pub(crate) fn watch_end(&self, id: &str) -> watch::Receiver<Option<TerminationInfo>> {
        self.lock().book(id).ended.subscribe()
    }

    /// Ends one session. The first end counts, and is the only one that is told of.
    pub(crate) fn end_session(&self, id: &str, report: TerminationReport) -> TerminationInfo {
        let info = {
            let mut state = self.lock();
            let Some(book) = state.known_or_stranger(id) else { return report.into_info() };
            if let Some(info) = &*book.ended.borrow() {
                return info.clone();
            }
            let requested = book.stop_requested;
            let report = if requested { report.merge(TerminationReport::requested()) } else { report };
            let info = report.into_info();
            book.ended.send_replace(Some(info.clone()));
            book.open = false;
            info
        };
        self.publish(&ended_event(id, &info, Origin::Live));
        info
    }

    /// Ends every session of this client that is there or that a call waits for, as all sessions of an agent do that
    /// is gone. One that was only named, and may never have been, does not end.
    pub(crate) fn end_all(&self, report: &TerminationReport) {
        let mut ids: Vec<Arc<str>> = {
            let state = self.lock();
            let there = |book: &SessionBook| book.open || book.is_busy();
            let ends = |book: &SessionBook| book.ours && there(book) && book.ended.borrow().is_none();
            let ours = state.sessions.iter().filter(|(_, book)| ends(book));
            ours.map(|(id, _)| Arc::clone(id)).collect()
        };
        ids.sort();
        for id in ids {
            self.end_session(&id, report.clone());
        }
    }

    /// Starts a turn; `None` if one is running.
    pub(crate) fn begin_turn(&self, id: &str) -> Option<Arc<Queue<Update>>> {
        let mut state = self.lock();
        let book = state.book(id);
        if *book.turn_state.borrow() != TurnState::Idle {
            return None;
        }
        let queue = Arc::new(Queue::new(self.budget));
        book.turn = Some(Arc::clone(&queue));
        book.turn_state.send_replace(TurnState::Running);
        Some(queue)
    }

    /// The turn is being cancelled; what it still reports goes where it went before.
    pub(crate) fn cancelling_turn(&self, id: &str) {
        let mut state = self.lock();
        let running = |turn: &mut TurnState| {
            let running = *turn == TurnState::Running;
            if running {
                *turn = TurnState::Cancelling;
            }
            running
        };
        state.book(id).turn_state.send_if_modified(running);
    }

    /// Nobody reads the turn any more, but it goes on.
    pub(crate) fn leave_turn(&self, id: &str) {
        self.lock().book(id).turn = None;
    }

    /// Everything that a turn reported was given out, and this is how it ended.
    pub(crate) fn turn_outcome(&self, id: &str, outcome: &Result<TurnOutcome, Error>) {
        let _quiet = self.lock();
        if let Some(observer) = self.observer.get() {
            observer.turn_ended(id, outcome);
        }
    }

    /// The turn is over: its queue ends, and the next one may begin.
    pub(crate) fn end_turn(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        if let Some(queue) = book.turn.take() {
            queue.end();
        }
        book.turn_state.send_replace(TurnState::Idle);
    }

    /// What a session is doing, as it changes.
    pub(crate) fn watch_turn(&self, id: &str) -> watch::Receiver<TurnState> {
        self.lock().book(id).turn_state.subscribe()
    }

    /// Nothing will happen any more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        for queue in state.subscribers.drain(..) {
            queue.end();
        }
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

impl State {
    /// Forgets sessions that nothing happens in and nobody watches, once there are many. One that is named again
    /// gets a new book; how it ended is the server's to tell then.
    fn make_room(&mut self) {
        if self.sessions.len() < self.room.max(BOOKS) {
            return;
        }
        self.sessions.retain(|_, book| book.is_watched());
        self.strangers = self.sessions.values().filter(|book| !book.ours).count();
        self.room = 2 * self.sessions.len();
    }

    /// The book of a session that this client names.
    fn book(&mut self, id: &str) -> &mut SessionBook {
        if !self.sessions.contains_key(id) {
            self.make_room();
        }
        let book = self.sessions.entry(id.into()).or_insert_with(|| SessionBook::new(true));
        if !book.ours {
            book.ours = true;
            self.strangers -= 1;
        }
        book
    }

    /// The book of a session that the server names: the answer that tells this client of it may still be on its way.
    fn known_or_stranger(&mut self, id: &str) -> Option<&mut SessionBook> {
        if !self.sessions.contains_key(id) {
            self.make_room();
            if self.strangers >= STRANGERS {
                return None;
            }
            self.strangers += 1;
            self.sessions.insert(id.into(), SessionBook::new(false));
        }
        self.sessions.get_mut(id)
    }
}

pub(crate) fn ended_event(id: &str, info: &TerminationInfo, origin: Origin) -> Event {
    Event::SessionEnded(Box::new(SessionEnded {
        session_id: id.to_owned(),
        termination: info.clone(),
        origin,
    }))
}
