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
    /// Since when its response may be lost, and the last event of its session after that.
    pub(super) unconfirmed: Option<Moment>,
    /// Why its response is not going to come, if that is known.
    pub(super) hopeless: Option<Lost>,
}

impl OrderedCore {
    /// A POST that began at `since` was accepted without a response in its body.
    pub(crate) fn accepted(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        // What may have been lost after the POST began may have been its response.
        let unconfirmed = self.in_doubt_at.filter(|doubt| *doubt >= since).map(|_| now);
        self.waiting.push(Waiting { number, session, since: now, unconfirmed, hopeless: None });
    }

    /// A POST broke after it may have been sent, `since` when it began.
    pub(crate) fn post_lost(&mut self, now: Moment, since: Moment, number: u64, session: Option<Arc<str>>) {
        let hopeless = match self.barrier {
            _ if self.old_until.is_some_and(|old| since <= old) => Some(Lost::Restart),
            Barrier::None => Some(Lost::Post),
            _ => None,
        };
        self.waiting.push(Waiting { number, session, since, unconfirmed: Some(now), hopeless });
    }

    pub(super) fn unconfirm(&mut self, now: Moment) {
        self.in_doubt_at = Some(now);
        for waiting in &mut self.waiting {
            waiting.unconfirmed.get_or_insert(now);
        }
    }

    pub(super) fn fail(&mut self, number: u64, why: Lost, out: &mut Vec<Effect>) {
        self.forget(number);
        out.push(Effect::Fail { number, why });
    }

    pub(super) fn given_up_at(&self, waiting: &Waiting) -> Option<Moment> {
        if waiting.hopeless.is_some() {
            return waiting.unconfirmed;
        }
        waiting.unconfirmed?.checked_add(self.settings.unconfirmed?)
    }
}
