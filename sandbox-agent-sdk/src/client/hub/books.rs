//! The books of all sessions.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::book::SessionBook;
use super::{EndListener, LogSink};
use crate::client::event::Queue;
use crate::client::stream::{LogEntry, StreamPosition};
use crate::{ConnectionState, Event};

/// How many sessions are remembered that this client has never named itself.
pub(super) const STRANGERS: usize = 1024;
/// From how many sessions on those are forgotten that nothing happens in and nobody watches.
pub(super) const BOOKS: usize = 4096;

/// Who listens, and what is known about each session.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) subscribers: Vec<Arc<Queue<Event>>>,
    pub(super) logs: Vec<Arc<dyn LogSink>>,
    /// The last position of the stream.
    pub(super) position: Option<StreamPosition>,
    pub(super) sessions: HashMap<Arc<str>, SessionBook>,
    pub(super) listeners: Vec<Weak<dyn EndListener>>,
    /// The state of the connection that was published last.
    pub(super) connection: Option<ConnectionState>,
    /// The sessions that this client has never named itself, the longest known first.
    strangers: VecDeque<Arc<str>>,
    /// Whether it was told that strangers are forgotten.
    crowded: bool,
    /// How many sessions there may be before the next look at which can be forgotten.
    room: usize,
}

impl State {
    /// Adds an entry to the logs that are read.
    pub(super) fn log(&mut self, entry: &LogEntry) {
        self.position = entry.position.or(self.position);
        self.logs.retain(|log| log.is_read());
        self.logs.iter().for_each(|log| log.push(entry));
    }

    /// The book of a session that this client names.
    pub(super) fn book(&mut self, id: &str) -> &mut SessionBook {
        if !self.sessions.contains_key(id) {
            self.make_room();
        }
        let book = self.sessions.entry(id.into()).or_insert_with(|| SessionBook::new(true));
        if !std::mem::replace(&mut book.is_named, true) {
            self.strangers.retain(|stranger| **stranger != *id);
        }
        book
    }

    /// The book of a session that the server names: the answer that tells this client of it may still be on its way.
    pub(super) fn known_or_stranger(&mut self, id: &str) -> &mut SessionBook {
        if !self.sessions.contains_key(id) {
            self.make_room();
            if self.strangers.len() >= STRANGERS {
                self.forget_stranger();
            }
            self.strangers.push_back(id.into());
        }
        self.sessions.entry(id.into()).or_insert_with(|| SessionBook::new(false))
    }

    /// Forgets sessions that nothing happens in and nobody watches, once there are many. One that is named again
    /// gets a new book; how it ended is the server's to tell then.
    fn make_room(&mut self) {
        if self.sessions.len() < self.room.max(BOOKS) {
            return;
        }
        self.sessions.retain(|_, book| book.is_watched());
        let sessions = &self.sessions;
        self.strangers.retain(|stranger| sessions.contains_key(stranger));
        self.room = 2 * self.sessions.len();
    }

    /// Forgets the stranger that has been known the longest, so that one who may become known finds a place.
    fn forget_stranger(&mut self) {
        if let Some(oldest) = self.strangers.pop_front() {
            self.sessions.remove(&oldest);
        }
        if !std::mem::replace(&mut self.crowded, true) {
            tracing::warn!(
                bound = STRANGERS,
                "the server tells of more sessions that this client did not make than are remembered; what came for the oldest is forgotten"
            );
        }
    }
}
