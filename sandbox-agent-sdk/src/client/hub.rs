//! Who listens, which turn runs, which session has ended.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;

use self::book::SessionBook;
use self::books::State;
pub(super) use self::open_request::OpenRequest;
pub(super) use self::pending_call::PendingCall;
pub(super) use self::progress::Progress;
use self::taking_up::TakingUp;
use super::log::LogQueue;
use super::session::TurnState;
use super::stream::{LogEntry, LogRecord, StreamPosition};
use super::turn::TurnItem;
use crate::client::event::{Class, Queue};
use crate::client::limits::Limits;
use crate::client::snapshot::{Patch, SnapshotCell};
use crate::event::{Origin, SessionEnded};
use crate::termination::TerminationReport;
use crate::update::{Missed, ToolCall};
use crate::usage::UsageBook;
use crate::{
    ConnectionState, DropPolicy, Error, Event, Events, OpenSession, TerminationInfo, TurnOutcome, Update,
};

mod book;
mod books;
mod open_request;
mod pending_call;
mod progress;
mod taking_up;
#[cfg(test)]
mod tests;

/// Receives every entry of the log, in order, while nothing else can happen. It must not block, nor use the hub.
pub(crate) trait LogSink: fmt::Debug + Send + Sync {
    /// Something happened.
    fn push(&self, entry: &LogEntry);
    /// Whether anything reads what is pushed.
    fn is_read(&self) -> bool;
    /// Nothing will be pushed any more.
    fn end(&self) {}
}

/// Hears that nobody is there any more in a session, while nothing of the hub is held. It must not wait.
pub(super) trait EndListener: fmt::Debug + Send + Sync {
    /// The session has ended, and nobody is taking it up.
    fn session_ended(&self, id: &str);
}

