//! What is stored of what happens, and what waits to be.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};

use crate::store::number_of;
use crate::{Event, Origin, StoredEventKind};

/// How many sessions that nobody here keeps are remembered, and how many events of each and of all: the answer that names
/// a session may come after its first events, and whoever kept a session may have been killed before it stored what
/// happened last. No server keeps more for those who come late.
const STRANGERS: usize = 32;
const STRANGER_EVENTS: usize = 1024;
const ALL_STRANGERS_EVENTS: usize = 8192;
/// How many events are held back of a session that is being taken up, or left. What does not fit is counted.
const HELD_EVENTS: usize = 8192;

/// What is stored of an event.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) kind: StoredEventKind,
    pub(super) payload: Value,
    /// What every program that sees it calls it, if it has a place in a stream that others see.
    pub(super) place: Option<String>,
}

impl Entry {
    /// What is stored of an event, if it is new and worth it.
    pub(super) fn of(event: &Event, place: Option<&str>) -> Option<Self> {
        if event.origin() == Origin::Live { Self::whenever(event, place) } else { None }
    }

    /// What is stored of an event, if it is worth it, also if it is older than this connection.
    fn whenever(event: &Event, place: Option<&str>) -> Option<Self> {
        let (kind, payload) = match event {
            Event::Update(update) => (StoredEventKind::Update, update.raw().clone()),
            Event::SessionEnded(ended) => (StoredEventKind::Ended, json!(ended.termination)),
            Event::Permission(request) => (StoredEventKind::Permission, request.raw().clone()),
            Event::Question(request) => (StoredEventKind::Question, request.raw().clone()),
            Event::Other { method, params, .. } => {
                (StoredEventKind::Notification, json!({"method": method, "params": params}))
            }
            Event::Gap(gap) => (StoredEventKind::Gap, json!({"from": gap.from, "to": gap.to})),
            Event::Lagged(count) => (StoredEventKind::Lost, json!({ "count": count })),
            _ => return None,
        };
        Some(Self { kind, payload, place: place.map(str::to_owned) })
    }

    fn is_behind(&self, number: Option<u64>) -> bool {
        self.place.as_deref().and_then(number_of) > number
    }

    fn lost(count: u64) -> Self {
        Self { kind: StoredEventKind::Lost, payload: json!({ "count": count }), place: None }
    }
}

/// Events of sessions that nobody here stores, or does not store yet.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// What came for sessions that nobody keeps, the longest known first.
    strangers: VecDeque<Stranger>,
    /// What came for sessions that are being taken up or left.
    held: HashMap<String, Heap>,
}

/// Events in their order, and how many did not fit.
#[derive(Debug, Default)]
struct Heap {
    entries: Vec<Entry>,
    missed: u64,
}

impl Heap {
    fn put(&mut self, entry: Option<Entry>, most: usize) {
        match entry {
            Some(entry) if self.entries.len() < most => self.entries.push(entry),
            Some(_) => self.missed += 1,
            None => {}
        }
    }

    fn into_entries(mut self) -> Vec<Entry> {
        self.entries.extend((self.missed > 0).then(|| Entry::lost(self.missed)));
        self.entries
    }
}

impl Early {
    /// Holds back what comes for a session from now on.
    pub(super) fn hold(&mut self, session: &str) {
        self.held.entry(session.to_owned()).or_default();
    }

    /// Gives what was held back of a session, and holds nothing back any more.
    pub(super) fn release(&mut self, session: &str) -> Vec<Entry> {
        self.held.remove(session).unwrap_or_default().into_entries()
    }

    /// Gives what was held back of a session but for what is stored in these places, which are struck out.
    pub(super) fn release_but(&mut self, session: &str, stored: &mut HashSet<String>) -> Vec<Entry> {
        let mut entries = self.release(session);
        entries.retain(|entry| !entry.place.as_ref().is_some_and(|place| stored.remove(place)));
        entries
    }

