//! Streams whose ids are opaque.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
};

use super::{EventId, Fingerprint};

/// How many of the latest events are remembered, to recognise them when the stream is opened again. Replay buffers of
/// known servers hold 1024.
const TAIL: usize = 1024;
/// After this many events, the ids of the remembered events are compared with each other.
const CHECK: usize = TAIL / 2;

/// What an opaque id shows about an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recognised {
    New,
    /// Its id does not identify it, and an earlier opening had an event with the same content.
    Alike,
    /// An earlier opening had it.
    Repeat,
}

/// Recognises the events that a reopened stream replays, by ids about which nothing is known except that they are
/// valid.
///
/// A repeat is an event whose id and content were in the tail of an earlier opening in which that id was unique. An id
/// that is absent or reused identifies nothing: such an event is never dropped.
///
/// While a stream is open, an event costs one keyed hash and an entry in a bounded queue. Which ids identify an event
/// is determined when the stream is opened again.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The latest events of all openings in order. Those of earlier openings have different ids.
    recent: VecDeque<Seen>,
    /// How many of `recent` belong to earlier openings. They are the first.
    earlier: usize,
    /// The events of earlier openings that their ids identify, sorted by id. One that was replayed is
    /// [`REPLAYED`](Self::REPLAYED).
    identified: Vec<Seen>,
    /// The contents of the latest events of all openings that no id identifies.
    unidentified: VecDeque<Fingerprint>,
    /// Those of them that are of earlier openings, sorted.
    contents: Vec<Fingerprint>,
    last: Option<EventId>,
    /// Whether the last event of the open stream had an id.
    last_identified: bool,
    /// Whether an id was used for two events, in one opening or after a restart.
    reused: bool,
    /// How many events came since the ids of the open stream were compared.
    unchecked: usize,
    hasher: RandomState,
    repeats: u64,
}

/// An event: the keyed hash of its id, and its content.
type Seen = (u64, Fingerprint);

impl Tail {
    /// Stands for an event that is not expected again.
    const REPLAYED: Fingerprint = Fingerprint::SKIPPED;

    pub(super) fn new(last: Option<EventId>) -> Self {
        Self { last_identified: last.is_some(), last, ..Self::default() }
    }

    /// The id of the last event, which the next opening sends as `Last-Event-ID`.
    pub(super) fn last(&self) -> Option<&EventId> {
        self.last.as_ref()
    }

    pub(super) fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Whether a server that honours `Last-Event-ID` can know where to continue: the last event had an id, and no
    /// id was used twice.
    pub(super) fn is_resumable(&self) -> bool {
        self.last_identified && !self.reused && self.current_keys().is_sorted_by(|one, next| one < next)
    }

    /// Takes an event.
    pub(super) fn accept(&mut self, id: Option<&EventId>, print: Fingerprint) -> Recognised {
        let content = match self.contents.binary_search(&print) {
            Ok(_) => Recognised::Alike,
            Err(_) => Recognised::New,
        };
        let Some(id) = id.filter(|id| !id.is_empty()) else {
            self.last_identified = false;
            push(&mut self.unidentified, print);
            return content;
        };
        let key = self.hasher.hash_one(id);
        self.remember((key, print));
        if let Ok(place) = self.identified.binary_search_by_key(&key, |(key, _)| *key) {
            let known = &mut self.identified[place].1;
            if *known == print {
                *known = Self::REPLAYED;
                self.repeats += 1;
                return Recognised::Repeat;
            }
            self.reused = true;
        }
        self.move_to(id);
        content
    }

    /// Moves past an event that was skipped unread, so that it is never fetched again.
    pub(super) fn skip(&mut self, id: Option<&EventId>) {
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            self.move_to(id);
        }
    }

    /// Starts the next opening after this event, if a header can contain its id.
    fn move_to(&mut self, id: &EventId) {
        self.last_identified = id.fits_header();
        if self.last_identified {
            self.last = Some(id.clone());
        }
    }

    /// The stream was opened again.
    pub(super) fn reopened(&mut self) {
        let keys = self.current_keys();
        let count = |key: u64| {
            keys.partition_point(|other| *other <= key) - keys.partition_point(|other| *other < key)
        };
        let current: Vec<Seen> = self.recent.drain(self.earlier..).collect();
        // An id of the last opening no longer identifies events of earlier ones, and a reused id identifies nothing.
        self.recent.retain(|(key, _)| count(*key) == 0);
        for event in current {
            if count(event.0) == 1 {
                self.recent.push_back(event);
            } else {
                self.reused = true;
                push(&mut self.unidentified, event.1);
            }
        }
        self.earlier = self.recent.len();
        self.unchecked = 0;
        self.identified = self.recent.iter().copied().collect();
        self.identified.sort_unstable_by_key(|(key, _)| *key);
        self.contents = self.unidentified.iter().copied().collect();
        self.contents.sort_unstable();
    }

    fn remember(&mut self, event: Seen) {
        if self.recent.len() == TAIL {
            self.earlier = self.earlier.saturating_sub(1);
        }
        push(&mut self.recent, event);
        self.unchecked += 1;
        if self.unchecked == CHECK && !self.reused {
            self.unchecked = 0;
            self.reused = !self.current_keys().is_sorted_by(|one, next| one < next);
        }
    }

    /// The hashes of the ids of the open stream, sorted.
    fn current_keys(&self) -> Vec<u64> {
        let mut keys: Vec<u64> = self.recent.range(self.earlier..).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }
}

