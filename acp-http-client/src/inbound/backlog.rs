//! Messages from before this client connected.

use crate::{EventId, rpc::Message};

/// A message that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) event_id: Option<EventId>,
    pub(super) message: Message,
    /// Whether it is an agent request that was seen before.
    pub(super) seen: bool,
}

/// Holds the messages of a newly opened shared stream until it is known whether they are backlog.
///
/// A stream that is opened for the first time replays the server's buffer, and the server does not mark its end. The
/// echo of this client's first response does: earlier messages are older than this client, and agent requests among
/// them must not be served again. On servers without echoes, a quiet period ends the backlog.
#[derive(Debug)]
pub(super) struct Backlog {
    held: Vec<Held>,
    /// How many bytes are held, and how many may be.
    bytes: usize,
    limit: usize,
    open: bool,
}

impl Backlog {
    /// `possible` is false if the stream cannot have a backlog. `limit` is how many bytes may be held.
    pub(super) fn new(possible: bool, limit: usize) -> Self {
        Self { held: Vec::new(), bytes: 0, limit, open: possible }
    }

    /// Whether it is undecided where the backlog ends.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Holds one message. Returns whether the limit is reached.
    pub(super) fn push(&mut self, event_id: Option<EventId>, message: Message, seen: bool) -> bool {
        self.bytes += message.raw.len() + size_of::<Held>();
        self.held.push(Held { event_id, message, seen });
        self.bytes > self.limit
    }

    /// Takes the held messages.
    pub(super) fn take(&mut self) -> Vec<Held> {
        self.bytes = 0;
        std::mem::take(&mut self.held)
    }

    /// The backlog is over.
    pub(super) fn close(&mut self) {
        self.open = false;
    }
}
