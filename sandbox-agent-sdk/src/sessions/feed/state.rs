//! The routes of a feed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{Mailbox, Offered, Overflow};
use crate::client::event::Hold;
use crate::session::Timestamp;
use crate::sessions::early::Early;
use crate::sessions::entry::Entry;
use crate::sessions::progress::Progress;
use crate::sessions::store::StoredEventKind;
use crate::sessions::tracker::Command;
use crate::{ConnectionState, Event};

/// The state of a feed: the streams, and which trackers receive their events.
#[derive(Debug, Default)]
pub(super) struct State {
    /// By the id of the agent's session.
    pub(super) routes: BTreeMap<String, Route>,
    /// The agent's sessions at which a tracker may have a route, a proposal or a claim, by the id of its session.
    pub(super) bound: BTreeMap<String, Vec<String>>,
    /// Trackers that read the stream to find out whether the agent's session is still theirs, by its id. Each gets its
    /// events, beside the one that has the route.
    pub(super) candidates: BTreeMap<String, Vec<Mailbox>>,
    /// Routes that ended with the connection or the server: how their sessions ended may be reported later.
    pub(super) gone: BTreeMap<String, Route>,
    /// The turns of this process, by the id of the agent's session. Their end is delivered even after the route is gone.
    pub(super) turns: BTreeMap<String, RunningTurn>,
    /// The agent's sessions of these turns, by the ids of the turns and of their prompts.
    pub(super) sessions_of_turns: BTreeMap<String, String>,
    pub(super) sessions_of_requests: BTreeMap<String, String>,
    /// The waiters for responses to prompts on the stream, by JSON-RPC id.
    pub(super) awaited: BTreeMap<String, Mailbox>,
    /// Agent requests of turns of other processes that are offered here, by session and id.
    pub(super) offered: BTreeMap<(String, String), Offered>,
    /// The turns of other processes that may be running in an agent's session, while its tracker finds out.
    pub(super) claimed: BTreeMap<String, Offered>,
    pub(super) early: Early,
    pub(super) overflow: Arc<Overflow>,
    /// The trackers whose sessions ended with the connection or the server, until they are bound again or have stored
    /// that they do not follow their sessions. Their events are not received here, so nothing counts as stored.
    pub(super) unseen: BTreeMap<String, Mailbox>,
    pub(super) progress: Progress,
    /// Whether a turn has ended in its order on this stream, which only the response on the stream proves.
    pub(super) is_echoing: bool,
    pub(super) clock: u64,
    /// The clock when the stream was last lost.
    pub(super) lost_at: Option<u64>,
    pub(super) away: bool,
    /// Bindings from before this moment ended with the agent, the server or the connection.
    pub(super) ended_before: u64,
    /// Incremented with every connection and every restart of the server: offsets of different streams do not compare.
    pub(super) stream: u64,
    pub(super) last_active: Option<Timestamp>,
}

/// A turn of this process.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) id: String,
    /// The JSON-RPC id of its prompt, once that is being sent and until its response arrives on the stream.
    pub(super) request: Option<String>,
    /// Whether the response arrived without proof that everything before it had arrived.
    pub(super) is_unordered: bool,
    pub(super) inbox: Mailbox,
}

impl RunningTurn {
    /// A turn whose prompt is not being sent yet.
    pub(super) fn new(id: String, inbox: Mailbox) -> Self {
        Self { id, request: None, is_unordered: false, inbox }
    }
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) inbox: Mailbox,
    pub(super) bound_at: u64,
    /// The hold on the latest event, if events are held back until they are stored.
    pub(super) latest: Option<Hold>,
    /// Whether its agent has ended: servers write the agent's last updates and the notice of its end concurrently, so that
    /// updates may follow until the next connection.
    pub(super) is_trailing: bool,
    /// Whether the end of the session was reported after the route had ended.
    pub(super) has_ended: bool,
}

impl Route {
    /// Whether an event is of the session of this route, which has ended with the connection or the server.
    pub(super) fn takes(&self, kind: &StoredEventKind) -> bool {
        match kind {
            StoredEventKind::TerminationDetails => true,
            StoredEventKind::Ended => self.is_trailing || !self.has_ended,
            _ => self.is_trailing,
        }
    }
}

