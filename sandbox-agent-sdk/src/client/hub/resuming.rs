//! A session that is being loaded or resumed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Hub;

/// A guard: a call loads or resumes a session while it exists.
#[derive(Debug)]
pub(in crate::client) struct Resuming {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
    /// Whether the agent replays the conversation.
    pub(super) loads: bool,
}

impl Drop for Resuming {
    /// If the call failed, the session is as it was before, and its requests are closed.
    fn drop(&mut self) {
        self.hub.loads.fetch_sub(usize::from(self.loads), Ordering::AcqRel);
        let over = {
            let mut state = self.hub.lock();
            let session = state.session(&self.id);
            session.resuming -= 1;
            if self.loads {
                session.loads.send_modify(|loads| *loads -= 1);
            }
            if session.resuming == 0 {
                session.past_end = false;
                session.snapshot.loaded();
            }
            let over = session.is_over();
            state.measure(&self.id);
            over
        };
        if over {
            self.hub.notify_end(&self.id);
        }
    }
}
