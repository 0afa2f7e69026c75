//! A numbered stream: what has been seen, what is missing, and whether the server is still the same one.

mod holes;
mod incarnation;
mod outcome;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use self::{
    holes::{FUTILE, Held, Hole, Trust},
    incarnation::{LATE, Standing},
};
use super::{Fingerprint, prints::Prints};

pub(super) use outcome::Accepted;
pub(crate) use outcome::{Flow, Sequenced};

/// How long a reopened stream has to fill a hole, and how long a swapped neighbour has to arrive. Neither decides what
/// is delivered: an event of a reported gap that arrives later is delivered then.
const REFETCH_TIMEOUT: Duration = Duration::from_secs(1);
const REORDER_TIMEOUT: Duration = Duration::from_millis(50);

/// Orders the events of one stream by their numbers and drops repeats.
///
/// Numbers count from 1 without holes in each incarnation of a server. A hole is fetched again once. Events after it
/// are held meanwhile, and released after a [`Sequenced::Gap`] if the hole stays open. Three facts decide which
/// incarnation the open stream reads:
/// - one opening reads one incarnation;
/// - an event of an earlier opening that arrives again shows that the server has not restarted since that opening;
/// - a number of an earlier opening with other content shows that it has. A response under a number that was seen before
///   its request was made shows the same.
///
/// Until one of them is seen, the events of the open stream are remembered, because they arrive again if the server
/// has restarted. Within one opening the same number with other content is not a restart: the server breaks its
/// contract.
#[derive(Debug)]
pub(crate) struct Sequence<T> {
    /// The lowest number of this incarnation that was seen, where the stream was read from its beginning.
    first: Option<u64>,
    last: Option<u64>,
    prints: Prints,
    /// The events after a hole.
    held: BTreeMap<u64, Held<T>>,
    hole: Hole,
    /// The highest number that the open stream has reached. Held events beyond it arrived on an earlier stream.
    reached: u64,
    /// The highest number that was seen when the stream was opened: higher ones were first seen on the open stream.
    seen_at_opening: u64,
    openings: u32,
    /// The opening that established `first`.
    first_opening: u32,
    /// Whether the open stream sent an old number with unknown content, which was dropped as a repeat.
    assumed_repeat: bool,
    standing: Standing,
    /// The number of an event that the open stream sends unless the server has dropped it or restarted.
    overlap: Option<u64>,
    /// Whether it was reported that the open stream has not shown that the server is the same one.
    doubted: bool,
    /// Events of reported gaps that wait for the open stream to show that the server is the same one.
    late: BTreeMap<u64, (Fingerprint, T)>,
    /// What was seen since the server was last shown to be the same one, with the first opening that is known to have
    /// read the same incarnation.
    unproven: Option<BTreeMap<u64, (Fingerprint, u32)>>,
    /// The first opening that is known to have read the same incarnation as the open stream.
    since: u32,
    /// Events of this incarnation that were delivered before it was known to be another one. They may arrive again
    /// repeatedly.
    early: BTreeMap<u64, Fingerprint>,
    /// How many holes in a row stayed open after another fetch.
    futile: u32,
    /// How many restarts in a row were followed by no event in order.
    restarts: u32,
    gaps: VecDeque<(u64, u64)>,
    repeats: u64,
}

impl<T> Sequence<T> {
    /// Starts at the beginning of the server's buffer, or after an event that an earlier client has seen.
    pub(super) fn new(resume_from: Option<u64>) -> Self {
        Self {
            first: None,
            last: resume_from,
            prints: Prints::default(),
            held: BTreeMap::new(),
            hole: Hole::None,
            reached: 0,
            seen_at_opening: resume_from.unwrap_or(0),
            openings: 0,
            first_opening: 0,
            assumed_repeat: false,
            standing: Standing::Same,
            overlap: None,
            doubted: false,
            late: BTreeMap::new(),
            unproven: None,
            since: 0,
            early: BTreeMap::new(),
            futile: 0,
            restarts: 0,
            gaps: VecDeque::new(),
            repeats: 0,
        }
    }

