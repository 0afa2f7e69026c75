//! A numbered stream: what has been seen, what is missing, and whether the server is still the same one.

mod outcome;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use super::{Fingerprint, prints::Prints};

pub(super) use outcome::Accepted;
pub(crate) use outcome::{Flow, Sequenced};

/// How many declared gaps are remembered, in case their events arrive late.
const GAPS: usize = 64;
/// How many events behind a hole are taken before the hole is reported: some servers number two producers
/// independently, so that neighbours may swap places.
const REORDER: usize = 8;
/// After so many holes in a row that could not be filled, holes are reported without another fetch.
const FUTILE: u32 = 3;
/// How many events are remembered that a reopened stream delivers before it shows that the server is the same one. It is
/// asked for an event that shows it first.
const UNPROVEN: usize = 1024;
/// How long a reopened stream has to fill a hole, and how long a swapped neighbour has to arrive. Neither decides what
/// is delivered: an event of a reported gap that arrives later is delivered then.
const REFETCH_TIMEOUT: Duration = Duration::from_secs(1);
const REORDER_TIMEOUT: Duration = Duration::from_millis(50);

/// Orders the events of one stream by their numbers and drops repeats.
///
/// Numbers count from 1 without holes in each incarnation of a server. A hole is fetched again once; events behind it
/// are held meanwhile, and given with a [`Sequenced::Gap`] before them if it stays open. A number of an earlier opening
/// with other content proves that the server restarted. Within one opening the same number with other content is no
/// restart but a broken promise.
#[derive(Debug)]
pub(crate) struct Sequence<T> {
    /// The lowest number of this incarnation that was seen, where the stream was read from its beginning.
    first: Option<u64>,
    last: Option<u64>,
    prints: Prints,
    /// What came behind a hole; an event that could not be taken holds its position without an item.
    held: BTreeMap<u64, Option<T>>,
    hole: Hole,
    /// How far the stream that is open has come. What is held beyond that came on an earlier one.
    reached: u64,
    /// The last number when the stream was opened: what is above was first seen on the open stream.
    last_at_opening: u64,
    openings: u32,
    /// The opening that established `first`.
    first_opening: u32,
    /// Whether the open stream brought an old number with unknown content, which was dropped as a repeat.
    assumed_repeat: bool,
    /// Whether the open stream has shown that the server is still the same one.
    proven: bool,
    /// Whether it was reported that it has not.
    doubted: bool,
    /// What the open stream delivered before that: it may be of another incarnation, and then comes again.
    unproven: Vec<(u64, Fingerprint)>,
    /// What was delivered of this incarnation before it was known to be another one.
    early: HashMap<u64, Fingerprint>,
    /// How many holes in a row were fetched again in vain.
    futile: u32,
    gaps: VecDeque<(u64, u64)>,
    repeats: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hole {
    None,
    /// The stream is being opened again to fill it.
    Refetching,
    /// The reopened stream continued behind it; so many events were taken since.
    Confirmed(usize),
}

impl<T> Sequence<T> {
    /// Starts at the beginning of what the server has, or behind an event that an earlier client has seen.
    pub(super) fn new(resume_from: Option<u64>) -> Self {
        Self {
            first: None,
            last: resume_from,
            prints: Prints::default(),
            held: BTreeMap::new(),
            hole: Hole::None,
            reached: 0,
            last_at_opening: resume_from.unwrap_or(0),
            openings: 0,
            first_opening: 0,
            assumed_repeat: false,
            proven: true,
            doubted: false,
            unproven: Vec::new(),
            early: HashMap::new(),
            futile: 0,
            gaps: VecDeque::new(),
            repeats: 0,
        }
    }

    /// The number to open the stream behind. Where it is cheap, one event that was seen already is fetched again: it
    /// proves that the server is still the same one.
    pub(super) fn resume_point(&self) -> Option<u64> {
        let point = self.last? - u64::from(self.overlaps());
        (point > 0).then_some(point)
    }

    /// Whether a stream opened at `resume_point` begins with an event that was seen before.
    pub(super) fn overlaps(&self) -> bool {
        self.last.and_then(|last| self.prints.get(last)).is_some_and(Fingerprint::is_small)
    }

    /// The last number up to which nothing is missing.
    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    pub(super) fn repeats(&self) -> u64 {
        self.repeats
    }

