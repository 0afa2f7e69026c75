//! Requests whose response can only arrive on the stream, and whether it still can.

use std::sync::Arc;

use super::{Effect, Lost, Moment, OrderedCore};
use crate::Barrier;

/// A request whose response can only arrive on the stream.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) session: Option<Arc<str>>,
    pub(super) since: Moment,
    /// Set while its response may be lost.
    pub(super) unconfirmed: Option<Doubt>,
    /// Why its response will not arrive, if that is known.
    pub(super) hopeless: Option<Lost>,
    /// Whether its future was dropped: only the end of its turn is waited for.
    pub(super) abandoned: bool,
}

/// The possible loss of a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubt {
    /// When the response may have been lost.
    since: Moment,
    /// The last event of the session after that.
    pub(super) last: Moment,
}

impl Doubt {
    fn new(now: Moment) -> Self {
        Self { since: now, last: now }
    }
}

impl OrderedCore {
    /// A POST that began at `since` was accepted without a response in its body.
    pub(crate) fn accepted(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        let old = self.old_until.is_some_and(|old| since <= old);
        let hopeless = old.then_some(Lost::Restart);
        // An event lost after the POST began may have been its response.
        let unconfirmed = self.in_doubt_at.filter(|doubt| old || *doubt >= since).map(|_| Doubt::new(now));
        self.waiting.push(Waiting { number, session, since: now, unconfirmed, hopeless, abandoned: false });
    }

    /// The future of a turn was dropped, whose POST was open since `since` or had its status. Its response still shows
    /// where the turn ends.
    pub(crate) fn abandoned(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        self.deferred.retain(|deferred| deferred.response.number != number);
        self.loads.retain(|load| load.number != number);
        if !self.waiting.iter().any(|waiting| waiting.number == number) {
            self.accepted(now, since, number, session);
        }
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.number == number) {
            waiting.abandoned = true;
        }
    }

    /// The response to a request may never arrive.
    pub(crate) fn doubt(&mut self, now: Moment, number: u64) {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.number == number) {
            waiting.unconfirmed.get_or_insert(Doubt::new(now));
        }
    }

    /// A POST broke after it may have been sent, `since` when it began.
    pub(crate) fn post_lost(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        let hopeless = match self.barrier {
            _ if self.old_until.is_some_and(|old| since <= old) => Some(Lost::Restart),
            Barrier::None => Some(Lost::Post),
            _ => None,
        };
        let unconfirmed = Some(Doubt::new(now));
        self.waiting.push(Waiting { number, session, since, unconfirmed, hopeless, abandoned: false });
    }

    pub(super) fn unconfirm(&mut self, now: Moment) {
        self.in_doubt_at = Some(now);
        for waiting in &mut self.waiting {
            waiting.unconfirmed.get_or_insert(Doubt::new(now));
        }
    }

    pub(super) fn fail(&mut self, number: u64, why: Lost, out: &mut Vec<Effect>) {
        self.forget(number);
        out.push(Effect::Fail { number, why });
    }

    pub(super) fn given_up_at(&self, waiting: &Waiting) -> Option<Moment> {
        let doubt = waiting.unconfirmed?;
        if waiting.hopeless.is_some() {
            return Some(doubt.last);
        }
        let silent = self.settings.unconfirmed.and_then(|silence| doubt.last.checked_add(silence));
        // If ids do not identify events, the events that extend the wait may be replayed repeatedly.
        let limit = self.settings.unconfirmed_limit.filter(|_| !self.identity.is_resumable());
        let limit = limit.and_then(|limit| doubt.since.checked_add(limit));
        [silent, limit].into_iter().flatten().min()
    }
}
