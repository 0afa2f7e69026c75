//! The prompts of a session that this client has created.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// How many different prompts of a session are remembered.
const COUNT: usize = 4096;

/// The texts of the prompts of a session, by their hashes, and how often each was sent.
#[derive(Debug, Default)]
pub(super) struct KnownPrompts {
    hasher: RandomState,
    counts: BTreeMap<u64, usize>,
}

impl KnownPrompts {
    /// Records a prompt. Returns how many earlier ones have the same text; `None` if there are too many to remember.
    pub(super) fn record(&mut self, text: &str) -> Option<usize> {
        let hash = self.hasher.hash_one(text.trim());
        if self.counts.len() == COUNT && !self.counts.contains_key(&hash) {
            return None;
        }
        let count = self.counts.entry(hash).or_default();
        *count += 1;
        Some(*count - 1)
    }
}
