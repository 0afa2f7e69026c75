//! The state of all sessions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use super::session_state::SessionState;
use super::unused::Unused;
use super::{EndListener, LogSink};
use crate::client::event::{Hold, Queue, Weight};
use crate::client::limits::Limits;
use crate::client::stream::LogEntry;
use crate::usage::UsageTable;
use crate::{ConnectionState, Event, Update};

/// The subscribers, and the state of each session.
#[derive(Debug)]
pub(super) struct State {
    pub(super) subscribers: Vec<Arc<Queue<Event>>>,
    pub(super) logs: Vec<Arc<dyn LogSink>>,
    pub(super) sessions: BTreeMap<Arc<str>, SessionState>,
    pub(super) listeners: Vec<Weak<dyn EndListener>>,
    /// The state of the connection that was published last.
    pub(super) connection: Option<ConnectionState>,
    /// The sessions that this client has named and that nothing uses.
    pub(super) unused: Unused,
    /// The sessions that this client has not named, the oldest first.
    unnamed: VecDeque<Arc<str>>,
    /// How many of these are stored.
    unnamed_limit: usize,
    /// How many bytes may be stored of all of them. They are measured whenever a quarter of that was added.
    unnamed_bytes_limit: usize,
    /// How many bytes of events arrived for them since they were measured.
    unnamed_growth: usize,
    /// Whether a warning was logged that such sessions are forgotten.
    crowded: bool,
    /// Whether other clients have sessions on the same stream.
    pub(super) shared: bool,
    /// How often the stream of a connection was lost.
    pub(super) losses: u64,
    /// Whether it is lost and not open again.
    pub(super) is_lost: bool,
    /// How many calls of this client that create sessions are pending.
    pub(super) openings: usize,
    /// What the pending calls that fork a session collect.
    pub(super) forks: Vec<Arc<Queue<Update>>>,
    /// How many bytes the snapshot of a session may take.
    snapshot_limit: usize,
    /// The usage of the sessions. It is not part of their state, because it must outlive it.
    pub(super) usage: UsageTable,
}

