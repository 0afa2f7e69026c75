//! A numbered stream: what has been seen, what is missing, and whether the server is still the same one.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use super::{Fingerprint, prints::Prints};

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
const REFETCH_PATIENCE: Duration = Duration::from_secs(1);
const REORDER_PATIENCE: Duration = Duration::from_millis(50);

/// What comes out, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequenced<T> {
    /// An event never given before.
    Item(T),
    /// Numbers that the server no longer has, both ends included.
    Gap { from: u64, to: u64 },
    /// The numbering began again: this is another incarnation of the server.
    Restarted,
}

/// What the reader does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Something is missing that another request may bring: open the stream again from `resume_point`.
    Reopen,
}

/// What became of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted<T> {
    Taken(Flow),
    /// The event contradicts the contract of a sequence; it is given back.
    NotASequence(T),
}

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
    /// What was delivered since the last proof of that: it may be of another incarnation, and then comes again.
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

    pub(super) fn patience(&self) -> Option<Duration> {
        match self.hole {
            Hole::None => None,
            Hole::Refetching => Some(REFETCH_PATIENCE),
            Hole::Confirmed(_) => Some(REORDER_PATIENCE),
        }
    }

    /// Takes one event; one without a number has no position and passes.
    pub(super) fn accept(
        &mut self,
        number: Option<u64>,
        print: Fingerprint,
        item: T,
        fresh: impl FnOnce(&T) -> bool,
        out: &mut Vec<Sequenced<T>>,
    ) -> Accepted<T> {
        let Some(n) = number else {
            out.push(Sequenced::Item(item));
            return Accepted::Taken(Flow::Continue);
        };
        if n == 0 || self.is_broken_promise(n, print) {
            return Accepted::NotASequence(item);
        }
        let fresh = self.last.is_some_and(|last| n <= last) && fresh(&item);
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
        self.accept_number(number, Fingerprint::SKIPPED, false, None, out)
    }

    pub(super) fn reopened(&mut self) {
        self.reached = 0;
        self.openings += 1;
        self.last_at_opening = self.held.last_key_value().map_or(0, |(n, _)| *n).max(self.last.unwrap_or(0));
        self.assumed_repeat = false;
        self.proven = self.last.is_none();
        if self.last == Some(0) {
            // Another incarnation is read from its beginning, and it may be yet another one by now.
            self.held.clear();
        }
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
        fresh: bool,
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
        let item = item.filter(|_| self.early.remove(&n) != Some(print));
        if n == last.saturating_add(1) {
            self.last = Some(n);
            self.delivered(n);
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
        fresh: bool,
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        match self.prints.get(n) {
            Some(known) if known == print && !fresh => {
                self.repeats += 1;
                self.proven = true;
                self.unproven.clear();
                return Flow::Continue;
            }
            None if self.is_late(n) => {
                self.prints.insert(n, print);
                self.first = self.first.map(|first| first.min(n));
                self.delivered(n);
                out.extend(item.map(Sequenced::Item));
                return Flow::Continue;
            }
            // It is older than what is remembered, and nothing says that the server is another one.
            None if !fresh && self.first.is_none_or(|first| n >= first) => {
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
        self.accept_number(n, print, false, item, out)
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
            out.extend(entry.remove().map(Sequenced::Item));
            self.last = Some(n);
            self.delivered(n);
        }
        self.hole = Hole::None;
    }

    /// An event was given out. If nothing shows yet that the server is the same one, it is remembered.
    fn delivered(&mut self, n: u64) {
        if !self.proven
            && self.unproven.len() < UNPROVEN
            && let Some(print) = self.prints.get(n)
        {
            self.unproven.push((n, print));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Sequenced::{Gap, Item, Restarted};
    use super::*;

    fn accept(
        sequence: &mut Sequence<&'static str>,
        n: u64,
        content: &'static str,
        out: &mut Vec<Sequenced<&'static str>>,
    ) -> Flow {
        match sequence.accept(Some(n), Fingerprint::of(content.as_bytes()), content, |_| false, out) {
            Accepted::Taken(flow) => flow,
            Accepted::NotASequence(item) => panic!("{item} breaks the promise of a sequence"),
        }
    }

    /// Feeds `(number, content)` pairs and collects what comes out, with the flow after each.
    fn feed(
        sequence: &mut Sequence<&'static str>,
        events: &[(u64, &'static str)],
    ) -> (Vec<Sequenced<&'static str>>, Vec<Flow>) {
        let mut out = Vec::new();
        let flows = events.iter().map(|(n, content)| accept(sequence, *n, content, &mut out)).collect();
        (out, flows)
    }

    #[test]
    fn a_sequence_passes_and_repeats_do_not() {
        let mut sequence = Sequence::new(None);
        let (out, _) = feed(&mut sequence, &[(1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")]);
        assert_eq!(out, [Item("a"), Item("b"), Item("c")]);
        assert_eq!(sequence.repeats(), 2);
        assert_eq!(sequence.last(), Some(3));
    }

    #[test]
    fn the_stream_is_resumed_one_event_early_where_that_is_cheap() {
        let mut sequence = Sequence::new(None);
        assert_eq!(sequence.resume_point(), None);
        feed(&mut sequence, &[(1, "a")]);
        assert_eq!(sequence.resume_point(), None, "one before the first is the beginning");
        feed(&mut sequence, &[(2, "b")]);
        assert_eq!(sequence.resume_point(), Some(1));
        let large = Fingerprint::of(&vec![b'x'; 1 << 20]);
        sequence.accept(Some(3), large, "large", |_| false, &mut Vec::new());
        assert_eq!(sequence.resume_point(), Some(3));
        assert_eq!(Sequence::<()>::new(Some(9)).resume_point(), Some(9));
    }

    #[test]
    fn a_hole_is_refetched_and_filled_in_order() {
        let mut sequence = Sequence::new(None);
        let (out, flows) = feed(&mut sequence, &[(1, "a"), (3, "c")]);
        assert_eq!(out, [Item("a")]);
        assert_eq!(flows, [Flow::Continue, Flow::Reopen]);
        let (out, flows) = feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
        assert!(flows.iter().all(|flow| *flow == Flow::Continue));
        assert_eq!(sequence.patience(), None);
    }

    #[test]
    fn an_unfillable_hole_is_reported_with_its_bounds_before_what_follows() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (5, "e")]);
        let (out, _) = feed(&mut sequence, &[(5, "e")]);
        assert_eq!(out, []);
        let mut out = Vec::new();
        sequence.give_up(&mut out);
        assert_eq!(out, [Gap { from: 2, to: 4 }, Item("e")]);
        assert_eq!(feed(&mut sequence, &[(6, "f")]).0, [Item("f")]);
    }

    #[test]
    fn a_flood_behind_a_hole_does_not_wait_for_the_clock() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (3, "x")]);
        let events: Vec<_> = (3..40).map(|n| (n, "x")).collect();
        let (out, _) = feed(&mut sequence, &events);
        assert_eq!(out[0], Gap { from: 2, to: 2 });
        assert_eq!(out.len(), 1 + 37);
    }

    #[test]
    fn what_an_earlier_stream_brought_is_held_until_the_open_one_comes_to_it() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (60, "x")]);
        sequence.reopened();
        // The ring begins at 30, and is replayed from there: more than is taken before a hole is believed.
        let events: Vec<_> = (30..70).map(|n| (n, "x")).collect();
        let (out, flows) = feed(&mut sequence, &events);
        assert_eq!(out[0], Gap { from: 2, to: 29 });
        assert_eq!(out[1..], (30..70).map(|_| Item("x")).collect::<Vec<_>>());
        assert!(flows.iter().all(|flow| *flow == Flow::Continue));
        assert_eq!((sequence.last(), sequence.patience()), (Some(69), None));
    }

    #[test]
    fn a_second_hole_of_the_open_stream_is_reported_too() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (60, "x")]);
        sequence.reopened();
        let events: Vec<_> = (30..35).chain(50..55).chain(60..70).map(|n| (n, "x")).collect();
        let (mut out, _) = feed(&mut sequence, &events);
        sequence.give_up(&mut out);
        let gaps: Vec<_> = out.iter().filter(|item| matches!(item, Gap { .. })).collect();
        assert_eq!(gaps, [&Gap { from: 2, to: 29 }, &Gap { from: 35, to: 49 }, &Gap { from: 55, to: 59 }]);
        assert_eq!(out.len(), 3 + 5 + 5 + 10);
    }

    #[test]
    fn neighbours_that_swapped_places_are_no_gap() {
        let mut sequence = Sequence::new(None);
        let (out, flows) = feed(&mut sequence, &[(1, "a"), (3, "c")]);
        assert_eq!((out.len(), flows[1]), (1, Flow::Reopen));
        let (out, _) = feed(&mut sequence, &[(3, "c"), (2, "b"), (4, "d")]);
        assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
    }

    #[test]
    fn an_event_of_a_declared_gap_that_comes_late_is_given_once() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (3, "c"), (3, "c")]);
        sequence.give_up(&mut Vec::new());
        assert_eq!(feed(&mut sequence, &[(2, "b"), (2, "b")]).0, [Item("b")]);
    }

    #[test]
    fn an_old_number_with_new_content_is_a_new_server() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c")]);
        sequence.reopened();
        let (out, flows) = feed(&mut sequence, &[(1, "x"), (2, "y")]);
        assert_eq!(out, [Restarted, Item("x"), Item("y")]);
        assert_eq!(flows, [Flow::Continue, Flow::Continue]);
    }

    #[test]
    fn a_new_server_that_is_ahead_is_read_from_its_beginning() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        sequence.reopened();
        let (out, flows) = feed(&mut sequence, &[(3, "z")]);
        assert_eq!((out, flows), (vec![Restarted], vec![Flow::Reopen]));
        assert_eq!(sequence.resume_point(), None);
        let (out, _) = feed(&mut sequence, &[(1, "x"), (2, "y"), (3, "z")]);
        assert_eq!(out, [Item("x"), Item("y"), Item("z")]);
    }

    #[test]
    fn an_old_number_that_is_not_remembered_is_a_repeat() {
        let mut sequence = Sequence::new(None);
        let mut out = Vec::new();
        for n in 1..=5000 {
            accept(&mut sequence, n, "x", &mut out);
        }
        sequence.reopened();
        for n in 1..=5000 {
            assert_eq!(feed(&mut sequence, &[(n, "x")]).0, []);
        }
        assert_eq!(sequence.repeats(), 5000);
    }

    #[test]
    fn a_new_server_is_read_from_its_beginning_if_its_events_were_taken_for_repeats() {
        let mut sequence = Sequence::new(None);
        let mut out = Vec::new();
        for n in 1..=5000 {
            accept(&mut sequence, n, "x", &mut out);
        }
        sequence.reopened();
        let (out, flows) = feed(&mut sequence, &[(63, "y"), (64, "y"), (65, "y")]);
        assert_eq!(out, [Restarted]);
        assert_eq!(flows, [Flow::Continue, Flow::Continue, Flow::Reopen]);
        assert_eq!(sequence.resume_point(), None);
        sequence.reopened();
        assert_eq!(feed(&mut sequence, &[(1, "y"), (2, "y")]).0, [Item("y"), Item("y")]);
    }

    #[test]
    fn a_response_to_a_pending_request_under_an_old_number_proves_a_restart() {
        for resume_from in [None, Some(90)] {
            let mut sequence = Sequence::new(resume_from);
            let mut out = Vec::new();
            for n in 91..100 {
                accept(&mut sequence, n, "x", &mut out);
            }
            sequence.reopened();
            out.clear();
            sequence.accept(Some(1), Fingerprint::of(b"x"), "x", |_| true, &mut out);
            assert_eq!(out, [Restarted, Item("x")]);
        }
    }

    #[test]
    fn what_a_new_server_delivered_before_its_proof_is_not_delivered_again() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (2, "b"), (5, "e")]);
        sequence.reopened();
        sequence.give_up(&mut Vec::new());
        sequence.reopened();
        // Number 6 continues the old count, number 4 lies in a gap; number 5 shows that all of them are new.
        let (out, flows) = feed(&mut sequence, &[(6, "F"), (4, "D"), (5, "E")]);
        assert_eq!(out, [Item("F"), Item("D"), Restarted]);
        assert_eq!(flows.last(), Some(&Flow::Reopen));
        sequence.reopened();
        let events = [(1, "A"), (2, "B"), (3, "C"), (4, "D"), (5, "E"), (6, "F"), (7, "G")];
        let (out, _) = feed(&mut sequence, &events);
        assert_eq!(out, [Item("A"), Item("B"), Item("C"), Item("E"), Item("G")]);
    }

    #[test]
    fn a_late_response_in_a_gap_is_no_restart_behind_a_reopening_either() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (3, "c")]);
        sequence.reopened();
        sequence.give_up(&mut Vec::new());
        sequence.reopened();
        let mut out = Vec::new();
        sequence.accept(Some(2), Fingerprint::of(b"b"), "b", |_| true, &mut out);
        assert_eq!(out, [Item("b")]);
    }

    #[test]
    fn a_number_below_the_first_is_another_server_unless_it_swapped_places_with_it() {
        let mut sequence = Sequence::new(None);
        assert_eq!(feed(&mut sequence, &[(7, "g"), (6, "f"), (8, "h")]).0, [Item("g"), Item("f"), Item("h")]);
        sequence.reopened();
        assert_eq!(feed(&mut sequence, &[(7, "g"), (1, "a")]).0, [Restarted, Item("a")]);
    }

    #[test]
    fn a_skipped_event_is_not_asked_for_again() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a")]);
        let mut out = Vec::new();
        assert_eq!(sequence.skip(Some(Some(2)), &mut out), Flow::Continue);
        assert_eq!(sequence.skip(Some(Some(2)), &mut out), Flow::Continue);
        assert_eq!(sequence.resume_point(), Some(2));
        assert_eq!(sequence.skip(None, &mut out), Flow::Continue);
        assert_eq!(sequence.resume_point(), Some(3));
        assert_eq!(feed(&mut sequence, &[(4, "d")]).0, [Item("d")]);
        assert!(out.is_empty());
    }

    #[test]
    fn a_hole_before_a_skipped_event_is_a_hole_all_the_same() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (2, "b")]);
        let mut out = Vec::new();
        assert_eq!(sequence.skip(Some(Some(5)), &mut out), Flow::Reopen);
        sequence.give_up(&mut out);
        assert_eq!(out, [Gap { from: 3, to: 4 }]);
        assert_eq!(feed(&mut sequence, &[(6, "f")]).0, [Item("f")]);
    }

    #[test]
    fn a_skipped_event_behind_held_ones_keeps_its_place() {
        let mut sequence = Sequence::new(None);
        feed(&mut sequence, &[(1, "a"), (4, "d")]);
        let mut out = Vec::new();
        sequence.skip(Some(Some(6)), &mut out);
        sequence.give_up(&mut out);
        assert_eq!(out, [Gap { from: 2, to: 3 }, Item("d"), Gap { from: 5, to: 5 }]);
        assert_eq!(sequence.last(), Some(6));
    }

    #[test]
    fn numbers_that_are_not_dense_are_not_asked_for_over_and_over() {
        let mut sequence = Sequence::new(None);
        let (mut reopened, mut out) = (0, Vec::new());
        for n in (1..200).step_by(2) {
            if accept(&mut sequence, n, "x", &mut out) == Flow::Reopen {
                reopened += 1;
                accept(&mut sequence, n, "x", &mut out);
                sequence.give_up(&mut out);
            }
        }
        assert_eq!(reopened, FUTILE);
        assert_eq!(out.iter().filter(|out| matches!(out, Item(_))).count(), 100);
        assert_eq!(out.iter().filter(|out| matches!(out, Gap { .. })).count(), 99);
    }
}
