//! Messages from before this client connected.

use super::order::{Moment, Ordered};
use crate::{EventId, Origin, rpc::Message};

/// How many messages are held at most; replay buffers of known servers hold fewer.
const HELD: usize = 4096;
/// How many bytes are held.
const HELD_BYTES: usize = 64 << 20;

/// Holds what the first opening of a shared stream brings until it is known whether it is old.
///
/// A stream that is opened for the first time replays the server's buffer, and nothing marks where that ends. The echo
/// of our first response does: what came before it is older than this client, and an agent request among it must not be
/// served again. Where no response of ours is awaited, a quiet period ends the backlog.
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

    /// Takes one message. `ours` says that it is a response to this client.
    pub(super) fn push(&mut self, id: Option<EventId>, message: Message, ours: bool, out: &mut Vec<Ordered>) {
        if ours {
            self.close(Origin::Replayed, out);
            return out.push(Ordered { event_id: id, origin: Origin::Live, message });
        }
        self.bytes += message.raw.len();
        self.held.push((id, message));
        if self.held.len() > HELD || self.bytes > HELD_BYTES {
            self.close(Origin::Replayed, out);
        }
    }

    /// When the quiet period is over, on a stream that opened at `opened` and brought its last bytes at `last`.
    pub(super) fn deadline(
        &self,
        opened: Moment,
        last: Moment,
        quiet: Moment,
        limit: Moment,
    ) -> Option<Moment> {
        self.open.then(|| (last.max(opened) + quiet).min(opened + limit))
    }

    /// Decides that what is held is of this origin.
    pub(super) fn close(&mut self, origin: Origin, out: &mut Vec<Ordered>) {
        self.open = false;
        self.bytes = 0;
        let held = std::mem::take(&mut self.held);
        out.extend(held.into_iter().map(|(event_id, message)| Ordered { event_id, origin, message }));
    }
}
