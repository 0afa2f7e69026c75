//! One request that waits.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};

use super::core::{Core, Settled};
use crate::{Error, EventSource, MessageId};

/// What the pending table knows of a request.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) method: Arc<str>,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) since: Instant,
    /// The POST brought no answer and will bring none, only the stream can: when the server is known to have been
    /// the one that took it.
    pub(crate) unconfirmed: Option<Instant>,
    sender: oneshot::Sender<Result<Settled, Error>>,
}

impl Waiter {
    /// Wakes whoever waits. A caller that went away is normal.
    pub(crate) fn settle(self, outcome: Result<Settled, Error>) {
        let _ = self.sender.send(outcome);
    }
}

/// The right to an answer. Dropping it frees the place in the table and, if the request was sent and not
/// answered, tells the agent.
#[derive(Debug)]
pub(crate) struct Ticket {
    core: Arc<Core>,
    number: u64,
    pub(crate) receiver: oneshot::Receiver<Result<Settled, Error>>,
    /// Whether the request may have reached the server.
    sent: bool,
    cancel_on_drop: bool,
}

impl Ticket {
    pub(crate) fn register(
        core: &Arc<Core>,
        number: u64,
        method: Arc<str>,
        session: Option<Arc<str>>,
        cancel_on_drop: bool,
    ) -> Self {
        let (sender, receiver) = oneshot::channel();
        let waiter = Waiter { method, session, since: Instant::now(), unconfirmed: None, sender };
        core.pending().register(number, waiter);
        Self { core: core.clone(), number, receiver, sent: false, cancel_on_drop }
    }

    pub(crate) fn id(&self) -> MessageId {
        self.core.ids.id(self.number)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The request is about to be sent.
    pub(crate) fn start(&mut self) {
        self.sent = true;
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.since = Instant::now();
        }
    }

    /// The answer came another way: nobody waits any more.
    pub(crate) fn done(&self) {
        self.core.pending().take(self.number);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.core.pending().get_mut(self.number).is_some()
    }

    /// The POST was taken without an answer.
    pub(crate) fn mark_accepted(&self) {
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.unconfirmed = Some(Instant::now());
        }
    }

    /// The POST broke, which says nothing of when: it counts from its beginning.
    pub(crate) fn mark_lost(&self) {
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.unconfirmed = Some(waiter.since);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let waiting = self.core.pending().take(self.number).is_some();
        if waiting && self.sent && self.cancel_on_drop {
            self.core.courier.cancel(self.number);
        }
    }
}

/// Which stream brought an answer; `None` for a response body.
pub(crate) type Via = Option<EventSource>;
