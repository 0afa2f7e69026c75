//! The history of sessions that are being loaded.

use std::sync::Arc;

use super::{OrderedCore, Replay};
use crate::events::{is_conversation, peek_session};

/// A call that loads a session.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) number: u64,
    session: Arc<str>,
    replay: Replay,
}

impl OrderedCore {
    /// Starts a call: until its response, the updates of its session are history.
    pub(crate) fn loading(&mut self, number: u64, session: Arc<str>, replay: Replay) {
        self.loads.push(Load { number, session, replay });
    }

    /// Whether an update belongs to the history of a session that is being loaded.
    pub(super) fn is_history(&self, params: &[u8]) -> bool {
        if self.loads.is_empty() {
            return false;
        }
        let Some(session) = peek_session(params) else { return false };
        let mut loads = self.loads.iter().filter(|load| *load.session == *session);
        loads.any(|load| load.replay == Replay::Everything || is_conversation(params))
    }
}