/// Gives events to whoever listens and keeps the books on sessions. Nothing here waits.
///
/// It outlives connections, so that subscribers hear of disconnecting and connecting again.
#[derive(Debug)]
pub(crate) struct Hub {
    budget: usize,
    /// The longest id of a session that is remembered because the server names it.
    longest_id: usize,
    /// Guards subscribers and sessions; held for a look-up and for pushing into queues.
    state: Mutex<State>,
    /// Counts the incarnations of the server's stream.
    incarnation: AtomicU64,
    /// Whether other clients see the same stream.
    is_shared: Arc<AtomicBool>,
    /// Counts what is told of sessions, so that what is newer can be told from what is older.
    clock: AtomicU64,
    /// What sessions use.
    pub(crate) usage: UsageBook,
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
            is_shared: Arc::default(),
            clock: AtomicU64::new(0),
            usage: UsageBook::new(),
        }
    }

    /// The events of the client from now on.
    pub(crate) fn subscribe(&self) -> Events {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().subscribers.push(Arc::clone(&queue));
        Events::new(queue)
    }

    /// The log of the client from now on.
    pub(super) fn open_log(&self) -> Arc<LogQueue> {
        let queue = Arc::new(LogQueue::new(self.budget));
        self.attach(Arc::<LogQueue>::clone(&queue));
        queue
    }

    /// Gives every entry of the log to this sink from now on. Returns the last position of the stream before.
    pub(crate) fn attach(&self, sink: Arc<dyn LogSink>) -> Option<StreamPosition> {
        let mut state = self.lock();
        state.logs.push(sink);
        state.position
    }

    /// Whether other clients see the stream of the present connection.
    pub(crate) fn is_shared(&self) -> &Arc<AtomicBool> {
        &self.is_shared
    }

    /// Whether a log is read.
    pub(super) fn has_logs(&self) -> bool {
        self.lock().logs.iter().any(|log| log.is_read())
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

    #[cfg(feature = "sessions")]
    /// A subscription to no session yet.
    pub(crate) fn subscribe_later(&self) -> Events {
        Events::new(Arc::new(Queue::new(self.budget)))
    }

    #[cfg(feature = "sessions")]
    /// Moves subscriptions to this session, from whatever session they belonged to.
    pub(crate) fn follow(&self, followers: &[Weak<Queue<Event>>], from: Option<&str>, to: &str) {
        let moved: Vec<_> = followers.iter().filter_map(Weak::upgrade).collect();
        let mut state = self.lock();
        let moved: Vec<_> = moved.into_iter().filter(|queue| !state.book(to).is_followed_by(queue)).collect();
        if moved.is_empty() {
            return;
        }
        if let Some(from) = from {
            let moves = |queue: &Arc<Queue<Event>>| moved.iter().any(|moved| Arc::ptr_eq(moved, queue));
            state.book(from).subscribers.retain(|queue| !moves(queue));
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

    /// The history of a session that is about to be loaded. It is no subscription: nobody there answers anything.
    pub(super) fn collect_history(&self, id: &str) -> Arc<Queue<Update>> {
        let queue = Arc::new(Queue::new(self.budget));
        self.lock().book(id).histories.push(Arc::clone(&queue));
        queue
    }

    /// Publishes an event, and says how many readers decide about requests.
    pub(crate) fn publish(&self, event: &Event) -> usize {
        self.publish_at(event, None)
    }

    /// Publishes an event that has a position in the stream.
    pub(crate) fn publish_at(&self, event: &Event, position: Option<StreamPosition>) -> usize {
        let mut state = self.lock();
        state.position = position.or(state.position);
        if !state.logs.is_empty() {
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
            // It is of no session that is followed here unless there is a book of it.
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
        if id.len() > self.longest_id && !state.sessions.contains_key(id) {
            return deciders;
        }
        let now = self.tick();
        let book = state.known_or_stranger(id);
        deciders = book.push(event, deciders);
        book.learn(event, now);
        if let (Event::Update(update), true) = (event, book.is_named) {
            self.usage.observe(update);
        }
        deciders
    }

    /// Tells of the ends of sessions from now on, for as long as the listener lives.
    pub(super) fn listen(&self, listener: &Arc<impl EndListener + 'static>) {
        let listener: Weak<dyn EndListener> = Arc::downgrade(listener) as Weak<dyn EndListener>;
        let mut state = self.lock();
        state.listeners.retain(|listener| listener.strong_count() > 0);
        state.listeners.push(listener);
    }

    /// Nobody is there any more in a session.
    fn tell_end(&self, id: &str) {
        let listeners: Vec<_> = self.lock().listeners.iter().filter_map(Weak::upgrade).collect();
        for listener in listeners {
            listener.session_ended(id);
        }
    }

    /// Tells of a change of the connection.
    pub(crate) fn connection(&self, state: ConnectionState) {
        let before = self.lock().connection.replace(state.clone());
        // A stream that is reopened while the connection is made reports that it is connected as well.
        if before.as_ref() != Some(&state) {
            self.publish(&Event::Connection(state));
        }
    }

    /// This client creates the session, or names it. That does not make its requests ours.
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
        self.usage.assign(id, agent);
    }

    /// This client has opened a session so.
    pub(super) fn opened(&self, id: &str, with: OpenSession) {
        self.lock().book(id).opened_with = Some(Arc::new(with));
    }

    /// How this client has opened a session, if it has.
    pub(super) fn opened_with(&self, id: &str) -> Option<Arc<OpenSession>> {
        self.lock().sessions.get(id)?.opened_with.clone()
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

    /// Counts a call of this client about a session as pending, until the guard is dropped.
    pub(super) fn pending_call(self: &Arc<Self>, id: &str) -> PendingCall {
        self.lock().book(id).pending_calls += 1;
        PendingCall { hub: Arc::clone(self), id: id.into() }
    }

    /// Counts an agent request of a session as open, until the guard is dropped.
    pub(super) fn open_request(&self, id: &str) -> Option<OpenRequest> {
        self.lock().sessions.get(id).map(|book| OpenRequest::new(&book.progress))
    }

    /// Whether a call of this client about a session is pending.
    pub(super) fn has_pending_call(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(|book| book.pending_calls > 0)
    }

    /// A session is being taken up, whether it has ended or not: somebody is there who may ask, until the guard is gone.
    pub(super) fn take_up(self: &Arc<Self>, id: &str) -> TakingUp {
        let now = self.now();
        let mut state = self.lock();
        let book = state.book(id);
        book.taking_up += 1;
        book.past_end |= book.ended.borrow().is_some();
        book.snapshot.load(now);
        TakingUp { hub: Arc::clone(self), id: id.into() }
    }

    /// Whether the session has ended and nobody is taking it up: what it asks comes from nobody.
    pub(super) fn is_deserted(&self, id: &str) -> bool {
        self.lock().sessions.get(id).is_some_and(SessionBook::is_deserted)
    }

    /// Whether nobody was warned of this session yet; `None` if this client has never named it.
    pub(super) fn warn_of(&self, id: &str) -> Option<bool> {
        let mut state = self.lock();
        let book = state.sessions.get_mut(id).filter(|book| book.is_named)?;
        Some(!std::mem::replace(&mut book.warned, true))
    }

    /// The session is active again: it was made, loaded or resumed.
    pub(crate) fn revive(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        book.stop_requested = false;
        book.open = true;
        book.past_end = false;
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
        self.end_session_at(id, report, None)
    }

    /// Ends one session by a notice that has a place in the stream.
    pub(crate) fn end_session_at(
        &self,
        id: &str,
        report: TerminationReport,
        position: Option<StreamPosition>,
    ) -> TerminationInfo {
        let (info, deserted) = {
            let mut state = self.lock();
            if id.len() > self.longest_id && !state.sessions.contains_key(id) {
                return report.into_info();
            }
            let book = state.known_or_stranger(id);
            if let Some(info) = &*book.ended.borrow() {
                return info.clone();
            }
            let requested = book.stop_requested;
            let report = if requested { report.merge(TerminationReport::requested()) } else { report };
            let info = report.into_info();
            book.ended.send_replace(Some(info.clone()));
            book.open = false;
            self.usage.end_process(id);
            (info, book.is_deserted())
        };
        if deserted {
            self.tell_end(id);
        }
        self.publish_at(&ended_event(id, &info, Origin::Live), position);
        info
    }

    /// The call that takes up a session says that it has ended. If it had ended before, this is another end.
    pub(super) fn end_again(&self, id: &str, report: TerminationReport) -> TerminationInfo {
        {
            let mut state = self.lock();
            let book = state.book(id);
            if std::mem::take(&mut book.past_end) {
                book.ended.send_replace(None);
            }
        }
        self.end_session(id, report)
    }

    /// Ends every session of this client that is there or that a call waits for, as all sessions of an agent do that
    /// is gone. One that was only named, and may never have been, does not end. Returns those that ended.
    pub(crate) fn end_all(&self, report: &TerminationReport) -> Vec<Arc<str>> {
        let mut ids: Vec<Arc<str>> = {
            let state = self.lock();
            let there = |book: &SessionBook| book.open || book.is_busy();
            let ends = |book: &SessionBook| book.is_named && there(book) && book.ended.borrow().is_none();
            let ours = state.sessions.iter().filter(|(_, book)| ends(book));
            ours.map(|(id, _)| Arc::clone(id)).collect()
        };
        ids.sort();
        for id in &ids {
            self.end_session(id, report.clone());
        }
        ids
    }

    /// More is known about the end of these sessions: that is published if it says more.
    pub(super) fn complete_ends(&self, ids: &[Arc<str>], report: &TerminationReport) {
        for id in ids {
            let completed = {
                let mut state = self.lock();
                let book = state.book(id);
                let report = match book.stop_requested {
                    true => report.clone().merge(TerminationReport::requested()),
                    false => report.clone(),
                };
                let info = report.into_info();
                let says_more =
                    |known: &Option<TerminationInfo>| known.as_ref().is_some_and(|known| *known != info);
                let completes = says_more(&book.ended.borrow());
                completes.then(|| {
                    book.ended.send_replace(Some(info.clone()));
                    info
                })
            };
            if let Some(termination) = completed {
                let ended = SessionEnded { session_id: id.to_string(), termination, origin: Origin::Live };
                self.publish(&Event::TerminationDetails(Box::new(ended)));
            }
        }
    }

    /// Something may be missing in every session, as far as is known.
    pub(super) fn miss(&self, missed: Missed) {
        for (id, book) in &mut self.lock().sessions {
            book.miss(id, missed);
        }
    }

    /// A queue for a turn. Until its reader shows that it does not decide, it is taken to.
    pub(super) fn turn_queue(&self) -> Arc<Queue<TurnItem>> {
        let queue = Queue::new(self.budget);
        queue.set_deciding(true);
        Arc::new(queue)
    }

    /// Starts a turn, if none is running; else says what the session is doing.
    pub(super) fn begin_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>) -> TurnState {
        let mut state = self.lock();
        let book = state.book(id);
        let before = *book.turn_state.borrow();
        if before == TurnState::Idle {
            book.turn = Some(Arc::clone(queue));
            book.turn_missed.clear();
            book.is_prompted = false;
            book.progress.send_modify(Progress::begin);
            book.turn_state.send_replace(TurnState::Running);
        }
        before
    }

    /// The prompt of the turn is sent: what the agent reports from now on belongs to it.
    pub(super) fn prompt_sent(&self, id: &str) {
        self.lock().book(id).is_prompted = true;
    }

    /// The prompt of the turn was not executed.
    pub(super) fn prompt_withdrawn(&self, id: &str) {
        self.lock().book(id).is_prompted = false;
    }

    /// What is missing of the turn that is running.
    pub(super) fn turn_missed(&self, id: &str) -> Vec<Missed> {
        self.lock().book(id).turn_missed.clone()
    }

    /// The reader of a turn does not decide about requests. Gives those that waited for it.
    pub(super) fn stop_deciding(&self, queue: &Queue<TurnItem>) -> Vec<TurnItem> {
        // Requests are published under the same lock, so that none comes between.
        let _state = self.lock();
        queue.set_deciding(false);
        queue.take_class(Class::Request)
    }

    /// The tool call of a session that was reported under this id.
    pub(super) fn tool_call(&self, session: &str, id: &str) -> Option<ToolCall> {
        self.lock().sessions.get(session)?.tool_calls.get(id)
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

    /// The reader of a turn is gone: if it is the one that is running, it is left, or being cancelled from now on.
    pub(super) fn drop_turn(&self, id: &str, queue: &Arc<Queue<TurnItem>>, policy: DropPolicy) {
        let mut state = self.lock();
        let Some(book) = state.sessions.get_mut(id) else { return };
        if book.turn.as_ref().is_some_and(|turn| Arc::ptr_eq(turn, queue)) {
            book.turn = None;
            if policy == DropPolicy::Cancel {
                book.turn_state.send_replace(TurnState::Cancelling);
            }
        }
    }

    /// Nobody reads the turn any more, but it goes on.
    pub(crate) fn leave_turn(&self, id: &str) {
        self.lock().book(id).turn = None;
    }

    /// The running turn moves to the session that took the place of its own; `false` if another turn runs there.
    pub(super) fn move_turn(&self, from: &str, to: &str, queue: &Arc<Queue<TurnItem>>) -> bool {
        let mut state = self.lock();
        if from == to {
            return true;
        }
        let old = state.book(from);
        let turn = old.turn.take();
        let before = old.turn_state.send_replace(TurnState::Idle);
        let new = state.book(to);
        if *new.turn_state.borrow() != TurnState::Idle {
            return false;
        }
        new.turn = turn.filter(|turn| Arc::ptr_eq(turn, queue));
        new.turn_missed.clear();
        new.is_prompted = false;
        new.progress.send_modify(Progress::begin);
        new.turn_state.send_replace(before);
        true
    }

    /// Everything that a turn reported was given out, and this is how it ended.
    pub(crate) fn turn_outcome(
        &self,
        id: &str,
        request_id: Option<String>,
        outcome: &Result<TurnOutcome, Error>,
    ) {
        let mut state = self.lock();
        if !state.logs.is_empty() {
            let (session_id, outcome) = (id.to_owned(), outcome.clone());
            let ended = LogRecord::TurnEnded { session_id, request_id, outcome };
            state.log(&LogEntry::new(ended, None, Origin::Live));
        }
    }

    /// The turn is over: its queue ends, and the next one may begin.
    pub(crate) fn end_turn(&self, id: &str) {
        let mut state = self.lock();
        let book = state.book(id);
        if let Some(queue) = book.turn.take() {
            queue.end();
        }
        book.end_turn();
    }

    /// Whether no turn is running.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lock().sessions.values().all(|book| *book.turn_state.borrow() == TurnState::Idle)
    }

    /// What a session is doing, as it changes.
    pub(crate) fn watch_turn(&self, id: &str) -> watch::Receiver<TurnState> {
        self.lock().book(id).turn_state.subscribe()
    }

    /// Whether the turn of a session makes progress, as it changes.
    pub(super) fn watch_progress(&self, id: &str) -> watch::Receiver<Progress> {
        self.lock().book(id).progress.subscribe()
    }

    /// Nothing will happen any more.
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

pub(crate) fn ended_event(id: &str, info: &TerminationInfo, origin: Origin) -> Event {
    Event::SessionEnded(Box::new(SessionEnded {
        session_id: id.to_owned(),
        termination: info.clone(),
        origin,
    }))
}
