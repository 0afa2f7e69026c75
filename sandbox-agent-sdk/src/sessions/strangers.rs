//! What came for sessions that nobody here keeps, or does not keep yet.

use std::collections::{HashMap, HashSet, VecDeque};

use super::entry::Entry;
use crate::sessions::StoredEventKind;
use crate::store::number_of;

/// How much is remembered: of how many sessions, how many events of each and of all, and how many bytes they take, about.
/// The answer that names a session may come after its first events, and whoever kept a session may have been killed before
/// it stored what happened last. No server keeps more for those who come late.
const SESSIONS: usize = 32;
const EVENTS: usize = 1024;
const ALL_EVENTS: usize = 8192;
const ALL_BYTES: usize = 16 << 20;
/// Of how many sessions it is remembered that something of them is not.
const FLOORS: usize = 4096;
/// A server gives its first numbers to answers, which are nobody's events.
const HANDSHAKE: u64 = 8;

/// What came for sessions that nobody here keeps, in one life of the server.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// The longest without news first.
    known: VecDeque<Stranger>,
    events: usize,
    bytes: usize,
    /// Up to which number of the stream something may be missing here of any session; `None` before it was read.
    floor: Option<u64>,
    /// The same for sessions of which something was forgotten, or given away.
    floors: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Stranger {
    name: String,
    seen: VecDeque<Seen>,
    /// What these take.
    bytes: usize,
    /// How many events that came while this program was there are not remembered any more.
    forgotten: u64,
}

#[derive(Debug)]
struct Seen {
    entry: Entry,
    number: Option<u64>,
    /// Whether it came while this program was there.
    is_live: bool,
}

/// What is known of what others have stored of a session.
#[derive(Debug)]
pub(super) struct Stored<'a> {
    /// Whether whoever had the session last has stored how it took it up. What an agent tells while it loads a session is
    /// no news, and else nobody could tell it from news.
    pub(super) is_accounted: bool,
    /// The number up to which everything is stored, if that is of this life of the server.
    pub(super) to: Option<u64>,
    /// That number, whether it is of this life or not.
    pub(super) last: Option<u64>,
    /// The last places that are stored.
    pub(super) places: &'a HashSet<String>,
    /// Whether a turn was begun whose end is not stored.
    pub(super) has_open_turn: bool,
    /// Whether it is stored that the session has ended, by somebody who did not know its place.
    pub(super) is_ended: bool,
}

impl Strangers {
    /// Another stream begins, or another life of the server.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The stream has come to this number.
    pub(super) fn pass(&mut self, number: u64) {
        self.floor.get_or_insert(number.saturating_sub(1));
    }

    /// Nobody has seen what the stream had up to this number.
    pub(super) fn miss(&mut self, number: u64) {
        self.floor = self.floor.max(Some(number));
    }

    /// What the stream had of this session up to this number is not remembered here.
    pub(super) fn miss_of(&mut self, session: &str, number: u64) {
        if self.floors.len() >= FLOORS && !self.floors.contains_key(session) {
            let highest = self.floors.drain().map(|(_, floor)| floor).max();
            self.floor = self.floor.max(highest);
        }
        let floor = self.floors.entry(session.to_owned()).or_default();
        *floor = number.max(*floor);
    }

    pub(super) fn put(&mut self, session: &str, entry: Entry, is_live: bool) {
        let weight = entry.weight;
        let mut stranger = self.take(session).unwrap_or_default();
        session.clone_into(&mut stranger.name);
        let number = entry.place.as_deref().and_then(number_of);
        stranger.bytes += weight;
        stranger.seen.push_back(Seen { entry, number, is_live });
        if stranger.seen.len() > EVENTS
            && let Some(oldest) = stranger.seen.pop_front()
        {
            stranger.bytes -= oldest.entry.weight;
            stranger.forgotten += u64::from(oldest.is_live);
            self.miss_of(session, oldest.number.unwrap_or(0));
        }
        self.events += stranger.seen.len();
        self.bytes += stranger.bytes;
        self.known.push_back(stranger);
        // One that is too large for itself goes as well.
        while self.known.len() > SESSIONS || self.events > ALL_EVENTS || self.bytes > ALL_BYTES {
            let Some(oldest) = self.known.pop_front() else { break };
            self.events -= oldest.seen.len();
            self.bytes -= oldest.bytes;
            let last = oldest.seen.iter().filter_map(|seen| seen.number).max();
            self.miss_of(&oldest.name, last.unwrap_or(0));
        }
    }

