//! Where a stream stands: what has been seen, what is missing, and whether the server is still the same one.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::EventId;

/// How many events are remembered by their fingerprint. Larger than any replay ring known (1024 and 2048), so
/// that a number outside the window cannot be a replay.
const WINDOW: u64 = 4096;
/// Only this much of an event goes into its fingerprint, beside its length.
const PRINTED_BYTES: usize = 4096;
/// An event larger than this is not asked for again to prove that the server is still the same one.
const OVERLAP_BYTES: usize = 256 * 1024;
/// How many declared gaps are remembered, in case their events turn up late.
const GAPS: usize = 64;
/// How many events beyond a hole are taken before the hole is believed: some servers number two producers
/// independently, so that neighbours may swap places.
const REORDER: usize = 8;
/// After so many holes in a row that could not be filled, holes are reported without asking again.
const FUTILE: u32 = 3;

/// What an event looked like, to tell a repeat from a new event under an old number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    hash: u64,
    len: usize,
}

impl Fingerprint {
    /// What stands for an event that was not taken: it is too large to be asked for again.
    const SKIPPED: Self = Self { hash: 0, len: usize::MAX };

    /// A quick mix of sixteen bytes at a time: it tells contents apart, and nobody attacks it.
    pub(crate) fn of(data: &[u8]) -> Self {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
        let (pairs, rest) = data[..data.len().min(PRINTED_BYTES)].as_chunks::<16>();
        let (mut even, mut odd) = (FACTOR, !FACTOR);
        for pair in pairs {
            let pair = u128::from_le_bytes(*pair);
            even = mix(even, pair as u64);
            odd = mix(odd, (pair >> 64) as u64);
        }
        let hash = rest.iter().fold(mix(even, odd), |hash, byte| mix(hash, u64::from(*byte)));
        Self { hash, len: data.len() }
    }
}

/// The place of an event in its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Position {
    /// The event has no id.
    None,
    Number(u64),
    /// An id that is not a number.
    Opaque(String),
}

impl Position {
    pub(crate) fn of(id: Option<&EventId>) -> Self {
        match id {
            None => Self::None,
            Some(id) => id.as_number().map_or_else(|| Self::Opaque(id.as_text().into_owned()), Self::Number),
        }
    }
}

/// What comes out of the cursor, in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sequenced<T> {
    /// An item never given before.
    Item(T),
    /// Numbers that the server no longer has, both ends included.
    Gap { from: u64, to: u64 },
    /// The server counts from the beginning again: it is a new one, or lost its state.
    Restarted,
}

/// What the reader does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Continue,
    /// Something is missing that another request may bring: open the stream again from `resume_point`.
    Reopen,
}

/// Orders the events of one stream and drops what was seen before.
///
/// Numbers count from 1 without holes. A hole is fetched again once; items behind it are held meanwhile, and
/// given with a [`Sequenced::Gap`] before them if it stays open. A number that was seen with other content
/// means that the server started over.
#[derive(Debug)]
pub(crate) struct Cursor<T> {
    last: Option<u64>,
    /// The last id that is not a number, for servers whose ids are opaque.
    opaque: Option<String>,
    seen: Vec<Option<(u64, Fingerprint)>>,
    seen_opaque: VecDeque<(String, Fingerprint)>,
    /// What came behind a hole; an event that could not be taken holds its place without an item.
    held: BTreeMap<u64, Option<T>>,
    hole: Hole,
    /// How far the stream that is open has come. What is held beyond that came on an earlier one.
    reached: u64,
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
    /// The reopened stream went on behind it; so many events were taken since.
    Confirmed(usize),
}

impl<T> Cursor<T> {
    /// Starts at the beginning, or behind an event that an earlier client has seen.
    pub(crate) fn new(resume_from: Option<&str>) -> Self {
        let number = resume_from.and_then(|id| EventId::from(id).as_number());
        Self {
            last: number,
            opaque: resume_from.filter(|_| number.is_none()).map(str::to_owned),
            seen: Vec::new(),
            seen_opaque: VecDeque::new(),
            held: BTreeMap::new(),
            hole: Hole::None,
            reached: 0,
            futile: 0,
            gaps: VecDeque::new(),
            repeats: 0,
        }
    }

