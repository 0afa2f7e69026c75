//! Passes the events of the client to the trackers of stored sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::futures::Notified;

use super::entry::Entry;
use super::inbox::{Inbox, Item, Pushed};
use super::options::Durability;
use super::store::StoredEventKind;
use super::tracker::Command;
use crate::client::event::Hold;
use crate::client::hub::Hub;
use crate::session::Timestamp;
use crate::stream::StreamPosition as Position;

mod overflow;
mod sink;
mod state;

use overflow::Overflow;
use state::{Route, RunningTurn, State, remove_of};

pub(super) type Mailbox = Arc<Inbox<Command>>;

/// Receives all entries in stream order, and passes each tracker the entries of its session.
#[derive(Debug)]
pub(super) struct Feed {
    /// Guards the routes; held for a look-up and a push. The hub's lock may be held around it, never the other way.
    state: Mutex<State>,
    /// Whether other processes can read the same stream, so that positions in it mean something to them.
    is_numbered: Arc<AtomicBool>,
    /// How many events may arrive before the progress is stored without an append.
    advance_every: usize,
    /// Whether the connection was lost without a disconnect by the application. The next call that needs it reconnects.
    asleep: AtomicBool,
    /// Whether the connection is being ended because it is idle.
    falling_asleep: AtomicBool,
    /// Whether the feed is closed: pushed entries are no longer stored.
    closed: AtomicBool,
    /// Whether the application receives events only after they were stored.
    holds: bool,
    /// Events that did not fit into a mailbox.
    overflow: Arc<Overflow>,
    /// Whether the progress is to be stored.
    is_due: AtomicBool,
}

/// A moment. A later loss of the agent ends all bindings made before the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) clock: u64,
    pub(super) stream: u64,
}

impl Feed {
    /// Creates a feed that receives all entries from now on.
    pub(super) fn attached(hub: &Hub, durability: Durability, advance_every: usize) -> Arc<Self> {
        let state = State::default();
        let overflow = Arc::clone(&state.overflow);
        let feed = Arc::new(Self {
            state: Mutex::new(state),
            is_numbered: Arc::clone(&hub.is_numbered),
            advance_every,
            asleep: AtomicBool::new(false),
            falling_asleep: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            holds: durability == Durability::BeforeDelivery,
            overflow,
            is_due: AtomicBool::new(false),
        });
        hub.attach(Arc::<Self>::clone(&feed));
        feed
    }