    /// Gives what came for a session since this program is there, and forgets it.
    pub(super) fn recall(&mut self, session: &str) -> Vec<Entry> {
        let Some(stranger) = self.take(session) else { return Vec::new() };
        let lost = (stranger.forgotten > 0).then(|| Entry::lost(stranger.forgotten));
        let news = stranger.seen.into_iter().filter_map(|seen| seen.is_live.then_some(seen.entry));
        lost.into_iter().chain(news).collect()
    }

    /// Gives what came for a session and nobody has stored, as far as it is known, and forgets it. Where something may be
    /// missing, that is the first of it. The stream has been read up to this number.
    pub(super) fn recover(&mut self, session: &str, stored: &Stored<'_>, reached: Option<u64>) -> Vec<Entry> {
        let floor = self.floors.remove(session).max(self.floor);
        // Nobody can tell what there was of a session that began with the server, if that is long ago.
        let to = stored.to.filter(|to| *to > 0 || floor <= Some(HANDSHAKE));
        let seen = self.take(session).map(|stranger| stranger.seen).unwrap_or_default();
        let is_news = |seen: &Seen| {
            let is_stored = seen.entry.place.as_ref().is_some_and(|place| stored.places.contains(place));
            let is_told = stored.is_ended && seen.entry.kind == StoredEventKind::Ended;
            seen.number.is_some() && seen.number > to && !is_stored && !is_told
        };
        let news: Vec<Seen> = seen.into_iter().filter(is_news).collect();
        let gap = match to {
            Some(to) if stored.is_accounted => {
                let is_missing = floor > Some(to) && to > 0;
                is_missing.then(|| Entry::gap(to.checked_add(1), floor))
            }
            _ if news.is_empty() && !stored.has_open_turn => None,
            None if stored.is_accounted => {
                let first = news.first().and_then(|seen| seen.number);
                let from = stored
                    .last
                    .filter(|last| first.or(reached) > Some(*last))
                    .and_then(|last| last.checked_add(1));
                // What is behind the last one is there, although that is not: somebody had the server forget it.
                let is_whole = from.is_some() && from == first;
                let to = first.map(|first| first.saturating_sub(1)).or(reached);
                (!is_whole).then(|| Entry::gap(from, to))
            }
            to => Some(Entry::gap(to.and_then(|to| to.checked_add(1)), reached)),
        };
        let news = news.into_iter().filter(|_| stored.is_accounted).map(|seen| seen.entry);
        gap.into_iter().chain(news).collect()
    }

    /// Whether something came for a session behind this number, or at all if there is none.
    /// An end is not counted.
    pub(super) fn has_behind(&self, session: &str, number: Option<u64>) -> bool {
        let is_behind = |seen: &Seen| seen.number > number && seen.entry.kind != StoredEventKind::Ended;
        let stranger = self.known.iter().find(|stranger| stranger.name == session);
        stranger.is_some_and(|stranger| stranger.seen.iter().any(is_behind))
    }

