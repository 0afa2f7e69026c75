//! Pending calls about a session, or to create one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Hub;
use crate::Update;
use crate::client::event::Queue;

/// A guard: a call of this client about a session is pending while it exists.
#[derive(Debug)]
pub(in crate::client) struct PendingCall {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
}

/// A guard: a call of this client that creates a session is pending while it exists. Updates that arrive before the
/// response are stored.
#[derive(Debug)]
pub(in crate::client) struct Opening(pub(super) Arc<Hub>);

/// A guard: a call of this client that forks a session is pending while it exists.
#[derive(Debug)]
pub(in crate::client) struct Forking {
    pub(super) opening: Opening,
    /// What the agent replays before the response, of every session that may be the new one.
    pub(super) replayed: Arc<Queue<Update>>,
}

impl Forking {
    /// Takes the conversation of the new session that arrived before the response.
    pub(in crate::client) fn history(self, id: &str) -> Vec<Update> {
        let replayed = std::iter::from_fn(|| self.replayed.pop());
        let mut history: Vec<_> = replayed.filter(|update| update.session_id() == id).collect();
        history.extend(self.opening.0.lock().session(id).take_unread_conversation(id));
        history
    }
}

impl Drop for Forking {
    fn drop(&mut self) {
        let hub = &self.opening.0;
        hub.lock().forks.retain(|queue| !Arc::ptr_eq(queue, &self.replayed));
        hub.loads.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.lock().end_opening();
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(session) = state.sessions.get_mut(&self.id) {
            session.pending_calls = session.pending_calls.saturating_sub(1);
        }
        state.measure(&self.id);
    }
}