    /// The `Last-Event-ID` to open the stream with. Where it is cheap, one event that was seen already is asked
    /// for again: it proves that the server is still the same one.
    pub(crate) fn resume_point(&self) -> Option<String> {
        let Some(last) = self.last else { return self.opaque.clone() };
        match last - u64::from(self.overlaps()) {
            0 => None,
            point => Some(point.to_string()),
        }
    }

    /// Whether a stream opened at `resume_point` begins with an event that was seen before.
    pub(crate) fn overlaps(&self) -> bool {
        self.last.and_then(|last| self.print_of(last)).is_some_and(|print| print.len <= OVERLAP_BYTES)
    }

    /// The last place up to which nothing is missing.
    pub(crate) fn last(&self) -> (Option<u64>, Option<&String>) {
        (self.last, self.opaque.as_ref())
    }

    pub(crate) fn repeats(&self) -> u64 {
        self.repeats
    }

    /// How long to wait for what is missing before `give_up` is called, or `None` if nothing is.
    pub(crate) fn patience(&self) -> Option<Duration> {
        match self.hole {
            Hole::None => None,
            Hole::Refetching => Some(Duration::from_secs(1)),
            Hole::Confirmed(_) => Some(Duration::from_millis(50)),
        }
    }

    /// Takes one event.
    pub(crate) fn accept(
        &mut self,
        position: Position,
        print: Fingerprint,
        item: T,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        match position {
            Position::None => out.push(Sequenced::Item(item)),
            Position::Number(number) => return self.accept_number(number, print, Some(item), out),
            Position::Opaque(id) => self.accept_opaque(id, print, item, out),
        }
        Flow::Continue
    }

    /// Moves past an event that cannot be taken, so that it is never asked for again. Without an id, it is the
    /// one behind the last.
    pub(crate) fn skip(&mut self, id: Option<&EventId>, out: &mut Vec<Sequenced<T>>) -> Flow {
        let number = match (Position::of(id), self.last) {
            (Position::Number(number), Some(last)) if number <= last => {
                self.repeats += 1;
                return Flow::Continue;
            }
            (Position::Number(number), _) => number,
            (Position::None, Some(last)) => last.saturating_add(1),
            (Position::Opaque(id), _) => {
                self.opaque = Some(id).filter(|id| !id.is_empty()).or(self.opaque.take());
                return Flow::Continue;
            }
            (Position::None, None) => return Flow::Continue,
        };
        self.accept_number(number, Fingerprint::SKIPPED, None, out)
    }

    /// A stream was opened at `resume_point`: it may bring what an earlier one left out.
    pub(crate) fn reopened(&mut self) {
        self.reached = 0;
        if self.hole != Hole::None {
            self.hole = Hole::Refetching;
        }
    }

    /// Believes in every hole: reports them and gives what is held behind them.
    pub(crate) fn give_up(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.believe(u64::MAX, out);
    }

