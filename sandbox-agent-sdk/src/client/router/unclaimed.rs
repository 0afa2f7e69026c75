//! The agent requests that probably belong to other clients.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::requests::WeakUnclaimed;
use crate::requests::{UnclaimedRequest, UnclaimedSummary};

/// For how many sessions the last request is stored for timeouts.
const SESSIONS: usize = 1_024;
/// How many requests a timeout lists.
const SUMMARIES: usize = 16;

/// The unclaimed requests that can be claimed, within a bound, and the last one of each session.
#[derive(Debug)]
pub(in crate::client) struct UnclaimedTable {
    bound: usize,
    /// Guards both lists; held for a look-up or a change.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    open: VecDeque<WeakUnclaimed>,
    /// One for each session; the last one is that of the latest request.
    seen: VecDeque<Seen>,
    hasher: RandomState,
    closed: bool,
}

/// The last request of a session.
#[derive(Debug)]
struct Seen {
    /// The hash of the session's id.
    session: u64,
    /// When the first request of the session arrived; of requests without a session, when the last one did.
    since: Instant,
    summary: UnclaimedSummary,
    claimed: Arc<AtomicBool>,
}

impl UnclaimedTable {
    pub(in crate::client) fn new(bound: usize) -> Self {
        Self { bound, state: Mutex::default() }
    }

    /// Adds a request. If there are too many, the oldest can no longer be claimed. `is_named`: this client has named its
    /// session, so that it is not the one that a pending call creates.
    pub(super) fn add(&self, request: &UnclaimedRequest, is_named: bool) {
        let released: Vec<_> = {
            let mut state = self.lock();
            if !is_named {
                let (summary, claimed) = request.summary();
                state.see(request.session_id(), summary, claimed, Instant::now());
            }
            state.open.retain(|open| open.upgrade().is_some_and(|open| open.is_open()));
            state.open.push_back(request.downgrade());
            let bound = if state.closed { 0 } else { self.bound };
            let surplus = state.open.len().saturating_sub(bound);
            state.open.drain(..surplus).collect()
        };
        release(released);
    }

    /// Leaves the requests of a session to other clients.
    pub(in crate::client) fn release(&self, session: &str) {
        let released: VecDeque<_> = {
            let mut state = self.lock();
            let of_session =
                |open: &WeakUnclaimed| open.upgrade().is_some_and(|open| open.session_id() == Some(session));
            let (released, remaining) = std::mem::take(&mut state.open).into_iter().partition(of_session);
            state.open = remaining;
            released
        };
        release(released);
    }

    /// Leaves all requests, including later ones, to other clients.
    pub(in crate::client) fn close(&self) {
        let released: Vec<_> = {
            let mut state = self.lock();
            state.closed = true;
            state.open.drain(..).collect()
        };
        release(released);
    }

    /// The last request of each of the latest sessions that were first seen within this time until now, if it was not
    /// claimed. A session that was known before this time is not the one that a call creates.
    pub(in crate::client) fn seen_within(&self, time: Duration) -> Vec<UnclaimedSummary> {
        self.lock().seen_within(time, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Stores the last request of a session.
    fn see(
        &mut self,
        session: Option<&str>,
        summary: UnclaimedSummary,
        claimed: Arc<AtomicBool>,
        now: Instant,
    ) {
        let hash = self.hasher.hash_one(session);
        let known = self.seen.iter().position(|seen| seen.session == hash);
        let known = known.and_then(|place| self.seen.remove(place));
        let since = known.filter(|_| session.is_some()).map_or(now, |seen| seen.since);
        if self.seen.len() == SESSIONS {
            self.seen.pop_front();
        }
        self.seen.push_back(Seen { session: hash, since, summary, claimed });
    }

    fn seen_within(&self, time: Duration, now: Instant) -> Vec<UnclaimedSummary> {
        let new = self.seen.iter().rev().filter(|seen| now.duration_since(seen.since) <= time);
        let unclaimed = new.filter(|seen| !seen.claimed.load(Ordering::Acquire));
        let mut latest: Vec<_> = unclaimed.take(SUMMARIES).map(|seen| seen.summary.clone()).collect();
        latest.reverse();
        latest
    }
}

/// Releases requests without the lock of the table: a release calls into the connection.
fn release(requests: impl IntoIterator<Item = WeakUnclaimed>) {
    requests.into_iter().filter_map(|request| request.upgrade()).for_each(|request| request.release());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{SESSIONS, SUMMARIES, State};
    use crate::requests::UnclaimedSummary;

    #[test]
    fn requests_of_sessions_that_were_known_before_a_call_are_not_listed() {
        let (mut state, start) = (State::default(), Instant::now());
        let see = |state: &mut State, session: Option<&str>, second: u64| {
            let summary = UnclaimedSummary { method: "m".into(), session_id: session.map(str::to_owned) };
            state.see(session, summary, Arc::default(), start + Duration::from_secs(second));
        };
        see(&mut state, Some("theirs"), 0);
        see(&mut state, None, 0);
        for second in 10..20 {
            see(&mut state, Some("theirs"), second);
        }
        see(&mut state, Some("ours"), 10);
        see(&mut state, None, 11);
        let listed = |state: &State| {
            let listed = state.seen_within(Duration::from_secs(10), start + Duration::from_secs(20));
            listed.into_iter().map(|request| request.session_id).collect::<Vec<_>>()
        };
        assert_eq!(listed(&state), [Some("ours".to_owned()), None]);
        for number in 0..2 * SESSIONS {
            see(&mut state, Some(&number.to_string()), 20);
        }
        assert_eq!((state.seen.len(), listed(&state).len()), (SESSIONS, SUMMARIES));
    }
}
