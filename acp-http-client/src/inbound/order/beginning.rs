//! Where the backlog ends and what is live begins.

use super::{Effect, Mark, Moment, Ordered, OrderedCore, Stream};
use crate::{
    Barrier, EventId, Origin,
    inbound::backlog::Held,
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
            Body::Response { id, .. } => self.ids.number(id.as_json()).is_some(),
            _ => false,
        };
        let origin = if !self.backlog.is_open() {
            let replayed = self.is_late_backlog(id.as_ref()) || self.is_seen_request(&message);
            if replayed { Origin::Replayed } else { Origin::Live }
        } else if ours {
            self.backlog_end = id.as_ref().and_then(EventId::as_number);
            self.close_backlog(Origin::Replayed, out);
            Origin::Live
        } else if self.is_before_first_response() {
            Origin::Replayed
        } else {
            let seen = self.is_seen_request(&message);
            if self.backlog.push(id, message, seen) {
                self.release_backlog(Origin::Replayed, out);
            }
            return;
        };
        self.deliver(now, Ordered { event_id: id, origin, message }, out);
    }

    /// This client introduces itself with its first request.
    pub(crate) fn introducing(&mut self) {
        self.introduced = true;
    }

    /// The server has assigned a connection id: no other client uses this stream, and it has no backlog.
    pub(crate) fn exclusive(&mut self) {
        self.exclusive = true;
    }

    /// Whether a message that arrives now is older than the first response of this client, as far as known.
    fn is_before_first_response(&self) -> bool {
        !self.exclusive && self.introduced && (self.barrier == Barrier::Echo || self.first_body.is_none())
    }

    /// Whether an event that arrives late has a number below that of the response that ended the backlog.
    fn is_late_backlog(&self, id: Option<&EventId>) -> bool {
        let number = || id.and_then(EventId::as_number);
        self.mark == Mark::Late
            && self.backlog_end.is_some_and(|end| number().is_some_and(|number| number < end))
    }

    /// Whether it is an agent request that an earlier opening had. If nothing else identifies it, it may belong to an
    /// earlier client, and it is not dispatched again.
    fn is_seen_request(&self, message: &Message) -> bool {
        self.mark == Mark::Alike && matches!(message.body, Body::Request { .. })
    }

    /// Whether the echo of the first response ends the backlog, so that nothing is live before it.
    fn echo_ends_backlog(&self) -> bool {
        self.introduced && self.barrier == Barrier::Echo
    }

    /// When the backlog ends without an echo of this client's response.
    pub(super) fn backlog_deadline(&self) -> Option<Moment> {
        let Stream::Open { since } = self.stream else { return None };
        if !self.backlog.is_open() {
            return None;
        }
        if self.exclusive {
            return Some(since);
        }
        let settings = &self.settings;
        if self.echo_ends_backlog() {
            // A server that breaks the promise of echoes is detected by a long time without events.
            return self.first_body.map(|body| body.max(self.last_event).max(since) + settings.order_limit);
        }
        // Nothing is live before the first response, if this client introduced itself.
        let begin = if self.introduced { self.first_body?.max(since) } else { since };
        let quiet = (self.last_bytes.max(begin) + settings.backlog_quiet).min(begin + settings.backlog_limit);
        Some(if self.barrier == Barrier::Learn {
            quiet.max(self.learnt_at().unwrap_or(quiet))
        } else {
            quiet
        })
    }

    /// Ends the backlog without an echo of this client's response. If the server sends echoes, the held messages are
    /// older than the first response. If it sends none, and a request has its response, they are live.
    pub(super) fn end_backlog(&mut self, out: &mut Vec<Effect>) {
        let live = self.exclusive || (self.barrier != Barrier::Echo && self.first_body.is_some());
        self.close_backlog(if live { Origin::Live } else { Origin::Replayed }, out);
    }

    fn close_backlog(&mut self, origin: Origin, out: &mut Vec<Effect>) {
        self.backlog.close();
        self.release_backlog(origin, out);
    }

    fn release_backlog(&mut self, origin: Origin, out: &mut Vec<Effect>) {
        let now = self.last_bytes;
        for Held { event_id, message, seen } in self.backlog.take() {
            let origin = if seen { Origin::Replayed } else { origin };
            self.deliver(now, Ordered { event_id, origin, message }, out);
        }
    }
}