    /// Believes in the holes before this number: reports them and gives what is held behind them.
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
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        self.reached = self.reached.max(n);
        let Some(last) = self.last else {
            // The first event of a first stream: what came before it was never ours.
            self.remember(n, print);
            self.last = Some(n);
            out.extend(item.map(Sequenced::Item));
            return Flow::Continue;
        };
        if n <= last {
            return self.accept_old(n, print, item, out);
        }
        if n == last.saturating_add(1) {
            self.remember(n, print);
            self.last = Some(n);
            self.held.remove(&n);
            self.futile = 0;
            out.extend(item.map(Sequenced::Item));
            self.release(out);
            return Flow::Continue;
        }
        self.remember(n, print);
        self.held.entry(n).or_insert(item);
        self.widen_hole(out)
    }

    fn accept_old(
        &mut self,
        n: u64,
        print: Fingerprint,
        item: Option<T>,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        match self.print_of(n) {
            Some(known) if known == print => {
                self.repeats += 1;
                Flow::Continue
            }
            None if self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&n)) => {
                self.remember(n, print);
                out.extend(item.map(Sequenced::Item));
                Flow::Continue
            }
            _ => {
                self.give_up(out);
                self.start_over(out);
                self.accept_number(n, print, item, out)
            }
        }
    }

    fn accept_opaque(&mut self, id: String, print: Fingerprint, item: T, out: &mut Vec<Sequenced<T>>) {
        if self.seen_opaque.iter().any(|(seen, known)| *seen == id && *known == print) {
            self.repeats += 1;
            return;
        }
        if self.seen_opaque.len() == WINDOW as usize {
            self.seen_opaque.pop_front();
        }
        self.opaque = (!id.is_empty()).then(|| id.clone());
        self.seen_opaque.push_back((id, print));
        out.push(Sequenced::Item(item));
    }

    fn start_over(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.last = Some(0);
        self.reached = 0;
        self.seen.clear();
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

    /// Gives the held items that follow without a hole.
    fn release(&mut self, out: &mut Vec<Sequenced<T>>) {
        while let Some(entry) = self.held.first_entry() {
            let n = *entry.key();
            if self.last.is_some_and(|last| n > last.saturating_add(1)) {
                return;
            }
            out.extend(entry.remove().map(Sequenced::Item));
            self.last = Some(n);
        }
        self.hole = Hole::None;
    }

    fn remember(&mut self, n: u64, print: Fingerprint) {
        if self.seen.is_empty() {
            self.seen = vec![None; WINDOW as usize];
        }
        self.seen[(n % WINDOW) as usize] = Some((n, print));
    }

    fn print_of(&self, n: u64) -> Option<Fingerprint> {
        let (number, print) = (*self.seen.get((n % WINDOW) as usize)?)?;
        (number == n).then_some(print)
    }
}

#[cfg(test)]
mod tests {
    use super::Sequenced::{Gap, Item, Restarted};
    use super::*;

    /// Feeds `(number, content)` pairs and collects what comes out, with the flow after each.
    fn feed(
        cursor: &mut Cursor<&'static str>,
        events: &[(u64, &'static str)],
    ) -> (Vec<Sequenced<&'static str>>, Vec<Flow>) {
        let mut out = Vec::new();
        let flows = events
            .iter()
            .map(|(n, content)| {
                cursor.accept(Position::Number(*n), Fingerprint::of(content.as_bytes()), content, &mut out)
            })
            .collect();
        (out, flows)
    }

    #[test]
    fn a_sequence_passes_and_repeats_do_not() {
        let mut cursor = Cursor::new(None);
        let (out, _) = feed(&mut cursor, &[(1, "a"), (2, "b"), (1, "a"), (2, "b"), (3, "c")]);
        assert_eq!(out, [Item("a"), Item("b"), Item("c")]);
        assert_eq!(cursor.repeats(), 2);
        assert_eq!(cursor.last(), (Some(3), None));
    }

    #[test]
    fn the_stream_is_resumed_one_event_early_where_that_is_cheap() {
        let mut cursor = Cursor::new(None);
        assert_eq!(cursor.resume_point(), None);
        feed(&mut cursor, &[(1, "a")]);
        assert_eq!(cursor.resume_point(), None, "one before the first is the beginning");
        feed(&mut cursor, &[(2, "b")]);
        assert_eq!(cursor.resume_point().as_deref(), Some("1"));
        let mut out = Vec::new();
        let large = Fingerprint { hash: 1, len: OVERLAP_BYTES + 1 };
        cursor.accept(Position::Number(3), large, "large", &mut out);
        assert_eq!(cursor.resume_point().as_deref(), Some("3"));
        assert_eq!(Cursor::<()>::new(Some("9")).resume_point().as_deref(), Some("9"));
    }

    #[test]
    fn a_hole_is_refetched_and_filled_in_order() {
        let mut cursor = Cursor::new(None);
        let (out, flows) = feed(&mut cursor, &[(1, "a"), (3, "c")]);
        assert_eq!(out, [Item("a")]);
        assert_eq!(flows, [Flow::Continue, Flow::Reopen]);
        let (out, flows) = feed(&mut cursor, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
        assert!(flows.iter().all(|flow| *flow == Flow::Continue));
        assert_eq!(cursor.patience(), None);
    }

    #[test]
    fn an_unfillable_hole_is_reported_with_its_bounds_before_what_follows() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (5, "e")]);
        let (out, _) = feed(&mut cursor, &[(5, "e")]);
        assert_eq!(out, []);
        let mut out = Vec::new();
        cursor.give_up(&mut out);
        assert_eq!(out, [Gap { from: 2, to: 4 }, Item("e")]);
        assert_eq!(feed(&mut cursor, &[(6, "f")]).0, [Item("f")]);
    }