impl State {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            subscribers: Vec::new(),
            logs: Vec::new(),
            sessions: BTreeMap::default(),
            listeners: Vec::new(),
            connection: None,
            unused: Unused::new(limits.unused_session_bytes),
            unnamed: VecDeque::new(),
            unnamed_limit: limits.unnamed_sessions,
            unnamed_bytes_limit: limits.unnamed_session_bytes,
            unnamed_growth: 0,
            crowded: false,
            shared: false,
            losses: 0,
            is_lost: false,
            openings: 0,
            forks: Vec::new(),
            snapshot_limit: limits.snapshot,
            usage: UsageTable::default(),
        }
    }

    /// Adds an entry to the logs that are read. Returns a hold if readers must not see it yet.
    pub(super) fn log(&mut self, entry: &LogEntry, is_of_turn: bool) -> Option<Hold> {
        self.logs.retain(|log| log.is_read());
        self.logs.iter().fold(None, |hold, log| log.push(entry, is_of_turn).or(hold))
    }

    /// Whether an event belongs to the running turn of its session, if there is one.
    pub(super) fn is_of_turn(&mut self, event: &Event) -> bool {
        let Event::Update(update) = event else { return true };
        self.sessions.get_mut(update.session_id()).is_none_or(|session| session.is_of_turn(update))
    }

    /// The hold on an event of a session without its own log entry: it waits for the entries before it.
    pub(super) fn hold(&self, session: Option<&str>) -> Option<Hold> {
        let latest = self.logs.iter().find_map(|log| log.latest_hold(session?))?;
        Some(latest.until_settled())
    }

    /// Delivers an event to the readers of a session and applies it to its state. Returns how many readers decide
    /// requests; `None` if the session is not known.
    pub(super) fn deliver(
        &mut self,
        id: &str,
        event: &Event,
        (deciders, hold): (usize, Option<&Hold>),
        now: u64,
    ) -> Option<usize> {
        let session = self.sessions.get_mut(id)?;
        let deciders = session.push(event, deciders, hold);
        session.learn(event, now);
        session.losses = self.losses;
        if !session.is_named {
            self.grow_unnamed(event.weight());
            return Some(deciders);
        }
        let has_handle = session.handles > 0;
        if let Event::Update(update) = event {
            self.usage.observe(update);
        }
        if !has_handle {
            self.measure(id);
        }
        Some(deciders)
    }

    /// Returns the state of a session that this client names.
    pub(super) fn session(&mut self, id: &str) -> &mut SessionState {
        let is_new = self.sessions.get(id).is_none_or(|session| !session.is_named);
        if is_new {
            self.begin_naming(id);
            self.unnamed.retain(|unnamed| **unnamed != *id);
        }
        let (limit, losses) = (self.snapshot_limit, self.losses);
        let new = || SessionState::new(limit, losses);
        let session = self.sessions.entry(id.into()).or_insert_with(new);
        session.is_named = true;
        session.share.lingers |= is_new;
        session
    }

    /// Whether a session that this client does not know is remembered: a pending call may be creating it. On a shared
    /// endpoint all others belong to other clients.
    pub(super) fn remembers_unknown(&self) -> bool {
        !self.shared || self.openings > 0
    }

    /// Whether the conversation of a session that this client has not named can only be that of a fork: the response has
    /// not arrived, and no other call or client can have made the session.
    pub(super) fn is_fork(&self, id: &str) -> bool {
        let is_unnamed = || self.sessions.get(id).is_none_or(|session| !session.is_named);
        !self.shared && !self.forks.is_empty() && self.forks.len() == self.openings && is_unnamed()
    }

    /// A call that creates sessions has ended. After the last one, the sessions of other clients are forgotten.
    pub(super) fn end_opening(&mut self) {
        self.openings = self.openings.saturating_sub(1);
        if !self.remembers_unknown() {
            self.unnamed.clear();
            self.sessions.retain(|_, session| session.is_named);
        }
    }

    /// Returns the state of a session that the server names. The response that creates it may not have arrived yet.
    pub(super) fn known_or_unnamed(&mut self, id: &str) -> &mut SessionState {
        if !self.sessions.contains_key(id) {
            self.unnamed.push_back(id.into());
            // One is stored in any case: the caller needs it.
            if self.unnamed.len() > self.unnamed_limit.max(1) {
                self.forget_unnamed();
            }
        }
        let (limit, losses) = (self.snapshot_limit, self.losses);
        self.sessions.entry(id.into()).or_insert_with(|| SessionState::new(limit, losses))
    }

    /// Counts the bytes of an event for a session that this client has not named. If such sessions take too much
    /// memory, the oldest are forgotten.
    pub(super) fn grow_unnamed(&mut self, bytes: usize) {
        self.unnamed_growth = self.unnamed_growth.saturating_add(bytes);
        if self.unnamed_growth < self.unnamed_bytes_limit / 4 {
            return;
        }
        self.unnamed_growth = 0;
        let stored = |state: &Self, id: &str| state.sessions.get(id).map_or(0, SessionState::stored_bytes);
        let mut total: usize = self.unnamed.iter().map(|id| stored(self, id)).sum();
        while total > self.unnamed_bytes_limit
            && let Some(oldest) = self.unnamed.front()
        {
            total -= stored(self, oldest);
            self.forget_unnamed();
        }
    }

    /// Forgets the oldest session that this client has not named.
    fn forget_unnamed(&mut self) {
        if let Some(oldest) = self.unnamed.pop_front() {
            self.sessions.remove(&oldest);
        }
        if !std::mem::replace(&mut self.crowded, true) {
            tracing::warn!(
                sessions = self.unnamed_limit,
                bytes = self.unnamed_bytes_limit,
                "there are more sessions of other clients than are stored; the events of the oldest are dropped"
            );
        }
    }
}