    /// Keeps an event if its session's events are held back.
    pub(super) fn take(&mut self, session: &str, event: &Event, place: Option<&str>) -> bool {
        let Some(heap) = self.held.get_mut(session) else { return false };
        heap.put(Entry::of(event, place), HELD_EVENTS);
        true
    }

    /// Keeps an event of all sessions for those whose events are held back, but for these.
    pub(super) fn take_for_all_but(&mut self, sessions: &HashSet<&str>, entry: &Entry) {
        for (_, heap) in self.held.iter_mut().filter(|(session, _)| !sessions.contains(session.as_str())) {
            heap.put(Some(entry.clone()), HELD_EVENTS);
        }
    }

    /// Remembers an event of a session that nobody keeps.
    pub(super) fn remember(&mut self, session: &str, event: &Event, place: Option<&str>) {
        if event.origin() == Origin::History {
            return;
        }
        let Some(entry) = Entry::whenever(event, place) else { return };
        let is_live = event.origin() == Origin::Live;
        let known = self.strangers.iter().position(|stranger| stranger.name == session);
        let known = known.unwrap_or_else(|| {
            if self.strangers.len() == STRANGERS {
                self.strangers.pop_front();
            }
            self.strangers.push_back(Stranger { name: session.to_owned(), ..Stranger::default() });
            self.strangers.len() - 1
        });
        if let Some(stranger) = self.strangers.get_mut(known) {
            stranger.put(entry, is_live);
        }
        while self.strangers.iter().map(|stranger| stranger.seen.len()).sum::<usize>() > ALL_STRANGERS_EVENTS
        {
            self.strangers.pop_front();
        }
    }

    /// Gives what came for a session that nobody kept since this program is there, and forgets it.
    pub(super) fn recall(&mut self, session: &str) -> Vec<Entry> {
        self.meet(session).map(Stranger::into_news).unwrap_or_default()
    }

    /// Gives what came for a session that nobody kept behind this number, and forgets it.
    pub(super) fn recall_behind(&mut self, session: &str, number: Option<u64>) -> Vec<Entry> {
        self.meet(session).zip(number).map(|(stranger, number)| stranger.behind(number)).unwrap_or_default()
    }

    /// Whether something came for a session that nobody kept behind this number, or at all if there is none.
    pub(super) fn has_behind(&self, session: &str, number: Option<u64>) -> bool {
        let stranger = self.strangers.iter().find(|stranger| stranger.name == session);
        stranger.is_some_and(|stranger| stranger.seen.iter().any(|(entry, _)| entry.is_behind(number)))
    }

    fn meet(&mut self, session: &str) -> Option<Stranger> {
        let known = self.strangers.iter().position(|stranger| stranger.name == session)?;
        self.strangers.remove(known)
    }
}

/// A session that nobody here keeps, and what came for it last.
#[derive(Debug, Default)]
struct Stranger {
    name: String,
    /// Each event, and whether it came while this program was there.
    seen: VecDeque<(Entry, bool)>,
    /// How many events that came while this program was there are not remembered any more.
    forgotten: u64,
}

impl Stranger {
    fn put(&mut self, entry: Entry, is_live: bool) {
        if self.seen.len() == STRANGER_EVENTS {
            self.forgotten += u64::from(self.seen.pop_front().is_some_and(|(_, was_live)| was_live));
        }
        self.seen.push_back((entry, is_live));
    }

    fn into_news(self) -> Vec<Entry> {
        let lost = (self.forgotten > 0).then(|| Entry::lost(self.forgotten));
        let news = self.seen.into_iter().filter_map(|(entry, is_live)| is_live.then_some(entry));
        lost.into_iter().chain(news).collect()
    }

    fn behind(self, number: u64) -> Vec<Entry> {
        let seen = self.seen.into_iter().map(|(entry, _)| entry);
        seen.filter(|entry| entry.is_behind(Some(number))).collect()
    }
}