    pub(super) fn hole_timeout(&self) -> Option<Duration> {
        match self.hole {
            Hole::None => None,
            Hole::Refetching => Some(REFETCH_TIMEOUT),
            Hole::Confirmed(_) => Some(REORDER_TIMEOUT),
        }
    }

    /// Takes one event; one without a number has no position and passes. `fresh` gives, for the response to a request
    /// that is pending, the highest number that was seen before the request was made.
    pub(super) fn accept(
        &mut self,
        number: Option<u64>,
        print: Fingerprint,
        item: T,
        fresh: impl FnOnce(&T) -> Option<u64>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Accepted<T> {
        let Some(n) = number else {
            out.push(Sequenced::Item(item));
            return Accepted::Taken(Flow::Continue);
        };
        if n == 0 || self.is_broken_promise(n, print) {
            return Accepted::NotASequence(item);
        }
        let is_old = self.last.is_some_and(|last| n <= last);
        let fresh = if is_old { fresh(&item) } else { None };
        Accepted::Taken(self.accept_number(n, print, fresh, Some(item), out))
    }

    /// Whether the open stream itself brought this number with other content. A restarted server counts from 1.
    fn is_broken_promise(&self, n: u64, print: Fingerprint) -> bool {
        n > 1
            && n > self.last_at_opening
            && (self.last.is_some_and(|last| n <= last) || self.held.contains_key(&n))
            && self.prints.get(n).is_some_and(|known| known != print && known != Fingerprint::SKIPPED)
    }

    /// Moves behind an event that cannot be taken, so that it is never fetched again. Without an id, it is the one
    /// behind the last.
    pub(super) fn skip(&mut self, id: Option<Option<u64>>, out: &mut Vec<Sequenced<T>>) -> Flow {
        let number = match (id, self.last) {
            (Some(Some(number)), Some(last)) if number <= last => {
                self.repeats += 1;
                return Flow::Continue;
            }
            (Some(Some(number)), _) => number,
            (None, Some(last)) => last.saturating_add(1),
            (Some(None), _) | (None, None) => return Flow::Continue,
        };
        self.accept_number(number, Fingerprint::SKIPPED, None, None, out)
    }

    pub(super) fn reopened(&mut self) {
        self.reached = 0;
        self.openings += 1;
        self.last_at_opening = self.held.last_key_value().map_or(0, |(n, _)| *n).max(self.last.unwrap_or(0));
        self.assumed_repeat = false;
        self.proven = self.last.is_none();
        self.doubted = false;
        self.unproven.clear();
        if self.hole != Hole::None {
            self.hole = Hole::Refetching;
        }
    }

    /// Reports every hole and gives what is held behind them.
    pub(super) fn give_up(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.believe(u64::MAX, out);
    }

    /// Gives what is held without reporting holes: there never were any.
    pub(super) fn release_all(&mut self, out: &mut Vec<Sequenced<T>>) {
        out.extend(std::mem::take(&mut self.held).into_values().flatten().map(Sequenced::Item));
    }

    /// Reports the holes before this number and gives what is held behind them.
    fn believe(&mut self, end: u64, out: &mut Vec<Sequenced<T>>) {
        if !self.held.is_empty() {
            self.futile = self.futile.saturating_add(1);
        }
        while let Some((&next, _)) = self.held.first_key_value() {
            let from = self.last.unwrap_or(0).saturating_add(1);
            if next > from {
                if next > end {
                    // The open stream has yet to come to this one.
                    self.hole = Hole::Refetching;
                    return;
                }
                out.push(Sequenced::Gap { from, to: next - 1 });
                if self.gaps.len() == GAPS {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((from, next - 1));
            }
            self.last = Some(next - 1);
            self.release(out);
        }
        self.hole = Hole::None;
    }

    fn accept_number(
        &mut self,
        n: u64,
        print: Fingerprint,
        fresh: Option<u64>,
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        self.reached = self.reached.max(n);
        let Some(last) = self.last else {
            // The first event of a first stream: what came before it was never ours.
            self.first = Some(n);
            self.first_opening = self.openings;
            self.prints.insert(n, print);
            self.last = Some(n);
            out.extend(item.map(Sequenced::Item));
            return Flow::Continue;
        };
        if n <= last {
            return self.accept_old(n, print, fresh, item, out);
        }
        self.prints.insert(n, print);
        let item = item.filter(|_| self.early.is_empty() || self.early.remove(&n) != Some(print));
        if n == last.saturating_add(1) {
            self.last = Some(n);
            self.delivered(n, out);
            self.held.remove(&n);
            self.futile = 0;
            out.extend(item.map(Sequenced::Item));
            self.release(out);
            return Flow::Continue;
        }
        self.held.entry(n).or_insert(item);
        self.widen_hole(out)
    }

    fn accept_old(
        &mut self,
        n: u64,
        print: Fingerprint,
        fresh: Option<u64>,
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        match self.prints.get(n) {
            Some(known) if known == print && fresh.is_none() => {
                self.repeats += 1;
                self.proven = true;
                self.unproven.clear();
                return Flow::Continue;
            }
            // A response has a higher number than everything that was seen before its request.
            None if self.is_late(n) && fresh.is_none_or(|seen| n > seen) => {
                self.prints.insert(n, print);
                self.first = self.first.map(|first| first.min(n));
                self.delivered(n, out);
                let item = item.filter(|_| self.early.remove(&n) != Some(print));
                out.extend(item.map(Sequenced::Late));
                return Flow::Continue;
            }
            // It is older than what is remembered, and nothing says that the server is another one.
            None if fresh.is_none() && self.first.is_none_or(|first| n >= first) => {
                self.repeats += 1;
                self.assumed_repeat = true;
                return Flow::Continue;
            }
            _ => {}
        }
        let reread = self.assumed_repeat;
        self.give_up(out);
        self.start_over(out);
        if reread {
            // What was dropped on this stream came from the new server: it is read from its beginning.
            return Flow::Reopen;
        }
        self.accept_number(n, print, None, item, out)
    }

    /// Whether an old number was never seen: it is in a gap that was reported, or a neighbour of the first event that
    /// swapped places with it.
    fn is_late(&self, n: u64) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&n))
            || (self.openings == self.first_opening && self.first.is_some_and(|first| n < first))
    }

