//! The agent requests that probably belong to other clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::requests::WeakUnclaimed;
use crate::requests::{UnclaimedRequest, UnclaimedSummary};

/// How many summaries are stored for timeouts.
const SUMMARIES: usize = 16;

/// The unclaimed requests that can be claimed, within a bound, and the last ones that arrived.
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
    seen: VecDeque<Seen>,
    closed: bool,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    summary: UnclaimedSummary,
    claimed: Arc<AtomicBool>,
}

impl UnclaimedTable {
    pub(in crate::client) fn new(bound: usize) -> Self {
        Self { bound, state: Mutex::default() }
    }

    /// Adds a request. If there are too many, the oldest can no longer be claimed.
    pub(super) fn add(&self, request: &UnclaimedRequest) {
        let released: Vec<_> = {
            let mut state = self.lock();
            let (summary, claimed) = request.summary();
            if state.seen.len() == SUMMARIES {
                state.seen.pop_front();
            }
            state.seen.push_back(Seen { at: Instant::now(), summary, claimed });
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

    /// The last requests that arrived within this time until now and were not claimed.
    pub(in crate::client) fn seen_within(&self, time: Duration) -> Vec<UnclaimedSummary> {
        let state = self.lock();
        let recent = state.seen.iter().filter(|seen| seen.at.elapsed() <= time);
        let unclaimed = recent.filter(|seen| !seen.claimed.load(Ordering::Acquire));
        unclaimed.map(|seen| seen.summary.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Releases requests without the lock of the table: a release calls into the connection.
fn release(requests: impl IntoIterator<Item = WeakUnclaimed>) {
    requests.into_iter().filter_map(|request| request.upgrade()).for_each(|request| request.release());
}
