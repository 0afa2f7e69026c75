//! The pending requests.

use std::collections::BTreeMap;

/// A table from the number of a request to its waiter. It knows neither tasks nor clocks.
#[derive(Debug)]
pub(crate) struct Pending<W> {
    waiters: BTreeMap<u64, W>,
}

impl<W> Default for Pending<W> {
    fn default() -> Self {
        Self { waiters: BTreeMap::new() }
    }
}

impl<W> Pending<W> {
    pub(crate) fn register(&mut self, number: u64, waiter: W) {
        self.waiters.insert(number, waiter);
    }

    /// Removes the waiter: a request settles once.
    pub(crate) fn take(&mut self, number: u64) -> Option<W> {
        self.waiters.remove(&number)
    }

    pub(crate) fn take_all(&mut self) -> Vec<W> {
        std::mem::take(&mut self.waiters).into_values().collect()
    }

    pub(crate) fn take_where(&mut self, mut wanted: impl FnMut(&W) -> bool) -> Vec<W> {
        let numbers: Vec<u64> =
            self.waiters.iter().filter(|(_, waiter)| wanted(waiter)).map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.waiters.remove(&number)).collect()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut W> {
        self.waiters.get_mut(&number)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &W)> {
        self.waiters.iter().map(|(number, waiter)| (*number, waiter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_settles_once() {
        let mut pending = Pending::default();
        pending.register(1, "a");
        assert_eq!(pending.take(1), Some("a"));
        assert_eq!(pending.take(1), None);
        assert_eq!(pending.iter().count(), 0);
    }

    #[test]
    fn waiters_are_removed_together_or_by_a_predicate() {
        let mut pending = Pending::default();
        for number in 0..10 {
            pending.register(number, number);
        }
        let mut even = pending.take_where(|number| number % 2 == 0);
        even.sort_unstable();
        assert_eq!(even, [0, 2, 4, 6, 8]);
        assert_eq!(pending.take_all().len(), 5);
        assert_eq!(pending.iter().count(), 0);
    }
}