    /// Closes the feed: pushed entries are no longer stored.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.overflow.news.notify_one();
    }

    /// Waits until something was lost, or the progress is to be stored, or the feed is closed.
    pub(super) fn news(&self) -> Notified<'_> {
        self.overflow.news.notified()
    }

    /// Whether the connection was lost without a disconnect by the application.
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Acquire) || self.falling_asleep.load(Ordering::Acquire)
    }

    /// Sets whether the connection is being ended because it is idle.
    pub(super) fn set_falling_asleep(&self, falling: bool) {
        self.falling_asleep.store(falling, Ordering::Release);
    }

    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Release);
    }

    pub(super) fn now(&self) -> Moment {
        let state = self.lock();
        Moment { clock: state.clock, stream: state.stream }
    }

    /// Another reader of the stream found that the server has restarted. What is bound from now on was bound on the new
    /// server, although this stream has not reported the restart yet.
    pub(super) fn restart_found(&self, since: Moment) -> Moment {
        let mut state = self.lock();
        if state.stream == since.stream && state.lost_at.is_none() {
            state.clock += 1;
            state.lost_at = Some(state.clock);
        }
        Moment { clock: state.clock, stream: state.stream }
    }

    /// Gives events of an agent's session to a tracker from now on. A tracker that had them before loses the session.
    ///
    /// Returns `false` if the agent was lost since that moment.
    pub(super) fn route(&self, agent_session: &str, inbox: &Mailbox, since: Moment) -> bool {
        let mut state = self.lock();
        let mut route = Route {
            inbox: Arc::clone(inbox),
            bound_at: since.clock,
            latest: None,
            is_trailing: false,
            has_ended: false,
        };
        route.latest = state.latest_hold(agent_session);
        if let Some(turn) = state.turns.get_mut(agent_session)
            && turn.inbox.is_closed()
        {
            // The tracker that began the turn ended when the session was released.
            turn.inbox = Arc::clone(inbox);
        }
        state.bind(agent_session, inbox);
        let is_live = !state.is_gone(since.clock);
        let before = state.routes.insert(agent_session.to_owned(), route);
        if let Some(before) = before.filter(|before| !Arc::ptr_eq(&before.inbox, inbox)) {
            // The agent assigned the id to another session.
            before.inbox.note(Command::Gone);
        }
        is_live
    }

    /// A tracker has stored what its session reported while it was gone, or that this process does not know it.
    pub(super) fn set_accounted(&self, inbox: &Mailbox) {
        self.lock().set_accounted(inbox);
    }

    /// Gives events of an agent's session to a tracker, and to those that have them, until it is known whether the
    /// session is that of the tracker.
    pub(super) fn propose(&self, agent_session: &str, inbox: &Mailbox) {
        let mut state = self.lock();
        state.bind(agent_session, inbox);
        let candidates = state.candidates.entry(agent_session.to_owned()).or_default();
        candidates.push(Arc::clone(inbox));
    }

    /// Ends a proposal. If `since` is set, the agent's session belongs to the tracker, unless another tracker has it
    /// now. Otherwise the events that the tracker received from it are discarded.
    pub(super) fn decide(&self, agent_session: &str, inbox: &Mailbox, since: Option<Moment>) {
        if let Some(since) = since.filter(|_| !self.is_of_another(agent_session, inbox)) {
            // Before the proposal ends, so that no event is missed. An event that arrives twice is stored once.
            self.route(agent_session, inbox, since);
            self.lock().withdraw(inbox);
            return;
        }
        let mut state = self.lock();
        state.withdraw(inbox);
        state.end_routes(inbox, None);
        for item in inbox.take_events() {
            let (entry, held) = match &item {
                Item::Event(entry) => (Some(entry), entry.held_at()),
                Item::Lost(first, _) => (None, first.held_at()),
                Item::Command(_) => (None, None),
            };
            entry.into_iter().for_each(Entry::release);
            held.into_iter().for_each(|at| state.settle(at));
        }
    }

    /// Like [`route`](Self::route), unless the agent has assigned the id to another session.
    pub(super) fn route_if_free(&self, agent_session: &str, inbox: &Mailbox, since: Moment) {
        if !self.is_of_another(agent_session, inbox) {
            self.route(agent_session, inbox, since);
        }
    }

    /// Whether the agent has assigned the id to the session of another tracker.
    pub(super) fn is_of_another(&self, agent_session: &str, inbox: &Mailbox) -> bool {
        let state = self.lock();
        state.routes.get(agent_session).is_some_and(|route| !Arc::ptr_eq(&route.inbox, inbox))
    }

    /// Ends the routes of a tracker, except that of this agent's session.
    pub(super) fn unroute(&self, inbox: &Mailbox, but: Option<&str>) {
        let mut state = self.lock();
        state.end_routes(inbox, but);
        for id in state.bound_to(inbox) {
            remove_of(&mut state.gone, &id, |route| &route.inbox, inbox);
        }
        if but.is_none() {
            state.withdraw(inbox);
            state.end_claim(inbox);
            state.set_accounted(inbox);
            state.awaited.retain(|_, waiting| !Arc::ptr_eq(waiting, inbox));
        }
        state.unbind(inbox);
    }

    /// A session is being created: what comes for unknown sessions is held until the guard is dropped.
    pub(super) fn creating(self: &Arc<Self>) -> Creating {
        self.lock().early.creating += 1;
        Creating(Arc::clone(self))
    }

    /// Passes the events that arrived while a session was created to its tracker.
    pub(super) fn claim_early(&self, agent_session: &str, inbox: &Mailbox) {
        let mut state = self.lock();
        let held = state.early.claim(agent_session);
        let mut give = |at: Option<(u64, u64)>, pushed: Pushed| {
            at.filter(|_| !pushed.is_held()).into_iter().for_each(|at| state.settle(at));
        };
        for entry in held.entries {
            give(entry.held_at(), self.overflow.give(inbox, entry));
        }
        if let Some((first, count)) = held.lost {
            give(first.held_at(), self.overflow.lose(inbox, first, count));
        }
    }

    /// A turn of this process runs in an agent's session. Returns whether the stream is known to have the responses to
    /// prompts.
    pub(super) fn begin_turn(&self, agent_session: &str, turn: &str, inbox: &Mailbox) -> bool {
        let mut state = self.lock();
        state.last_active = Some(SystemTime::now().into());
        if !state.is_echoing {
            // It is not known whether the response to an earlier prompt will arrive here.
            state.awaited.retain(|_, waiting| !Arc::ptr_eq(waiting, inbox));
        }
        state.put_turn(agent_session, RunningTurn::new(turn.to_owned(), Arc::clone(inbox)));
        state.is_echoing
    }

    /// A turn of this process has ended in the store, although it may still run.
    pub(super) fn forget_turn(&self, turn: &str) {
        let mut state = self.lock();
        if let Some(session) = state.sessions_of_turns.get(turn).cloned() {
            state.take_turn(&session);
        }
    }

    /// The prompt of a turn of this process is being sent with this JSON-RPC id.
    pub(super) fn sending(&self, turn: &str, request: &str) {
        let mut state = self.lock();
        let Some(session) = state.sessions_of_turns.get(turn).cloned() else { return };
        if let Some(running) = state.turns.get_mut(&session) {
            let before = running.request.replace(request.to_owned());
            before.into_iter().for_each(|before| drop(state.sessions_of_requests.remove(&before)));
            state.sessions_of_requests.insert(request.to_owned(), session);
        }
    }

    /// Waits for the response to a prompt on the stream.
    pub(super) fn expect_response(&self, request: &str, inbox: &Mailbox) {
        self.lock().awaited.insert(request.to_owned(), Arc::clone(inbox));
    }

    /// An agent request of a turn of another process is offered to the application.
    pub(super) fn offer(&self, session: &str, request: &str, turn: &str, inbox: &Mailbox) {
        let offered = Offered { inbox: Arc::clone(inbox), turn: turn.to_owned() };
        self.lock().offered.insert((session.to_owned(), request.to_owned()), offered);
    }

    /// Agent requests of an agent's session that are received from now on are of this turn of another process, which may
    /// be running.
    pub(super) fn claim(&self, agent_session: &str, turn: &str, inbox: &Mailbox) {
        let claimed = Offered { inbox: Arc::clone(inbox), turn: turn.to_owned() };
        let mut state = self.lock();
        state.bind(agent_session, inbox);
        state.claimed.insert(agent_session.to_owned(), claimed);
    }

    /// The tracker has determined, and shows, which turn is running.
    pub(super) fn end_claim(&self, inbox: &Mailbox) {
        self.lock().end_claim(inbox);
    }

    /// Whether the tracker has not yet determined which turn is running.
    pub(super) fn is_claiming(&self, inbox: &Mailbox) -> bool {
        let state = self.lock();
        let mut bound = state.bound.get(inbox.session()).into_iter().flatten();
        bound.any(|id| state.claimed.get(id).is_some_and(|claimed| Arc::ptr_eq(&claimed.inbox, inbox)))
    }

    /// Withdraws the offered requests of a tracker when the guard is dropped: their turn has ended.
    pub(super) fn offers(self: &Arc<Self>, inbox: &Mailbox) -> Offers {
        Offers { feed: Arc::clone(self), inbox: Arc::clone(inbox) }
    }

    /// Events at these offsets of these streams are stored, or need not be.
    pub(super) fn settle(&self, held: impl IntoIterator<Item = (u64, u64)>) {
        let mut state = self.lock();
        held.into_iter().for_each(|at| state.settle(at));
    }

    /// The pending events of a tracker need not be stored.
    pub(super) fn discard(&self, items: impl IntoIterator<Item = Item<Command>>) {
        self.settle(items.into_iter().filter_map(|item| match item {
            Item::Event(entry) => entry.held_at(),
            Item::Lost(first, _) => first.held_at(),
            Item::Command(_) => None,
        }));
    }

    /// The latest position of the stream.
    pub(super) fn position(&self) -> Option<Position> {
        self.lock().progress.latest()
    }

    /// Up to where everything of every session is stored, and of which stream.
    pub(super) fn scanned_to(&self) -> Option<(u64, Position)> {
        let mut state = self.lock();
        if !state.unseen.is_empty() || state.routes.is_empty() {
            return None;
        }
        let position = state.progress.stored_to()?;
        state.progress.report();
        Some((state.stream, position))
    }

    /// Whether the progress is to be stored, since the last call.
    pub(super) fn take_due(&self) -> bool {
        self.is_due.swap(false, Ordering::AcqRel)
    }

    /// The time of the last activity in any session, stored or not.
    pub(super) fn last_active(&self) -> Option<Timestamp> {
        self.lock().last_active
    }

    /// Events that were lost since the last call, by session.
    pub(super) fn take_lost(&self) -> BTreeMap<String, u64> {
        self.overflow.take()
    }

    /// Passes an entry to a tracker. An entry that does not fit is reported.
    pub(super) fn give(&self, inbox: &Mailbox, entry: Entry) -> Pushed {
        self.overflow.give(inbox, entry)
    }

    /// Passes an entry to the tracker of its session. Returns a hold if the application receives it later.
    fn deliver(&self, state: &mut State, session: &str, mut entry: Entry) -> Option<Hold> {
        entry.stream = state.stream;
        entry.is_held = entry.position.is_some();
        let mut at = entry.held_at();
        let mut hold = None;
        for candidate in state.candidates.get(session).into_iter().flatten() {
            let has_route =
                state.routes.get(session).is_some_and(|route| Arc::ptr_eq(&route.inbox, candidate));
            let mut copy = entry.clone();
            if hold.is_none() && self.holds && !state.routes.contains_key(session) {
                hold = Some(copy.hold_back());
            }
            if !has_route
                && self.give(candidate, copy).is_held()
                && let Some((_, offset)) = at
            {
                state.progress.hold(offset);
            }
        }
        let is_held = if let Some(route) = state.routes.get_mut(session) {
            hold = self.holds.then(|| entry.hold_back());
            route.latest.clone_from(&hold);
            self.give(&route.inbox, entry).is_held()
        } else if let Some(gone) = state.gone.get_mut(session).filter(|gone| gone.takes(&entry.kind)) {
            // It belongs to the previous stream, so no event of the current one waits for it.
            (at, entry.is_held) = (None, false);
            hold = self.holds.then(|| entry.hold_back());
            gone.has_ended |= entry.kind == StoredEventKind::Ended;
            self.give(&gone.inbox, entry);
            false
        } else if state.candidates.contains_key(session) {
            return hold;
        } else if self.holds && state.turns.contains_key(session) {
            // This process no longer owns the session of the turn, and does not store its events.
            return Some(entry.hold_back());
        } else if state.early.creating > 0 {
            hold = self.holds.then(|| entry.hold_back());
            state.early.hold(session, entry, hold.clone())
        } else {
            false
        };
        if let Some((_, offset)) = at.filter(|_| is_held) {
            state.progress.hold(offset);
        }
        hold
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An agent request that is offered to the application.
#[derive(Debug, Clone)]
pub(super) struct Offered {
    /// The tracker of its session.
    pub(super) inbox: Mailbox,
    /// The id of its turn.
    pub(super) turn: String,
}

/// The agent requests of a turn of another process that are offered here. Dropping this withdraws them.
#[derive(Debug)]
pub(super) struct Offers {
    feed: Arc<Feed>,
    inbox: Mailbox,
}

impl Drop for Offers {
    fn drop(&mut self) {
        self.feed.lock().offered.retain(|_, offered| !Arc::ptr_eq(&offered.inbox, &self.inbox));
    }
}

/// Holds events of unknown sessions.
#[derive(Debug)]
pub(super) struct Creating(Arc<Feed>);

impl Drop for Creating {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let unclaimed = state.early.end_creating();
        // These sessions are not stored.
        unclaimed.iter().for_each(Entry::release);
        unclaimed.iter().filter_map(Entry::held_at).for_each(|at| state.settle(at));
    }
}

#[cfg(test)]
mod tests;
