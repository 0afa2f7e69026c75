//! Requests that only the stream can answer, and whether it still can.

use std::sync::Arc;

use super::{Effect, Lost, Moment, OrderedCore};
use crate::Barrier;

/// A request that only the stream can answer.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) session: Option<Arc<str>>,
    pub(super) since: Moment,
    /// Set while its response may be lost.
    pub(super) unconfirmed: Option<Doubt>,
    /// Why its response is not going to come, if that is known.
    pub(super) hopeless: Option<Lost>,
}

/// A doubt whether a response is still to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Doubt {
    /// When it arose.
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
        // What may have been lost after the POST began may have been its response.
        let unconfirmed = self.in_doubt_at.filter(|doubt| old || *doubt >= since).map(|_| Doubt::new(now));
        self.waiting.push(Waiting { number, session, since: now, unconfirmed, hopeless });
    }

    /// A POST broke after it may have been sent, `since` when it began.
    pub(crate) fn post_lost(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        let hopeless = match self.barrier {
            _ if self.old_until.is_some_and(|old| since <= old) => Some(Lost::Restart),
            Barrier::None => Some(Lost::Post),
            _ => None,
        };
        self.waiting.push(Waiting { number, session, since, unconfirmed: Some(Doubt::new(now)), hopeless });
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
        // Where ids identify nothing, what keeps the doubt alive may be replayed again and again.
        let limit = self.settings.unconfirmed_limit.filter(|_| !self.identity.is_resumable());
        let limit = limit.and_then(|limit| doubt.since.checked_add(limit));
        [silent, limit].into_iter().flatten().min()
    }
}