/// Adds to a queue of at most [`TAIL`] entries.
fn push<T>(queue: &mut VecDeque<T>, entry: T) {
    if queue.len() == TAIL {
        queue.pop_front();
    }
    queue.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(tail: &mut Tail, events: &[(&str, &str)]) -> Vec<String> {
        let mut given = Vec::new();
        for (id, content) in events {
            let id = (!id.is_empty()).then(|| EventId::from(*id));
            if tail.accept(id.as_ref(), Fingerprint::of(content.as_bytes())) != Recognised::Repeat {
                given.push((*content).to_owned());
            }
        }
        given
    }

    #[test]
    fn a_replay_is_dropped_and_what_is_new_is_not() {
        let mut tail = Tail::default();
        assert_eq!(feed(&mut tail, &[("a", "1"), ("b", "2"), ("c", "3")]), ["1", "2", "3"]);
        tail.reopened();
        assert_eq!(feed(&mut tail, &[("b", "2"), ("c", "3"), ("d", "4"), ("c", "5")]), ["4", "5"]);
        assert_eq!(tail.repeats(), 2);
        tail.reopened();
        assert_eq!(feed(&mut tail, &[("d", "4"), ("e", "6")]), ["6"]);
    }

    #[test]
    fn ids_that_are_reused_or_absent_identify_nothing() {
        for id in ["0", "x", ""] {
            let mut tail = Tail::default();
            assert_eq!(feed(&mut tail, &[(id, "w"), (id, "w"), (id, "w")]).len(), 3, "{id}");
            assert!(!tail.is_resumable());
            tail.reopened();
            assert_eq!(feed(&mut tail, &[(id, "w"), (id, "v")]).len(), 2, "{id}");
            assert_eq!(tail.repeats(), 0);
        }
    }

    #[test]
    fn an_event_that_nothing_identifies_is_recognised_by_its_content_and_delivered() {
        for id in ["0", ""] {
            let mut tail = Tail::default();
            feed(&mut tail, &[(id, "a"), (id, "b")]);
            tail.reopened();
            let id = Some(EventId::from(id));
            let mut accept = |content: &str| tail.accept(id.as_ref(), Fingerprint::of(content.as_bytes()));
            assert_eq!(
                [accept("a"), accept("c"), accept("c")],
                [Recognised::Alike, Recognised::New, Recognised::New]
            );
        }
    }

    #[test]
    fn an_id_that_was_used_twice_is_no_place_to_resume_at() {
        for events in [[("a", "1"), ("a", "2")], [("a", "1"), ("b", "2")]] {
            let mut tail = Tail::default();
            feed(&mut tail, &events);
            tail.reopened();
            assert_eq!(tail.is_resumable(), events[1].0 == "b");
            feed(&mut tail, &[("a", "3")]);
            assert!(!tail.is_resumable(), "the id of another event came again");
            tail.reopened();
            assert!(!tail.is_resumable());
        }
    }

    #[test]
    fn ascending_descending_and_time_stamp_ids_lose_nothing_and_repeat_nothing() {
        let rows: [&[&str]; 3] = [&["10", "20", "30"], &["3", "2", "1"], &["1700000001", "1700000005", "99"]];
        for ids in rows {
            let mut tail = Tail::default();
            let events: Vec<_> = ids.iter().map(|id| (*id, *id)).collect();
            assert_eq!(feed(&mut tail, &events), ids);
            assert!(tail.is_resumable());
            tail.reopened();
            assert_eq!(feed(&mut tail, &events), [""; 0]);
        }
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        for n in 0..10 * TAIL {
            tail.accept(Some(&EventId::from(n.to_string().as_str())), Fingerprint::of(b"x"));
            tail.accept(None, Fingerprint::of(n.to_string().as_bytes()));
            if n % 100 == 0 {
                tail.reopened();
            }
        }
        assert!(tail.unidentified.len() <= TAIL && tail.contents.len() <= TAIL);
        assert!(tail.recent.len() <= TAIL && tail.identified.len() <= TAIL);
    }

    #[test]
    fn events_of_several_openings_are_recognised() {
        let mut tail = Tail::default();
        feed(&mut tail, &[("a", "1"), ("b", "2")]);
        tail.reopened();
        feed(&mut tail, &[("c", "3"), ("b", "other")]);
        tail.reopened();
        let replay = [("a", "1"), ("b", "2"), ("c", "3"), ("b", "other"), ("d", "4")];
        assert_eq!(feed(&mut tail, &replay), ["2", "4"], "the id b identifies its last event");
        tail.reopened();
        assert_eq!(feed(&mut tail, &[("b", "2"), ("b", "other"), ("d", "4")]), ["2", "other"]);
    }

    #[test]
    fn an_id_that_was_used_twice_is_remembered_after_its_events_are_forgotten() {
        let mut tail = Tail::default();
        feed(&mut tail, &[("a", "1"), ("b", "2"), ("a", "3")]);
        for n in 0..2 * TAIL {
            feed(&mut tail, &[(&n.to_string(), "x")]);
        }
        assert!(!tail.is_resumable());
    }
}
