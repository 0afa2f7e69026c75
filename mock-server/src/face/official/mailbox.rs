use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::server::Core;
use crate::stream::{Framing, Log, Tap};

/// How many messages a mailbox holds at least while nobody reads it. The official server has no bound.
const HELD: usize = 65_536;

/// Messages for one stream, with at most one reader at a time.
#[derive(Debug, Clone)]
pub(super) struct Mailbox {
    log: Arc<Log>,
    /// Whether somebody reads it now.
    held: Arc<AtomicBool>,
    /// Whether the agent has named the session, so that the mailbox outlives its reader.
    pub(super) confirmed: bool,
}

impl Mailbox {
    pub(super) fn new(core: &Core, confirmed: bool) -> Self {
        let log = core.new_log_of(core.config.ring.max(HELD));
        Self { log, held: Arc::default(), confirmed }
    }

    /// Puts one message in.
    pub(super) fn put(&self, message: &Value) {
        self.log.publish(message.to_string());
    }

    /// Whether somebody reads it now.
    pub(super) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Lets the reader end after what is there.
    pub(super) fn finish(&self) {
        self.log.finish();
    }

    /// Becomes the one reader, unless there is one. `on_close` runs when the reader goes.
    pub(super) fn read(&self, core: &Core, on_close: impl FnOnce() + Send + 'static) -> Option<Tap> {
        if self.held.swap(true, Ordering::SeqCst) {
            return None;
        }
        let hold = Hold { held: Arc::clone(&self.held), on_close: Some(Box::new(on_close)) };
        let log = Arc::clone(&self.log);
        let position = log.position_after(0);
        let tap = Tap::open(core, Arc::clone(&log), position, Framing::DataOnly);
        Some(tap.observed(move |position| {
            let _held_by_the_stream = &hold;
            log.consume(position);
        }))
    }
}

/// The right to read a mailbox.
struct Hold {
    held: Arc<AtomicBool>,
    on_close: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.store(false, Ordering::SeqCst);
        if let Some(on_close) = self.on_close.take() {
            on_close();
        }
    }
}
