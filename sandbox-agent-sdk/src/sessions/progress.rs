//! How far a stream is stored.

use std::collections::{BTreeMap, VecDeque};

use crate::stream::StreamPosition as Position;

/// How many positions of the stream are remembered.
const POSITIONS: usize = 4096;

/// How far a stream is stored: the events that trackers have and have not stored yet are counted by their offsets.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The latest positions of the stream.
    passed: VecDeque<Position>,
    /// How many events at each offset are not stored yet. No event after the first of these offsets counts as stored.
    unstored: BTreeMap<u64, usize>,
    /// How many events have arrived since the progress was stored.
    unreported: usize,
}

impl Progress {
    /// Records an event of the stream. Returns how many have arrived since the progress was stored.
    pub(super) fn pass(&mut self, position: Position) -> usize {
        if self.passed.back().is_some_and(|last| last.incarnation != position.incarnation) {
            // Another stream, whose offsets do not compare.
            *self = Self::default();
        }
        if self.passed.len() == POSITIONS {
            self.passed.pop_front();
        }
        self.passed.push_back(position);
        self.unreported += 1;
        self.unreported
    }

    /// The event at this offset is to be stored.
    pub(super) fn hold(&mut self, offset: u64) {
        *self.unstored.entry(offset).or_default() += 1;
    }

    /// The event at this offset is stored, or need not be.
    pub(super) fn settle(&mut self, offset: u64) {
        if let Some(count) = self.unstored.get_mut(&offset) {
            *count -= 1;
            if *count == 0 {
                self.unstored.remove(&offset);
            }
        }
    }

    /// The latest position of the stream.
    pub(super) fn latest(&self) -> Option<Position> {
        self.passed.back().copied()
    }

    /// The position up to which everything is stored.
    pub(super) fn stored_to(&self) -> Option<Position> {
        let first = self.unstored.keys().next().copied().unwrap_or(u64::MAX);
        self.passed.iter().rev().find(|position| position.offset < first).copied()
    }

    /// The progress is being stored.
    pub(super) fn report(&mut self) {
        self.unreported = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;
    use crate::stream::StreamPosition;

    #[test]
    fn nothing_behind_an_event_that_is_not_stored_counts_as_stored() {
        let mut progress = Progress::default();
        let stored_to = |progress: &Progress| progress.stored_to().map(|position| position.offset);
        for offset in 1..=4 {
            assert_eq!(progress.pass(StreamPosition::new(0, offset, 0)), usize::try_from(offset).unwrap());
        }
        assert_eq!(stored_to(&progress), Some(4));
        progress.hold(2);
        progress.hold(2);
        progress.hold(3);
        assert_eq!(stored_to(&progress), Some(1));
        progress.settle(2);
        assert_eq!(stored_to(&progress), Some(1), "another tracker has not stored it");
        progress.settle(2);
        progress.settle(9);
        assert_eq!(stored_to(&progress), Some(2));
        progress.settle(3);
        assert_eq!(stored_to(&progress), Some(4));
        progress.hold(1);
        assert_eq!(stored_to(&progress), None);
        progress.report();
        assert_eq!(progress.pass(StreamPosition::new(0, 5, 0)), 1);
    }
}