    fn start_over(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.first = Some(1);
        self.first_opening = u32::MAX;
        self.last = Some(0);
        self.reached = 0;
        self.last_at_opening = 0;
        self.assumed_repeat = false;
        self.proven = true;
        self.early = self.unproven.drain(..).collect();
        self.prints = Prints::default();
        self.gaps.clear();
        self.hole = Hole::None;
        out.push(Sequenced::Restarted);
    }

    fn widen_hole(&mut self, out: &mut Vec<Sequenced<T>>) -> Flow {
        match self.hole {
            // A server whose numbers are not dense would be asked again for every event.
            Hole::None if self.futile >= FUTILE => {
                self.believe(self.reached, out);
                Flow::Continue
            }
            Hole::None => {
                self.hole = Hole::Refetching;
                Flow::Reopen
            }
            Hole::Refetching => {
                self.hole = Hole::Confirmed(1);
                Flow::Continue
            }
            Hole::Confirmed(count) if count < REORDER => {
                self.hole = Hole::Confirmed(count + 1);
                Flow::Continue
            }
            Hole::Confirmed(_) => {
                self.believe(self.reached, out);
                Flow::Continue
            }
        }
    }

    /// Gives the held events that follow without a hole.
    fn release(&mut self, out: &mut Vec<Sequenced<T>>) {
        while let Some(entry) = self.held.first_entry() {
            let n = *entry.key();
            if self.last.is_some_and(|last| n > last.saturating_add(1)) {
                return;
            }
            let item = entry.remove();
            self.last = Some(n);
            self.delivered(n, out);
            out.extend(item.map(Sequenced::Item));
        }
        self.hole = Hole::None;
    }

    /// An event is given out. If nothing shows yet that the server is the same one, it is remembered.
    fn delivered(&mut self, n: u64, out: &mut Vec<Sequenced<T>>) {
        if self.proven {
            return;
        }
        if !std::mem::replace(&mut self.doubted, true) {
            out.push(Sequenced::Unproven);
        }
        if self.unproven.len() < UNPROVEN
            && let Some(print) = self.prints.get(n)
        {
            self.unproven.push((n, print));
        }
    }
}
