//! Pending calls about a session, or to create one.

use std::sync::Arc;

use super::Hub;

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

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.lock().end_opening();
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(session) = self.hub.lock().sessions.get_mut(&self.id) {
            session.pending_calls = session.pending_calls.saturating_sub(1);
        }
    }
}
