//! The sessions with open agent requests that this client serves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::client::event_loop::Shared;
use crate::client::hub::Hub;

/// Determines the sessions whose agent requests are addressed to this client or were claimed by it.
#[derive(Debug)]
pub(in crate::client) struct Ownership {
    pub(in crate::client) hub: Arc<Hub>,
    pub(in crate::client) shared: Arc<Shared>,
}

impl Ownership {
    /// Whether this client responds to the requests of a session. On an unshared endpoint it responds to all.
    pub(in crate::client) fn has(&self, session: Option<&str>) -> bool {
        let is_ours = |session| self.shared.owned.contains(session) || self.hub.has_pending_call(session);
        !self.shared.is_shared || session.is_some_and(is_ours)
    }
}

/// Counts the open requests that this client serves, by session. On a shared endpoint only these are cancelled when
/// it disconnects or cancels a turn.
#[derive(Debug, Default)]
pub(in crate::client) struct OwnedSessions {
    /// Guards the counts; held for a look-up or a change.
    counts: Mutex<HashMap<String, usize>>,
}

impl OwnedSessions {
    pub(super) fn enter(self: &Arc<Self>, session: String) -> OwnedSession {
        *self.lock().entry(session.clone()).or_default() += 1;
        OwnedSession { owned: Arc::clone(self), session }
    }

    pub(in crate::client) fn contains(&self, session: &str) -> bool {
        self.lock().contains_key(session)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open request that this client serves.
#[derive(Debug)]
pub(super) struct OwnedSession {
    owned: Arc<OwnedSessions>,
    session: String,
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.owned.lock().entry(std::mem::take(&mut self.session)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
