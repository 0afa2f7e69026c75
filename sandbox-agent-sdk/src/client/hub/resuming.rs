//! A session that is being loaded or resumed.

use std::sync::Arc;

use super::Hub;

/// A call loads or resumes a session for as long as this lives.
#[derive(Debug)]
pub(in crate::client) struct Resuming {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
}

impl Drop for Resuming {
    /// If the call failed, the session is as it was before, and its requests are closed.
    fn drop(&mut self) {
        let over = {
            let mut state = self.hub.lock();
            let session = state.session(&self.id);
            session.resuming -= 1;
            if session.resuming == 0 {
                session.past_end = false;
                session.snapshot.loaded();
            }
            session.is_over()
        };
        if over {
            self.hub.notify_end(&self.id);
        }
    }
}