    #[test]
    fn a_flood_behind_a_hole_does_not_wait_for_the_clock() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (3, "x")]);
        let events: Vec<_> = (3..40).map(|n| (n, "x")).collect();
        let (out, _) = feed(&mut cursor, &events);
        assert_eq!(out[0], Gap { from: 2, to: 2 });
        assert_eq!(out.len(), 1 + 37);
    }

    #[test]
    fn what_an_earlier_stream_brought_is_held_until_the_open_one_comes_to_it() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (60, "x")]);
        cursor.reopened();
        // The ring begins at 30, and is replayed from there: more than is taken before a hole is believed.
        let events: Vec<_> = (30..70).map(|n| (n, "x")).collect();
        let (out, flows) = feed(&mut cursor, &events);
        assert_eq!(out[0], Gap { from: 2, to: 29 });
        assert_eq!(out[1..], (30..70).map(|_| Item("x")).collect::<Vec<_>>());
        assert!(flows.iter().all(|flow| *flow == Flow::Continue));
        assert_eq!((cursor.last(), cursor.patience()), ((Some(69), None), None));
    }

    #[test]
    fn a_second_hole_of_the_open_stream_is_reported_too() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (60, "x")]);
        cursor.reopened();
        let events: Vec<_> = (30..35).chain(50..55).chain(60..70).map(|n| (n, "x")).collect();
        let (mut out, _) = feed(&mut cursor, &events);
        cursor.give_up(&mut out);
        let gaps: Vec<_> = out.iter().filter(|item| matches!(item, Gap { .. })).collect();
        assert_eq!(gaps, [&Gap { from: 2, to: 29 }, &Gap { from: 35, to: 49 }, &Gap { from: 55, to: 59 }]);
        assert_eq!(out.len(), 3 + 5 + 5 + 10);
    }

    #[test]
    fn neighbours_that_swapped_places_are_no_gap() {
        let mut cursor = Cursor::new(None);
        let (out, flows) = feed(&mut cursor, &[(1, "a"), (3, "c")]);
        assert_eq!((out.len(), flows[1]), (1, Flow::Reopen));
        let (out, _) = feed(&mut cursor, &[(3, "c"), (2, "b"), (4, "d")]);
        assert_eq!(out, [Item("b"), Item("c"), Item("d")]);
    }

    #[test]
    fn an_event_of_a_declared_gap_that_comes_late_is_given_once() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (3, "c"), (3, "c")]);
        cursor.give_up(&mut Vec::new());
        assert_eq!(feed(&mut cursor, &[(2, "b"), (2, "b")]).0, [Item("b")]);
    }

    #[test]
    fn an_old_number_with_new_content_is_a_new_server() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (2, "b"), (3, "c")]);
        let (out, flows) = feed(&mut cursor, &[(1, "x"), (2, "y")]);
        assert_eq!(out, [Restarted, Item("x"), Item("y")]);
        assert_eq!(flows, [Flow::Continue, Flow::Continue]);
    }

    #[test]
    fn a_new_server_that_is_ahead_is_read_from_its_beginning() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]);
        let (out, flows) = feed(&mut cursor, &[(3, "z")]);
        assert_eq!((out, flows), (vec![Restarted], vec![Flow::Reopen]));
        assert_eq!(cursor.resume_point(), None);
        let (out, _) = feed(&mut cursor, &[(1, "x"), (2, "y"), (3, "z")]);
        assert_eq!(out, [Item("x"), Item("y"), Item("z")]);
    }

    #[test]
    fn an_old_number_outside_the_window_is_a_new_server() {
        let mut cursor = Cursor::new(None);
        let mut out = Vec::new();
        for n in 1..=WINDOW + 10 {
            cursor.accept(Position::Number(n), Fingerprint::of(b"x"), "x", &mut out);
        }
        assert_eq!(feed(&mut cursor, &[(1, "x")]).0, [Restarted, Item("x")]);
    }

    #[test]
    fn opaque_ids_are_resumed_from_and_repeats_dropped() {
        let mut cursor = Cursor::new(None);
        let mut out = Vec::new();
        for (id, content) in [("a-1", "x"), ("a-2", "y"), ("a-1", "x"), ("007", "z")] {
            cursor.accept(
                Position::of(Some(&EventId::from(id))),
                Fingerprint::of(content.as_bytes()),
                content,
                &mut out,
            );
        }
        assert_eq!(out, [Item("x"), Item("y"), Item("z")]);
        assert_eq!(cursor.resume_point().as_deref(), Some("007"));
    }

    #[test]
    fn a_skipped_event_is_not_asked_for_again() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a")]);
        let mut out = Vec::new();
        assert_eq!(cursor.skip(Some(&EventId::from("2")), &mut out), Flow::Continue);
        assert_eq!(cursor.skip(Some(&EventId::from("2")), &mut out), Flow::Continue);
        assert_eq!(cursor.resume_point().as_deref(), Some("2"));
        assert_eq!(cursor.skip(None, &mut out), Flow::Continue);
        assert_eq!(cursor.resume_point().as_deref(), Some("3"));
        assert_eq!(feed(&mut cursor, &[(4, "d")]).0, [Item("d")]);
        assert!(out.is_empty());
    }

    #[test]
    fn a_hole_before_a_skipped_event_is_a_hole_all_the_same() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (2, "b")]);
        let mut out = Vec::new();
        assert_eq!(cursor.skip(Some(&EventId::from("5")), &mut out), Flow::Reopen);
        cursor.give_up(&mut out);
        assert_eq!(out, [Gap { from: 3, to: 4 }]);
        assert_eq!(feed(&mut cursor, &[(6, "f")]).0, [Item("f")]);
    }

    #[test]
    fn a_skipped_event_behind_held_ones_keeps_its_place() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a"), (4, "d")]);
        let mut out = Vec::new();
        cursor.skip(Some(&EventId::from("6")), &mut out);
        cursor.give_up(&mut out);
        assert_eq!(out, [Gap { from: 2, to: 3 }, Item("d"), Gap { from: 5, to: 5 }]);
        assert_eq!(cursor.last(), (Some(6), None));
    }

    #[test]
    fn the_largest_number_is_no_number() {
        let mut cursor = Cursor::new(None);
        let mut out = Vec::new();
        for id in ["18446744073709551614", "18446744073709551615", "18446744073709551616"] {
            cursor.accept(
                Position::of(Some(&EventId::from(id))),
                Fingerprint::of(id.as_bytes()),
                "x",
                &mut out,
            );
            cursor.skip(None, &mut out);
            cursor.skip(Some(&EventId::from(id)), &mut out);
        }
        cursor.give_up(&mut out);
    }

    #[test]
    fn numbers_that_are_not_dense_are_not_asked_for_over_and_over() {
        let mut cursor = Cursor::new(None);
        let (mut reopened, mut out) = (0, Vec::new());
        for n in (1..200).step_by(2) {
            let print = Fingerprint::of(b"x");
            if cursor.accept(Position::Number(n), print, "x", &mut out) == Flow::Reopen {
                reopened += 1;
                cursor.accept(Position::Number(n), print, "x", &mut out);
                cursor.give_up(&mut out);
            }
        }
        assert_eq!(reopened, FUTILE);
        assert_eq!(out.iter().filter(|out| matches!(out, Item(_))).count(), 100);
        assert_eq!(out.iter().filter(|out| matches!(out, Gap { .. })).count(), 99);
    }
}
