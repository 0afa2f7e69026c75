//! Responses that wait until everything before them was delivered.

use super::{Effect, Moment, Ordered, OrderedCore, Response, Stream};
use crate::{Barrier, Order, rpc::Body};

/// A response that is deferred.
#[derive(Debug)]
pub(super) struct Deferred {
    pub(super) response: Response,
    pub(super) arrived: Moment,
    /// The last message of its session.
    pub(super) last: Moment,
}

impl OrderedCore {
    /// Whether a response arrived in a body.
    pub(crate) fn has_seen_body(&self) -> bool {
        self.first_body.is_some()
    }

    /// The response to an unordered call arrived in a body.
    pub(crate) fn body_seen(&mut self, now: Moment) {
        self.first_body.get_or_insert(now);
    }

    /// A response arrived in a body, or on another stream: it is deferred until everything before it was delivered.
    pub(crate) fn response(&mut self, now: Moment, response: Response) {
        if !response.elsewhere {
            self.first_body.get_or_insert(now);
        }
        self.waiting.retain(|waiting| waiting.number != response.number);
        self.deferred.push(Deferred { response, arrived: now, last: now });
    }

    /// The response to a request of this client arrived on the stream.
    pub(super) fn echo(&mut self, number: u64, ordered: Ordered, out: &mut Vec<Effect>) {
        if matches!(self.barrier, Barrier::Learn | Barrier::None) {
            self.barrier = Barrier::Echo;
        }
        // Responses that were sent before this request was made have passed too.
        let passed = |deferred: &Deferred| {
            deferred.response.number != number
                && !deferred.response.elsewhere
                && deferred.response.next_number <= number
        };
        while let Some(place) = self.deferred.iter().position(passed) {
            let deferred = self.deferred.remove(place);
            self.settle(deferred.response, Order::Verified, out);
        }
        let Body::Response { outcome, .. } = ordered.message.body else { return };
        out.push(Effect::Echo { event_id: ordered.event_id, number, raw: ordered.message.raw });
        // The echo decides when to return; the body, if there is one, is returned, because it may contain more.
        let deferred = self.deferred.iter().position(|deferred| deferred.response.number == number);
        let outcome = match deferred {
            Some(place) => self.deferred.remove(place).response.outcome,
            None => outcome,
        };
        self.forget(number);
        out.push(Effect::Settle { number, outcome, order: Order::Verified, from_stream: true });
    }

    pub(super) fn settle(&mut self, response: Response, order: Order, out: &mut Vec<Effect>) {
        self.forget(response.number);
        out.push(Effect::Settle {
            number: response.number,
            outcome: response.outcome,
            order,
            from_stream: false,
        });
    }

    /// When a deferred response is returned even though its echo has not arrived.
    pub(super) fn due(&self, deferred: &Deferred) -> Moment {
        let settings = &self.settings;
        let since = match self.stream {
            Stream::Open { since } => since,
            // A stream that is down, or not open yet, gets a short time.
            Stream::Down | Stream::NotOpened => return deferred.arrived + settings.order,
        };
        let limit = deferred.arrived.max(since) + settings.order_limit;
        let silent_since = deferred.last.max(since);
        let at = match self.barrier {
            Barrier::Echo if !deferred.response.elsewhere => silent_since + settings.order,
            Barrier::Learn if !deferred.response.elsewhere => {
                (silent_since + settings.order).min(self.learnt_at().unwrap_or(limit))
            }
            _ => silent_since + settings.quiet,
        };
        let at = match self.partial {
            // An event that was already arriving may be the awaited one. One that began later is not.
            Some((began, last)) if began <= at => at.max(last + settings.quiet),
            _ => at,
        };
        let at = at.min(limit);
        // A caller that gets its response assumes that held messages were delivered.
        if self.backlog.is_holding() { at.max(self.backlog_deadline().unwrap_or(at)) } else { at }
    }

    /// When it is decided that this server does not echo responses.
    pub(super) fn learnt_at(&self) -> Option<Moment> {
        let since = match self.stream {
            Stream::Open { since } => since,
            _ => return None,
        };
        let at = self.first_body?.max(since) + self.settings.learn;
        Some(match self.partial {
            Some((began, last)) if began <= at => at.max(last + self.settings.quiet),
            _ => at,
        })
    }

    pub(super) fn learn(&mut self, now: Moment) {
        if self.barrier == Barrier::Learn && self.learnt_at().is_some_and(|at| at <= now) {
            self.barrier = Barrier::None;
        }
    }
}
