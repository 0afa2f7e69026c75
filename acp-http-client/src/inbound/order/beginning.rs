//! Where the backlog ends and what is live begins.

use super::{Effect, Moment, Ordered, OrderedCore, Stream};
use crate::{
    Barrier, EventId, Origin,
    rpc::{Body, Message},
};

impl OrderedCore {
    pub(super) fn message(
        &mut self,
        now: Moment,
        id: Option<EventId>,
        message: Message,
        out: &mut Vec<Effect>,
    ) {
        let ours = match &message.body {
            Body::Response { id, .. } => self.ids.number(id.as_json()),
            _ => None,
        };
        if self.backlog.is_open() && self.echo_ends_backlog() {
            let origin = if ours.is_some() { Origin::Live } else { Origin::Replayed };
            if ours.is_some() {
                self.end_backlog(out);
            }
            self.deliver(now, Ordered { event_id: id, origin, message }, out);
        } else if self.backlog.is_open() {
            let mut released = std::mem::take(&mut self.released);
            self.backlog.push(id, message, ours.is_some(), &mut released);
            for ordered in released.drain(..) {
                self.deliver(now, ordered, out);
            }
            self.released = released;
        } else {
            self.deliver(now, Ordered { event_id: id, origin: Origin::Live, message }, out);
        }
    }

    /// This client introduces itself with its first request.
    pub(crate) fn introducing(&mut self) {
        self.introduced = true;
    }

    /// Whether the echo of our first response ends the backlog, so that nothing is live before it.
    fn echo_ends_backlog(&self) -> bool {
        self.introduced && self.barrier == Barrier::Echo
    }

    pub(super) fn backlog_deadline(&self) -> Option<Moment> {
        let Stream::Open { since } = self.stream else { return None };
        let settings = &self.settings;
        let deadline =
            self.backlog.deadline(since, self.last_bytes, settings.backlog_quiet, settings.backlog_limit)?;
        match self.echo_ends_backlog() {
            // A server that breaks the promise of echoes is found out by a silence behind its first response.
            true => self.first_body.map(|body| body.max(self.last_bytes).max(since) + settings.order),
            false => Some(deadline),
        }
    }

    /// The backlog is over without an echo of ours. Where echoes are known to come, what is held is older than our
    /// first response. Where none come, and something was answered, it is as new as anything.
    pub(super) fn end_backlog(&mut self, out: &mut Vec<Effect>) {
        let live = self.barrier != Barrier::Echo && self.first_body.is_some();
        let mut released = std::mem::take(&mut self.released);
        self.backlog.close(if live { Origin::Live } else { Origin::Replayed }, &mut released);
        let now = self.last_bytes;
        for ordered in released.drain(..) {
            self.deliver(now, ordered, out);
        }
        self.released = released;
    }
}
