//! Messages from before this client connected.

use crate::{EventId, rpc::Message};

/// How many messages are held at most; replay buffers of known servers hold fewer.
const HELD: usize = 4096;
/// How many bytes are held.
const HELD_BYTES: usize = 64 << 20;

/// Holds what the first opening of a shared stream brings while it is unknown whether it is old.
///
/// A stream that is opened for the first time replays the server's buffer, and nothing marks where that ends. The echo
/// of our first response does: what came before it is older than this client, and an agent request among it must not be
/// served again. Where no echo comes, a quiet period ends the backlog.
#[derive(Debug)]
pub(super) struct Backlog {
    held: Vec<(Option<EventId>, Message)>,
    bytes: usize,
    open: bool,
}

impl Backlog {
    /// `possible` is false where a stream can hold nothing old.
    pub(super) fn new(possible: bool) -> Self {
        Self { held: Vec::new(), bytes: 0, open: possible }
    }

    /// Whether it is undecided where the backlog ends.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds one message; whether no more can be held.
    pub(super) fn push(&mut self, id: Option<EventId>, message: Message) -> bool {
        self.bytes += message.raw.len();
        self.held.push((id, message));
        self.held.len() > HELD || self.bytes > HELD_BYTES
    }

    /// Gives what is held.
    pub(super) fn take(&mut self) -> Vec<(Option<EventId>, Message)> {
        self.bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// The backlog is over.
    pub(super) fn close(&mut self) {
        self.open = false;
    }
}
