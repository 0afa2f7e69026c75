//! One pending request.

use std::{future::Future, pin::Pin, sync::Arc};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    Barrier, Error, Order,
    client::Core,
    inbound::LinkState,
    rpc::RpcOutcome,
    transport::{Handover, PostFailure, Posted},
};

/// A response to one of our requests.
#[derive(Debug, Clone)]
pub(crate) struct Settled {
    pub(crate) outcome: RpcOutcome,
    pub(crate) order: Order,
}

/// A request in the pending table.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) method: Arc<str>,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) since: Instant,
    /// Whether its response is ordered after the updates of its session.
    pub(crate) ordered: bool,
    /// Whether its response can only arrive on the stream.
    pub(crate) unconfirmed: bool,
    /// The error of its POST, if that failed.
    pub(crate) lost: Option<Arc<Error>>,
    /// How much of the request was handed over to the HTTP connection, once it is being sent.
    pub(super) handover: Option<Handover>,
    sender: oneshot::Sender<Result<Settled, Error>>,
}

impl Waiter {
    pub(super) fn is_turn(&self) -> bool {
        is_turn(&self.method)
    }

    /// Wakes the caller. A caller that went away is normal.
    pub(crate) fn settle(self, outcome: Result<Settled, Error>) {
        let _ = self.sender.send(outcome);
    }
}

fn is_turn(method: &str) -> bool {
    method == AGENT_METHOD_NAMES.session_prompt
}

/// The right to a response. Dropping it removes the request from the table and, if the request was sent and has no
/// response, cancels it.
pub(crate) struct Ticket {
    core: Arc<Core>,
    number: u64,
    session: Option<Arc<str>>,
    is_turn: bool,
    pub(crate) receiver: oneshot::Receiver<Result<Settled, Error>>,
    /// The POST, while it is open.
    pub(super) posting: Option<Posting>,
    /// Whether the request may have reached the server.
    sent: bool,
    /// How much of the request was handed over, while its POST has no status.
    handover: Option<Handover>,
    /// Whether the response arrived and is only deferred.
    pub(super) answered: bool,
    cancel_on_drop: bool,
    /// Whether the request was removed from every table.
    forgotten: bool,
}

/// A POST in progress.
pub(super) type Posting = Pin<Box<dyn Future<Output = Result<Posted, PostFailure>> + Send>>;

impl Ticket {
    pub(crate) fn register(
        core: &Arc<Core>,
        number: u64,
        method: Arc<str>,
        session: Option<Arc<str>>,
        ordered: bool,
        cancel_on_drop: bool,
    ) -> Self {
        let (sender, receiver) = oneshot::channel();
        let since = Instant::now();
        let is_turn = is_turn(&method);
        let waiter = Waiter {
            method,
            session: session.clone(),
            since,
            ordered,
            unconfirmed: false,
            lost: None,
            handover: None,
            sender,
        };
        core.pending().register(number, waiter);
        Self {
            core: core.clone(),
            number,
            session,
            is_turn,
            receiver,
            posting: None,
            sent: false,
            handover: None,
            answered: false,
            cancel_on_drop,
            forgotten: false,
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The request is about to be sent.
    pub(super) fn start(&mut self, now: Instant, handover: Handover) {
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.since = now;
            waiter.handover = Some(handover.clone());
        }
        (self.sent, self.handover) = (true, Some(handover));
    }

    /// The POST has its status, or failed after it may have arrived: it can no longer be withdrawn.
    pub(super) fn handed_over(&mut self) {
        self.handover = None;
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.handover = None;
        }
    }

    /// The server refused the request unread: it counts as not sent.
    pub(super) fn unsent(&mut self) {
        self.sent = false;
        self.handed_over();
    }

    /// Takes the request out of every table. Its turn is over.
    pub(super) fn forget(&mut self) {
        if std::mem::replace(&mut self.forgotten, true) {
            return;
        }
        self.take();
        // The reader has less to wait for and need not wake.
        self.core.links.get(&self.core, self.session.as_ref()).core().forget(self.number);
        if self.is_turn {
            self.core.outbox.end_turn(self.number);
        }
    }

    /// Takes the request out of the table, if it is still there.
    pub(crate) fn take(&self) -> Option<Waiter> {
        self.core.pending().take(self.number)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.core.pending().get_mut(self.number).is_some()
    }

    /// From now on its response can only arrive on the stream.
    pub(crate) fn mark_unconfirmed(&self, lost: Option<Arc<Error>>) {
        if let Some(waiter) = self.core.pending().get_mut(self.number) {
            waiter.unconfirmed = true;
            waiter.lost = lost;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(waiter) = self.take() else { return self.forget() };
        let link = self.core.links.get(&self.core, waiter.session.as_ref());
        // A request that was not completely handed over cannot run.
        let sent = self.sent && !self.handover.as_ref().is_some_and(Handover::withdraw);
        if sent && !self.answered && self.cancel_on_drop {
            // From now on a prompt that follows waits for the end of this turn, and is not cancelled by its cancel.
            self.core.outbox.abandon(self.number);
            // Where the stream brings no response, the end of the turn is the end of its POST.
            let barrier = link.core().barrier();
            let echoed = matches!(barrier, Barrier::Echo | Barrier::SameStream);
            let seen_to_end = echoed || self.posting.is_some();
            if waiter.is_turn() && seen_to_end && link.state() != LinkState::Ended {
                let (number, since, session) =
                    (self.number, link.moment(waiter.since), waiter.session.clone());
                let cut = echoed && self.posting.is_some();
                link.input(|core, now| {
                    core.abandoned(now, since, number, session);
                    // The POST is dropped with its ticket: it may not have arrived.
                    if cut {
                        core.doubt(now, number);
                    }
                });
            } else {
                self.forget();
            }
            self.core.notices.cancel(self.number, waiter, self.posting.take().filter(|_| !echoed));
        } else {
            self.forget();
        }
    }
}
