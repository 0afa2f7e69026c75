//! The fingerprints of a numbered stream.

use std::collections::VecDeque;

use super::Fingerprint;

/// How many of the latest events are remembered each. Replay buffers of known servers hold 1024.
const LATEST: usize = 1024;
/// How many older ones are sampled.
const SAMPLES: usize = 512;
/// The initial interval of samples, in events. It doubles when the samples are full.
const STRIDE: u64 = 64;

/// Remembers each of the latest events and, ever more sparsely, older ones: the memory is bounded, and a replay from
/// any point meets a remembered event soon.
#[derive(Debug)]
pub(super) struct Prints {
    /// Sorted by number.
    latest: VecDeque<(u64, Fingerprint)>,
    /// Sorted by number; the first event of an incarnation is always among them.
    samples: VecDeque<(u64, Fingerprint)>,
    stride: u64,
}

impl Default for Prints {
    fn default() -> Self {
        Self { latest: VecDeque::new(), samples: VecDeque::new(), stride: STRIDE }
    }
}

impl Prints {
    pub(super) fn insert(&mut self, number: u64, print: Fingerprint) {
        // Before the insertion, so that the table never grows beyond its bound.
        if self.latest.len() == LATEST
            && let Some((number, print)) = self.latest.pop_front()
            && number % self.stride == 1
        {
            self.sample(number, print);
        }
        match self.latest.back() {
            Some((last, _)) if *last >= number => {
                let place = self.latest.partition_point(|(other, _)| *other < number);
                match self.latest.get_mut(place) {
                    Some((other, known)) if *other == number => *known = print,
                    _ => self.latest.insert(place, (number, print)),
                }
            }
            _ => self.latest.push_back((number, print)),
        }
    }

    /// Forgets these numbers, both ends included.
    pub(super) fn forget(&mut self, from: u64, to: u64) {
        if from <= self.highest() {
            self.latest.retain(|(number, _)| !(from..=to).contains(number));
        }
    }

    /// The highest number that is remembered, or 0.
    pub(super) fn highest(&self) -> u64 {
        self.latest.back().map_or(0, |(number, _)| *number)
    }

    pub(super) fn get(&self, number: u64) -> Option<Fingerprint> {
        if number > self.highest() {
            return None;
        }
        // Numbers are mostly dense, so that the index is known.
        let guess = self.latest.front().and_then(|(first, _)| number.checked_sub(*first));
        if let Some((other, print)) = guess.and_then(|guess| self.latest.get(usize::try_from(guess).ok()?))
            && *other == number
        {
            return Some(*print);
        }
        search(&self.latest, number).or_else(|| search(&self.samples, number))
    }

    fn sample(&mut self, number: u64, print: Fingerprint) {
        if self.samples.len() == SAMPLES {
            self.stride = self.stride.saturating_mul(2);
            let stride = self.stride;
            self.samples.retain(|(number, _)| number % stride == 1);
        }
        if number % self.stride == 1 {
            let place = self.samples.partition_point(|(other, _)| *other < number);
            self.samples.insert(place, (number, print));
        }
    }
}

fn search(prints: &VecDeque<(u64, Fingerprint)>, number: u64) -> Option<Fingerprint> {
    let place = prints.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    prints.get(place).map(|(_, print)| *print)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_and_some_of_the_rest_are_remembered_in_bounded_memory() {
        let mut prints = Prints::default();
        let print = |n: u64| Fingerprint::of(&n.to_le_bytes());
        let count = 300_000;
        for n in 1..=count {
            prints.insert(n, print(n));
        }
        assert_eq!(prints.get(1), Some(print(1)), "the first event tells one incarnation from the next");
        assert!((count - LATEST as u64 + 1..=count).all(|n| prints.get(n) == Some(print(n))));
        let remembered: Vec<_> = (1..=count).filter(|n| prints.get(*n).is_some()).collect();
        assert!(remembered.len() <= LATEST + SAMPLES);
        let widest = remembered.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(widest <= Some(2 * prints.stride), "{widest:?}");
        assert_eq!(prints.get(count + 1), None);
    }

    #[test]
    fn late_and_sparse_numbers_are_found() {
        let mut prints = Prints::default();
        for n in [5, 9, 7, u64::MAX - 1, 6] {
            prints.insert(n, Fingerprint::of(&n.to_le_bytes()));
        }
        for n in [5, 6, 7, 9, u64::MAX - 1] {
            assert_eq!(prints.get(n), Some(Fingerprint::of(&n.to_le_bytes())));
        }
        assert_eq!((prints.get(8), prints.get(0)), (None, None));
    }
}
