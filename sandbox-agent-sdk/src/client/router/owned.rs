//! The sessions with open agent requests that this client serves.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts the open requests that this client serves, by session. On a shared endpoint only these are cancelled when
/// it disconnects.
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
