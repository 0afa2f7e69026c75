//! A session that is being loaded or resumed.

use std::sync::Arc;

use super::Hub;

/// A call loads or resumes a session for as long as this lives.
#[derive(Debug)]
pub(in crate::client) struct TakingUp {
    pub(super) hub: Arc<Hub>,
    pub(super) id: Arc<str>,
}

impl Drop for TakingUp {
    /// If the call failed, the session is as it was before, and its requests are closed.
    fn drop(&mut self) {
        let deserted = {
            let mut state = self.hub.lock();
            let book = state.book(&self.id);
            book.taking_up -= 1;
            if book.taking_up == 0 {
                book.past_end = false;
                book.snapshot.loaded();
            }
            book.is_deserted()
        };
        if deserted {
            self.hub.tell_end(&self.id);
        }
    }
}
