//! Where a stream stands: what has been seen, what is missing, and whether the server is still the same one.

use std::{
    collections::{BTreeMap, VecDeque, hash_map::DefaultHasher},
    hash::Hasher,
    time::Duration,
};

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

/// What an event looked like, to tell a repeat from a new event under an old number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    hash: u64,
    len: usize,
}

impl Fingerprint {
    pub(crate) fn of(data: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(&data[..data.len().min(PRINTED_BYTES)]);
        Self { hash: hasher.finish(), len: data.len() }
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
    held: BTreeMap<u64, T>,
    hole: Hole,
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
        let number = resume_from.and_then(number);
        Self {
            last: number,
            opaque: resume_from.filter(|_| number.is_none()).map(str::to_owned),
            seen: Vec::new(),
            seen_opaque: VecDeque::new(),
            held: BTreeMap::new(),
            hole: Hole::None,
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

    /// The last id up to which nothing is missing.
    pub(crate) fn last_id(&self) -> Option<String> {
        self.last.map(|last| last.to_string()).or_else(|| self.opaque.clone())
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
        id: Option<&str>,
        print: Fingerprint,
        item: T,
        out: &mut Vec<Sequenced<T>>,
    ) -> Flow {
        let Some(id) = id else {
            out.push(Sequenced::Item(item));
            return Flow::Continue;
        };
        match number(id) {
            Some(number) => self.accept_number(number, print, item, out),
            None => {
                self.accept_opaque(id, print, item, out);
                Flow::Continue
            }
        }
    }

    /// Moves past an event that cannot be taken, so that it is never asked for again.
    pub(crate) fn skip(&mut self, id: Option<&str>) {
        match (id, id.and_then(number), self.last) {
            (_, Some(number), last) if last.is_none_or(|last| number > last) => self.last = Some(number),
            (None, _, Some(last)) => self.last = Some(last + 1),
            (Some(id), None, _) if !id.is_empty() => self.opaque = Some(id.to_owned()),
            _ => {}
        }
    }

    /// Believes in the hole: reports it and gives what is held behind it.
    pub(crate) fn give_up(&mut self, out: &mut Vec<Sequenced<T>>) {
        while let Some((&next, _)) = self.held.first_key_value() {
            let from = self.last.unwrap_or(0) + 1;
            if next > from {
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

    fn accept_number(&mut self, n: u64, print: Fingerprint, item: T, out: &mut Vec<Sequenced<T>>) -> Flow {
        let Some(last) = self.last else {
            // The first event of a first stream: what came before it was never ours.
            self.remember(n, print);
            self.last = Some(n);
            out.push(Sequenced::Item(item));
            return Flow::Continue;
        };
        if n <= last {
            return self.accept_old(n, print, item, out);
        }
        if n == last + 1 {
            self.remember(n, print);
            self.last = Some(n);
            self.held.remove(&n);
            out.push(Sequenced::Item(item));
            self.release(out);
            return Flow::Continue;
        }
        self.remember(n, print);
        self.held.entry(n).or_insert(item);
        self.widen_hole(out)
    }

    fn accept_old(&mut self, n: u64, print: Fingerprint, item: T, out: &mut Vec<Sequenced<T>>) -> Flow {
        match self.print_of(n) {
            Some(known) if known == print => {
                self.repeats += 1;
                Flow::Continue
            }
            None if self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&n)) => {
                self.remember(n, print);
                out.push(Sequenced::Item(item));
                Flow::Continue
            }
            _ => {
                self.give_up(out);
                self.start_over(out);
                self.accept_number(n, print, item, out)
            }
        }
    }

    fn accept_opaque(&mut self, id: &str, print: Fingerprint, item: T, out: &mut Vec<Sequenced<T>>) {
        if self.seen_opaque.iter().any(|(seen, known)| seen == id && *known == print) {
            self.repeats += 1;
            return;
        }
        if self.seen_opaque.len() == WINDOW as usize {
            self.seen_opaque.pop_front();
        }
        self.seen_opaque.push_back((id.to_owned(), print));
        self.opaque = (!id.is_empty()).then(|| id.to_owned());
        out.push(Sequenced::Item(item));
    }

    fn start_over(&mut self, out: &mut Vec<Sequenced<T>>) {
        self.last = Some(0);
        self.seen.clear();
        self.gaps.clear();
        self.hole = Hole::None;
        out.push(Sequenced::Restarted);
    }

    fn widen_hole(&mut self, out: &mut Vec<Sequenced<T>>) -> Flow {
        match self.hole {
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
                self.give_up(out);
                Flow::Continue
            }
        }
    }

    /// Gives the held items that follow without a hole.
    fn release(&mut self, out: &mut Vec<Sequenced<T>>) {
        while let Some(entry) = self.held.first_entry() {
            let n = *entry.key();
            if self.last.is_some_and(|last| n > last + 1) {
                return;
            }
            out.push(Sequenced::Item(entry.remove()));
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

/// The number an id stands for, if it is written the way a counter writes it.
fn number(id: &str) -> Option<u64> {
    let canonical =
        id.as_bytes().first().is_some_and(u8::is_ascii_digit) && (id == "0" || !id.starts_with('0'));
    canonical.then(|| id.parse().ok()).flatten()
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
                cursor.accept(Some(&n.to_string()), Fingerprint::of(content.as_bytes()), content, &mut out)
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
        assert_eq!(cursor.last_id().as_deref(), Some("3"));
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
        cursor.accept(Some("3"), large, "large", &mut out);
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
            cursor.accept(Some(&n.to_string()), Fingerprint::of(b"x"), "x", &mut out);
        }
        assert_eq!(feed(&mut cursor, &[(1, "x")]).0, [Restarted, Item("x")]);
    }

    #[test]
    fn opaque_ids_are_resumed_from_and_repeats_dropped() {
        let mut cursor = Cursor::new(None);
        let mut out = Vec::new();
        for (id, content) in [("a-1", "x"), ("a-2", "y"), ("a-1", "x"), ("007", "z")] {
            cursor.accept(Some(id), Fingerprint::of(content.as_bytes()), content, &mut out);
        }
        assert_eq!(out, [Item("x"), Item("y"), Item("z")]);
        assert_eq!(cursor.resume_point().as_deref(), Some("007"));
    }

    #[test]
    fn a_skipped_event_is_not_asked_for_again() {
        let mut cursor = Cursor::new(None);
        feed(&mut cursor, &[(1, "a")]);
        cursor.skip(Some("2"));
        assert_eq!(cursor.resume_point().as_deref(), Some("2"));
        cursor.skip(None);
        assert_eq!(cursor.resume_point().as_deref(), Some("3"));
        assert_eq!(feed(&mut cursor, &[(4, "d")]).0, [Item("d")]);
    }
}
