//! Which messages began in a turn.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use crate::{Update, UpdateKind};

/// The ids of messages, by their hashes, to know whether a chunk belongs to the turn.
#[derive(Debug, Default)]
pub(super) struct Messages {
    hasher: RandomState,
    /// Those that began in the turn.
    of_turn: VecDeque<u64>,
    /// Those that began in a cancelled turn, or outside any turn.
    earlier: VecDeque<u64>,
}

impl Messages {
    /// How many ids are remembered.
    const COUNT: usize = 64;

    /// Whether an update belongs to a turn whose prompt was sent: a message that began before does not.
    pub(super) fn is_of_turn(&mut self, update: &Update, is_prompted: bool) -> bool {
        let (UpdateKind::Message(chunk) | UpdateKind::Thought(chunk)) = update.kind() else {
            return is_prompted;
        };
        let Some(id) = chunk.message_id.as_deref() else { return is_prompted };
        let id = self.hasher.hash_one(id);
        if self.earlier.contains(&id) {
            return false;
        }
        let ids = if is_prompted { &mut self.of_turn } else { &mut self.earlier };
        if !ids.contains(&id) {
            remember(ids, id);
        }
        is_prompted
    }

    pub(super) fn end_turn(&mut self, cancelled: bool) {
        let ids = std::mem::take(&mut self.of_turn);
        if cancelled {
            ids.into_iter().for_each(|id| remember(&mut self.earlier, id));
        }
    }
}

fn remember(ids: &mut VecDeque<u64>, id: u64) {
    if ids.len() == Messages::COUNT {
        ids.pop_front();
    }
    ids.push_back(id);
}