    fn take(&mut self, session: &str) -> Option<Stranger> {
        let known = self.known.iter().position(|stranger| stranger.name == session)?;
        let stranger = self.known.remove(known)?;
        self.events -= stranger.seen.len();
        self.bytes -= stranger.bytes;
        Some(stranger)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::{ALL_BYTES, ALL_EVENTS, EVENTS, SESSIONS, Stored, Strangers};
    use crate::sessions::StoredEventKind;
    use crate::sessions::entry::Entry;

    fn put(strangers: &mut Strangers, session: &str, number: u64, weight: usize) {
        strangers.pass(number);
        let (kind, place) = (StoredEventKind::Update, Some(format!("{number}-x")));
        strangers.put(session, Entry { kind, payload: json!(number), place, weight }, true);
    }

    /// The numbers of what is recovered, and the bounds of a gap before them.
    fn recover(
        strangers: &mut Strangers,
        session: &str,
        to: Option<u64>,
        is_accounted: bool,
    ) -> (Vec<u64>, Option<String>) {
        let places = HashSet::from(["7-x".to_owned()]);
        let stored = Stored {
            is_accounted,
            to,
            last: Some(23),
            places: &places,
            has_open_turn: false,
            is_ended: false,
        };
        let mut entries = strangers.recover(session, &stored, Some(5000));
        let has_gap = entries.first().is_some_and(|entry| entry.kind == StoredEventKind::Gap);
        let gap = has_gap.then(|| entries.remove(0).payload);
        let gap = gap.map(|gap| format!("{}..{}", gap["from"], gap["to"]));
        (entries.iter().map(|entry| entry.payload.as_u64().unwrap()).collect(), gap)
    }

    #[test]
    fn what_came_behind_what_is_stored_is_recovered() {
        let mut strangers = Strangers::default();
        (3..10).for_each(|number| put(&mut strangers, "s", number, 1));
        assert!(strangers.has_behind("s", Some(8)) && !strangers.has_behind("s", Some(9)));
        assert_eq!(recover(&mut strangers, "s", Some(5), true), (vec![6, 8, 9], None));
        assert_eq!(recover(&mut strangers, "s", Some(5), true), (vec![], None), "once");
        // A session that was made when the server was new: what came first is there.
        (10..12).for_each(|number| put(&mut strangers, "s", number, 1));
        assert_eq!(recover(&mut strangers, "s", Some(0), true), (vec![10, 11], None));
    }

    #[test]
    fn what_cannot_be_recovered_is_a_gap() {
        let mut strangers = Strangers::default();
        (20..25).for_each(|number| put(&mut strangers, "s", number, 1));
        assert_eq!(
            recover(&mut strangers, "s", Some(5), true).1.as_deref(),
            Some("6..19"),
            "it came too late"
        );
        assert_eq!(recover(&mut strangers, "other", Some(0), true), (vec![], None), "nothing happened in it");
        (25..28).for_each(|number| put(&mut strangers, "s", number, 1));
        assert_eq!(recover(&mut strangers, "s", None, true), (vec![25, 26, 27], Some("24..24".into())));
        (24..26).for_each(|number| put(&mut strangers, "s", number, 1));
        assert_eq!(recover(&mut strangers, "s", None, true), (vec![24, 25], None), "it goes on there");
        (3..5).for_each(|number| put(&mut strangers, "s", number, 1));
        assert_eq!(recover(&mut strangers, "s", None, true), (vec![3, 4], Some("null..2".into())), "anew");
        (28..30).for_each(|number| put(&mut strangers, "s", number, 1));
        // Somebody took the session up and did not come to store how.
        assert_eq!(recover(&mut strangers, "s", Some(28), false), (vec![], Some("29..5000".into())));
        assert_eq!(recover(&mut strangers, "s", None, false), (vec![], None));
        strangers.miss(40);
        put(&mut strangers, "s", 41, 1);
        assert_eq!(recover(&mut strangers, "s", Some(30), true), (vec![41], Some("31..40".into())));
        strangers.miss_of("s", 60);
        put(&mut strangers, "s", 61, 1);
        assert_eq!(recover(&mut strangers, "s", Some(45), true), (vec![61], Some("46..60".into())));
        assert_eq!(recover(&mut strangers, "t", Some(45), true), (vec![], None), "it is of the other one");
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_is_a_gap() {
        let mut strangers = Strangers::default();
        let many = EVENTS as u64 + 9;
        (1..=many).for_each(|number| put(&mut strangers, "s", number, 1));
        let (numbers, gap) = recover(&mut strangers, "s", Some(4), true);
        assert_eq!((numbers.len(), gap.as_deref()), (EVENTS, Some("5..9")));

        let mut strangers = Strangers::default();
        for number in 1..=3 * ALL_EVENTS as u64 {
            put(&mut strangers, &format!("s{}", number % 50), number, 1);
            assert!(strangers.known.len() <= SESSIONS && strangers.events <= ALL_EVENTS);
        }
        put(&mut strangers, "s7", 99_999, ALL_BYTES);
        assert!(strangers.bytes <= ALL_BYTES);
        put(&mut strangers, "s7", 100_000, ALL_BYTES + 1);
        assert_eq!((strangers.bytes, strangers.events, strangers.known.len()), (0, 0, 0));
        assert_eq!(recover(&mut strangers, "s7", Some(99_999), true).1.as_deref(), Some("100000..100000"));
        let fresh: Vec<String> = (0..3 * super::FLOORS).map(|n| n.to_string()).collect();
        fresh.iter().for_each(|name| strangers.miss_of(name, 7));
        assert!(strangers.floors.len() <= super::FLOORS);
    }
}
