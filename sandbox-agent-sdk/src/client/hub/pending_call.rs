//! Calls that are pending: about a session, or to make one.

use std::sync::Arc;

use super::Hub;

/// A call of this client about a session is pending for as long as this lives.
#[derive(Debug)]
pub(in crate::client) struct PendingCall {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
}

/// A call of this client that makes a session is pending for as long as this lives. Updates that arrive before its
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