impl State {
    /// The id of the turn of this process that runs in an agent's session.
    pub(super) fn turn_of(&self, agent_session: &str) -> Option<String> {
        self.turns.get(agent_session).map(|turn| turn.id.clone())
    }

    /// Whether an agent's session is that of a stored session, or was when its turn began.
    pub(super) fn is_stored(&self, agent_session: &str) -> bool {
        self.routes.contains_key(agent_session)
            || self.turns.contains_key(agent_session)
            || self.claimed.contains_key(agent_session)
            || self.candidates.contains_key(agent_session)
    }

    /// A turn of this process runs in an agent's session.
    pub(super) fn put_turn(&mut self, agent_session: &str, turn: RunningTurn) {
        self.take_turn(agent_session);
        self.sessions_of_turns.insert(turn.id.clone(), agent_session.to_owned());
        self.turns.insert(agent_session.to_owned(), turn);
    }

    /// Ends the turn of this process that runs in an agent's session.
    pub(super) fn take_turn(&mut self, agent_session: &str) -> Option<RunningTurn> {
        let turn = self.turns.remove(agent_session)?;
        self.sessions_of_turns.remove(&turn.id);
        turn.request.iter().for_each(|request| drop(self.sessions_of_requests.remove(request)));
        Some(turn)
    }

    /// The turn of this process whose prompt has this JSON-RPC id.
    pub(super) fn turn_of_request(&mut self, request: &str) -> Option<&mut RunningTurn> {
        self.turns.get_mut(self.sessions_of_requests.get(request)?)
    }

    /// Records that a tracker has a route, a proposal or a claim at an agent's session.
    pub(super) fn bind(&mut self, agent_session: &str, inbox: &Mailbox) {
        let bound = self.bound.entry(inbox.session().to_owned()).or_default();
        if !bound.iter().any(|id| id == agent_session) {
            bound.push(agent_session.to_owned());
        }
    }

    /// Forgets the agent's sessions at which nothing is left of a tracker, or of an earlier one of the same session.
    pub(super) fn unbind(&mut self, inbox: &Mailbox) {
        let Some(mut bound) = self.bound.remove(inbox.session()) else { return };
        let is_of = |other: &Mailbox| other.session() == inbox.session();
        bound.retain(|id| {
            self.routes.get(id).is_some_and(|route| is_of(&route.inbox))
                || self.gone.get(id).is_some_and(|route| is_of(&route.inbox))
                || self.claimed.get(id).is_some_and(|claimed| is_of(&claimed.inbox))
                || self.candidates.get(id).is_some_and(|candidates| candidates.iter().any(is_of))
        });
        if !bound.is_empty() {
            self.bound.insert(inbox.session().to_owned(), bound);
        }
    }

    pub(super) fn bound_to(&self, inbox: &Mailbox) -> Vec<String> {
        self.bound.get(inbox.session()).cloned().unwrap_or_default()
    }

    /// Ends the routes of a tracker, except that of this agent's session.
    pub(super) fn end_routes(&mut self, inbox: &Mailbox, but: Option<&str>) {
        for id in self.bound_to(inbox).iter().filter(|id| Some(id.as_str()) != but) {
            remove_of(&mut self.routes, id, |route| &route.inbox, inbox);
        }
    }

    pub(super) fn end_claim(&mut self, inbox: &Mailbox) {
        for id in self.bound_to(inbox) {
            remove_of(&mut self.claimed, &id, |claimed| &claimed.inbox, inbox);
        }
    }

    pub(super) fn withdraw(&mut self, inbox: &Mailbox) {
        for id in self.bound_to(inbox) {
            if let Some(candidates) = self.candidates.get_mut(&id) {
                candidates.retain(|candidate| !Arc::ptr_eq(candidate, inbox));
                if candidates.is_empty() {
                    self.candidates.remove(&id);
                }
            }
        }
    }

    pub(super) fn set_accounted(&mut self, inbox: &Mailbox) {
        remove_of(&mut self.unseen, inbox.session(), |unseen| unseen, inbox);
    }

