//! What a program has done to records itself.

use std::collections::VecDeque;

use crate::client::random::random_id;
use crate::sessions::SessionRecord;

/// How many names are remembered.
const NAMES: usize = 1024;

/// The names under which a program has taken sessions up, and left them. A write whose answer never came may have been
/// done all the same.
#[derive(Debug, Default)]
pub(super) struct Own {
    names: VecDeque<String>,
}

impl Own {
    /// Another name.
    pub(super) fn name(&mut self) -> String {
        if self.names.len() == NAMES {
            self.names.pop_front();
        }
        let name = random_id();
        self.names.push_back(name.clone());
        name
    }

    /// Whether this program was the last to take up the session, or to leave it.
    pub(super) fn has_done(&self, record: &SessionRecord) -> bool {
        record.taken_by.as_ref().is_some_and(|name| self.names.contains(name))
    }
}