    /// The number after which the stream is opened. If that is cheap, one event that was already seen is fetched
    /// again: it proves that the server is still the same one.
    pub(super) fn resume_point(&self) -> Option<u64> {
        let point = self.last? - u64::from(self.overlaps());
        (point > 0).then_some(point)
    }

    /// Whether a stream opened at `resume_point` begins with an event that was seen before.
    pub(super) fn overlaps(&self) -> bool {
        self.last.and_then(|last| self.prints.get(last)).is_some_and(Fingerprint::is_small)
    }

    /// The last number before any missing event.
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

    /// Accepts one event. An event without a number has no position and passes. For the response to a pending
    /// request, `fresh` returns the highest number that was seen before the request was made.
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

    /// Whether the open stream itself sent this number with other content. A restarted server counts from 1.
    fn is_broken_promise(&self, n: u64, print: Fingerprint) -> bool {
        n > 1
            && n > self.seen_at_opening
            && self.prints.get(n).is_some_and(|known| known != print && known != Fingerprint::SKIPPED)
    }

    /// Moves past an event that cannot be accepted, so that it is never fetched again. Without an id, it is the one
    /// after the last.
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
        self.since = self.openings;
        self.seen_at_opening = self.prints.highest().max(self.last.unwrap_or(0));
        self.assumed_repeat = false;
        self.doubted = false;
        // They are in a reported gap, or arrive again if the server has restarted.
        self.late.clear();
        self.overlap = match self.last {
            // Another incarnation is read from its beginning.
            Some(0) => Some(self.seen_at_opening),
            last => last.filter(|_| self.overlaps()),
        };
        if self.prints.highest() == 0 {
            // Nothing was seen that could be contradicted.
            self.standing = Standing::Same;
        } else {
            self.standing = Standing::Unknown;
            self.unproven.get_or_insert_default();
        }
        if self.hole != Hole::None {
            self.hole = Hole::Refetching;
        }
    }

    /// Reports every hole and releases the events that are held after it.
    pub(super) fn give_up(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.believe(u64::MAX, out);
    }

    /// Releases the held events without reporting holes: there never were any.
    pub(super) fn release_all(&mut self, out: &mut Vec<Sequenced<T>>) {
        let held = std::mem::take(&mut self.held).into_values().filter_map(|held| held.item);
        out.extend(held.map(Sequenced::Item));
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
            // The first event of the first stream: earlier events do not concern this client.
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
        match self.prints.get(n) {
            // An event that was skipped unread has no content to compare.
            Some(known) if known == Fingerprint::SKIPPED || print == Fingerprint::SKIPPED => {}
            Some(known) if known == print => self.recognised(n, out),
            Some(_) => return self.restarted(n, print, item, out),
            None => {
                if self.standing == Standing::Unknown && self.overlap.is_some_and(|overlap| n > overlap) {
                    self.standing = Standing::Ahead;
                }
                self.note(n, print);
            }
        }
        let item = item.filter(|_| !self.was_early(n, print));
        if n == last.saturating_add(1) {
            self.last = Some(n);
            self.doubt(out);
            self.held.remove(&n);
            (self.futile, self.restarts) = (0, 0);
            out.extend(item.map(Sequenced::Item));
            self.release(Trust::Shown, out);
            return Flow::Continue;
        }
        let opening = self.openings;
        self.held.entry(n).or_insert(Held { item, opening });
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
            Some(known) if known == print => {
                self.repeats += 1;
                self.recognised(n, out);
                Flow::Continue
            }
            // A response has a higher number than everything that was seen before its request.
            None if self.is_late(n) && fresh.is_none_or(|seen| n > seen) => {
                if let Some(item) = item {
                    self.late.insert(n, (print, item));
                }
                // A server that withholds the proof must not fill the memory.
                let is_full = self.late.len() >= LATE || !print.is_small();
                if is_full {
                    self.doubt(out);
                }
                if is_full || self.standing == Standing::Same || n > self.seen_at_opening {
                    self.give_late(out);
                }
                Flow::Continue
            }
            // It is older than the remembered events, and nothing shows that the server is another one.
            None if fresh.is_none() && self.first.is_none_or(|first| n >= first) => {
                self.repeats += 1;
                self.assumed_repeat = true;
                Flow::Continue
            }
            _ => self.restarted(n, print, item, out),
        }
    }
}
