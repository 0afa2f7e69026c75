use std::sync::Arc;

use serde_json::Value;

use crate::server::Core;
use crate::stream::{Framing, Log, Seat, Tap};

/// How many messages a mailbox without a reader holds at least. The official server has no limit.
const HELD: usize = 65_536;

/// Messages for one stream, with at most one reader at a time.
#[derive(Debug, Clone)]
pub(super) struct Mailbox {
    log: Arc<Log>,
    /// The slot of its single reader.
    seat: Seat,
    /// Whether the agent has created the session, so that the mailbox outlives its reader.
    pub(super) confirmed: bool,
}

impl Mailbox {
    pub(super) fn new(core: &Core, confirmed: bool) -> Self {
        let log = core.new_log_of(core.config.replay_buffer.max(HELD));
        Self { log, seat: Seat::default(), confirmed }
    }

    /// Adds one message.
    pub(super) fn put(&self, message: &Value) {
        self.log.publish(message.to_string());
    }

    /// Whether it has a reader.
    pub(super) fn is_held(&self) -> bool {
        self.seat.is_taken()
    }

    /// Ends the stream after the remaining messages.
    pub(super) fn finish(&self) {
        self.log.finish();
    }

    /// Opens the mailbox, unless it has a reader. `on_close` runs when the reader is dropped.
    pub(super) fn read(&self, core: &Core, on_close: impl FnOnce() + Send + 'static) -> Option<Tap> {
        let seated = self.seat.take(on_close)?;
        let log = Arc::clone(&self.log);
        let position = log.position_after(0);
        let tap = Tap::open(core, Arc::clone(&log), position, Framing::DataOnly);
        Some(tap.seated(seated).observed(move |position| log.consume(position)))
    }
}
