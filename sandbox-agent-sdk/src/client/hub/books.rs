//! The state of all sessions.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::book::SessionBook;
use super::{EndListener, LogSink};
use crate::client::event::Queue;
use crate::client::stream::LogEntry;
use crate::{ConnectionState, Event};

/// How many sessions are stored that this client has not named.
pub(super) const UNNAMED: usize = 1024;
/// From this number of sessions on, unused ones are forgotten.
pub(super) const BOOKS: usize = 4096;

/// The subscribers, and the state of each session.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) subscribers: Vec<Arc<Queue<Event>>>,
    pub(super) logs: Vec<Arc<dyn LogSink>>,
    pub(super) sessions: HashMap<Arc<str>, SessionBook>,
    pub(super) listeners: Vec<Weak<dyn EndListener>>,
    /// The state of the connection that was published last.
    pub(super) connection: Option<ConnectionState>,
    /// The sessions that this client has not named, the oldest first.
    unnamed: VecDeque<Arc<str>>,
    /// Whether a warning was logged that sessions are forgotten.
    crowded: bool,
    /// Whether other clients have sessions on the same stream.
    pub(super) shared: bool,
    /// How many calls of this client that make sessions are pending.
    pub(super) openings: usize,
    /// The number of sessions at which unused ones are searched for again.
    room: usize,
}

impl State {
    /// Adds an entry to the logs that are read.
    pub(super) fn log(&mut self, entry: &LogEntry) {
        self.logs.retain(|log| log.is_read());
        self.logs.iter().for_each(|log| log.push(entry));
    }

    /// Returns the state of a session that this client names.
    pub(super) fn book(&mut self, id: &str) -> &mut SessionBook {
        if !self.sessions.contains_key(id) {
            self.make_room();
        }
        let book = self.sessions.entry(id.into()).or_insert_with(|| SessionBook::new(true));
        if !std::mem::replace(&mut book.is_named, true) {
            self.unnamed.retain(|unnamed| **unnamed != *id);
        }
        book
    }

    /// Whether a session that this client does not know is remembered: it may be the one that a pending call makes. On a
    /// shared endpoint all others belong to other clients.
    pub(super) fn remembers_unknown(&self) -> bool {
        !self.shared || self.openings > 0
    }

    /// A call that makes sessions has ended. After the last one, the sessions of other clients are forgotten.
    pub(super) fn end_opening(&mut self) {
        self.openings = self.openings.saturating_sub(1);
        if !self.remembers_unknown() {
            self.unnamed.clear();
            self.sessions.retain(|_, book| book.is_named);
        }
    }

    /// Returns the state of a session that the server names. The response that creates it may still be on its way.
    pub(super) fn known_or_unnamed(&mut self, id: &str) -> &mut SessionBook {
        if !self.sessions.contains_key(id) {
            self.make_room();
            if self.unnamed.len() >= UNNAMED {
                self.forget_unnamed();
            }
            self.unnamed.push_back(id.into());
        }
        self.sessions.entry(id.into()).or_insert_with(|| SessionBook::new(false))
    }

    /// Forgets unused sessions, once there are many. One that is named again gets a new state.
    fn make_room(&mut self) {
        if self.sessions.len() < self.room.max(BOOKS) {
            return;
        }
        self.sessions.retain(|_, book| book.is_watched());
        let sessions = &self.sessions;
        self.unnamed.retain(|unnamed| sessions.contains_key(unnamed));
        self.room = 2 * self.sessions.len();
    }

    /// Forgets the oldest session that this client has not named.
    fn forget_unnamed(&mut self) {
        if let Some(oldest) = self.unnamed.pop_front() {
            self.sessions.remove(&oldest);
        }
        if !std::mem::replace(&mut self.crowded, true) {
            tracing::warn!(
                bound = UNNAMED,
                "there are more sessions of other clients than are stored; the events of the oldest are dropped"
            );
        }
    }
}