    pub(super) fn settle(&mut self, (stream, offset): (u64, u64)) {
        if stream == self.stream {
            self.progress.settle(offset);
        }
    }

    /// The hold on the latest event of an agent's session.
    pub(super) fn latest_hold(&self, agent_session: &str) -> Option<Hold> {
        let of_route = self.routes.get(agent_session).and_then(|route| route.latest.as_ref());
        let latest = of_route.or_else(|| self.early.latest(agent_session));
        latest.filter(|hold| hold.is_released().is_none()).cloned()
    }

    /// Whether bindings of that moment have ended.
    pub(super) fn is_gone(&self, bound_at: u64) -> bool {
        bound_at < self.ended_before
    }

    /// Ends every binding that is older than this, and begins another stream.
    pub(super) fn end_before(&mut self, before: u64, is_trailing: bool) {
        self.ended_before = before;
        self.stream += 1;
        self.progress = Progress::default();
        self.awaited.clear();
        self.is_echoing = false;
        let (gone, kept) =
            std::mem::take(&mut self.routes).into_iter().partition(|(_, route)| route.bound_at < before);
        self.routes = kept;
        for (id, route) in BTreeMap::into_iter(gone) {
            route.inbox.note(Command::Gone);
            self.unseen.insert(route.inbox.session().to_owned(), Arc::clone(&route.inbox));
            self.gone.insert(id, Route { is_trailing, ..route });
        }
    }

    /// Another stream is read from now on, in which nothing is known of the sessions that are not bound to it.
    fn unfollow(&self) {
        self.unseen.values().for_each(|inbox| inbox.note(Command::Unfollow));
    }

    /// Handles an event that belongs to no single session.
    pub(super) fn happened_to_all(&mut self, event: &Event) {
        match event {
            Event::Connection(ConnectionState::Reconnecting { .. }) if self.away => {}
            Event::Connection(ConnectionState::Reconnecting { .. }) => {
                self.away = true;
                self.clock += 1;
                self.lost_at = Some(self.clock);
            }
            Event::Reconnected { .. } => self.away = false,
            Event::ServerRestarted => {
                self.clock += 1;
                // Bindings made after the stream was lost belong to the new server.
                let before = self.lost_at.take().unwrap_or(self.clock);
                self.end_before(before, false);
                self.unfollow();
            }
            Event::Connection(
                state @ (ConnectionState::AgentEnded(_)
                | ConnectionState::Disconnected
                | ConnectionState::Lost(_)),
            ) => {
                self.clock += 1;
                (self.away, self.lost_at) = (false, None);
                self.end_before(self.clock, matches!(state, ConnectionState::AgentEnded(_)));
            }
            Event::Connection(ConnectionState::Connecting) => {
                self.unfollow();
                self.gone.values_mut().for_each(|route| route.is_trailing = false);
            }
            // It is unknown which session they belonged to.
            Event::Gap(_) | Event::Lagged(_) | Event::Malformed { lost: true, .. } => {
                let Some(entry) = Entry::of(event, None) else { return };
                let routed = self.routes.iter().map(|(id, route)| (id, &route.inbox));
                let proposed = self
                    .candidates
                    .iter()
                    .flat_map(|(id, inboxes)| inboxes.iter().map(move |inbox| (id, inbox)));
                self.early.miss(&entry);
                let mut reached = HashSet::new();
                for (id, inbox) in routed.chain(proposed) {
                    if reached.insert(Arc::as_ptr(inbox)) {
                        // An entry that does not fit is counted at its position.
                        let _ =
                            self.overflow.give(inbox, Entry { turn_id: self.turn_of(id), ..entry.clone() });
                    }
                }
            }
            _ => {}
        }
    }
}

/// Removes the value at a key if it is of this tracker.
pub(super) fn remove_of<T>(
    map: &mut BTreeMap<String, T>,
    key: &str,
    tracker: impl Fn(&T) -> &Mailbox,
    inbox: &Mailbox,
) {
    if map.get(key).is_some_and(|value| Arc::ptr_eq(tracker(value), inbox)) {
        map.remove(key);
    }
}
