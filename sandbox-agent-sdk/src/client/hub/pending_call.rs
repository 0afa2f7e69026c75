//! A call about a session that is pending.

use std::sync::Arc;

use super::Hub;

/// A call of this client about a session is pending for as long as this lives.
#[derive(Debug)]
pub(in crate::client) struct PendingCall {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(book) = self.hub.lock().sessions.get_mut(&self.id) {
            book.pending_calls = book.pending_calls.saturating_sub(1);
        }
    }
}
