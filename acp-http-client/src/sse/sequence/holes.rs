//! Holes in a numbered stream, and the events that are held after them.

use super::{Flow, Sequence, Sequenced, Standing};

/// How many declared gaps are remembered, in case their events arrive late.
const GAPS: usize = 64;
/// How many events after a hole are accepted before the hole is reported: some servers number two producers
/// independently, so that neighbouring events may be swapped.
const REORDER: usize = 8;
/// After this many holes in a row that could not be filled, holes are reported without another fetch.
pub(super) const FUTILE: u32 = 3;

/// An event after a hole. An event that could not be accepted has a position without an item.
#[derive(Debug)]
pub(super) struct Held<T> {
    pub(super) item: Option<T>,
    pub(super) opening: u32,
}

/// Which held events are released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Those of the incarnation that the open stream reads.
    Shown,
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hole {
    None,
    /// The stream is being opened again to fill it.
    Refetching,
    /// The reopened stream continued after it; this many events were accepted since.
    Confirmed(usize),
}

impl<T> Sequence<T> {
    /// Reports the holes before this number and releases the events held after them.
    pub(super) fn believe(&mut self, end: u64, out: &mut Vec<Sequenced<T>>) {
        if !self.held.is_empty() {
            self.futile = self.futile.saturating_add(1);
        }
        while let Some((&next, _)) = self.held.first_key_value() {
            let from = self.last.unwrap_or(0).saturating_add(1);
            if next > from {
                if next > end {
                    // The open stream has not reached this one.
                    self.hole = Hole::Refetching;
                    return;
                }
                self.report_gap(from, next - 1, out);
            }
            self.last = Some(next - 1);
            self.release(Trust::Any, out);
        }
        self.hole = Hole::None;
    }

    pub(super) fn report_gap(&mut self, from: u64, to: u64, out: &mut Vec<Sequenced<T>>) {
        out.push(Sequenced::Gap { from, to });
        if self.gaps.len() == GAPS {
            self.gaps.pop_front();
        }
        self.gaps.push_back((from, to));
        // Events of it that were seen were not delivered, and may arrive late.
        self.prints.forget(from, to);
    }

    /// An event of a reported gap is delivered: it must not arrive late a second time.
    pub(super) fn fill_gap(&mut self, n: u64) {
        let Some(place) = self.gaps.iter().position(|(from, to)| (*from..=*to).contains(&n)) else { return };
        let (from, to) = self.gaps[place];
        self.gaps.remove(place);
        if n < to {
            self.gaps.insert(place, (n + 1, to));
        }
        if from < n {
            self.gaps.insert(place, (from, n - 1));
        }
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }

    pub(super) fn widen_hole(&mut self, out: &mut Vec<Sequenced<T>>) -> Flow {
        match self.hole {
            // For a server whose numbers are not dense, the stream would be reopened at every event.
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

    /// Releases the held events that follow without a hole.
    pub(super) fn release(&mut self, trust: Trust, out: &mut Vec<Sequenced<T>>) {
        while let Some(entry) = self.held.first_entry() {
            let n = *entry.key();
            if self.last.is_some_and(|last| n > last.saturating_add(1)) {
                return;
            }
            let shown = self.standing == Standing::Same || entry.get().opening >= self.since;
            if trust == Trust::Shown && !shown {
                // The open stream has not reached it. When it does, it shows whether the incarnation is the same.
                self.hole = Hole::Refetching;
                return;
            }
            let held = entry.remove();
            self.last = Some(n);
            self.doubt(out);
            out.extend(held.item.map(Sequenced::Item));
        }
        self.hole = Hole::None;
    }
}
