//! Streams whose ids are opaque.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{BuildHasher, RandomState},
};

use super::{EventId, Fingerprint};

/// How many of the latest events of an opening are remembered, to recognise them when the next one replays them.
const TAIL: usize = 1024;

/// What an opaque id says of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recognised {
    New,
    /// Its id identifies nothing, and an earlier opening brought an event with the same content.
    Alike,
    /// An earlier opening brought it.
    Repeat,
}

/// Recognises what a reopened stream replays, by ids of which nothing is known but that they are legal.
///
/// A repeat is an event whose id and content were in the tail of an earlier opening in which that id was unique. An id
/// that is absent or reused identifies nothing: such an event is never dropped.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    /// The latest events of the open stream, by the hash of their id, in order.
    current: VecDeque<(u64, Fingerprint)>,
    /// How often an id is in `current`.
    counts: HashMap<u64, u32>,
    /// Events of earlier openings that their ids identify, and which have not been replayed yet.
    earlier: HashMap<u64, Fingerprint>,
    /// The contents of the latest events of the open stream that have no id.
    unidentified: VecDeque<Fingerprint>,
    /// The contents of events of earlier openings that their ids do not identify.
    contents: HashSet<Fingerprint>,
    last: Option<EventId>,
    /// Whether the last event of the open stream had an id.
    last_identified: bool,
    /// Whether an id was used for two events, in one opening or after a restart.
    reused: bool,
    hasher: RandomState,
    repeats: u64,
}

impl Tail {
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
        self.last_identified && !self.reused
    }

    /// Takes an event.
    pub(super) fn accept(&mut self, id: Option<&EventId>, print: Fingerprint) -> Recognised {
        let content = match self.contents.contains(&print) {
            true => Recognised::Alike,
            false => Recognised::New,
        };
        let Some(id) = id.filter(|id| !id.is_empty()) else {
            self.last_identified = false;
            if self.unidentified.len() == TAIL {
                self.unidentified.pop_front();
            }
            self.unidentified.push_back(print);
            return content;
        };
        let key = self.hasher.hash_one(id);
        if self.earlier.get(&key) == Some(&print) {
            self.earlier.remove(&key);
            self.repeats += 1;
            self.remember(key, print);
            return Recognised::Repeat;
        }
        self.reused |= self.earlier.contains_key(&key) || self.counts.contains_key(&key);
        self.remember(key, print);
        self.last = Some(id.clone());
        self.last_identified = true;
        content
    }

    /// Moves behind an event that was skipped unread, so that it is never fetched again.
    pub(super) fn skip(&mut self, id: Option<&EventId>) {
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            self.last = Some(id.clone());
            self.last_identified = true;
        }
    }

    /// The stream was opened again.
    pub(super) fn reopened(&mut self) {
        if self.contents.len() > 4 * TAIL {
            self.contents.clear();
        }
        self.contents.extend(self.unidentified.drain(..));
        for (key, print) in std::mem::take(&mut self.current) {
            if self.counts.get(&key) == Some(&1) {
                self.earlier.insert(key, print);
            } else {
                self.earlier.remove(&key);
                self.contents.insert(print);
            }
        }
        self.counts.clear();
        // What several openings in a row left over is not replayed any more.
        if self.earlier.len() > 4 * TAIL {
            self.earlier.clear();
        }
    }

    fn remember(&mut self, key: u64, print: Fingerprint) {
        *self.counts.entry(key).or_default() += 1;
        self.current.push_back((key, print));
        if self.current.len() > TAIL
            && let Some((oldest, _)) = self.current.pop_front()
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
    }
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
        assert!(tail.unidentified.len() <= TAIL && tail.contents.len() <= 6 * TAIL);
        assert!(tail.current.len() <= TAIL && tail.counts.len() <= TAIL && tail.earlier.len() <= 5 * TAIL);
    }
}
