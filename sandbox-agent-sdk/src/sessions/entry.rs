//! What is stored of what happens, and what waits to be.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Value, json};

use crate::{Event, Origin, StoredEventKind};

/// How many sessions that nobody keeps are remembered, and how many events of each: the answer that names a session may
/// come after its first events.
const STRANGERS: usize = 32;
const STRANGER_EVENTS: usize = 256;
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
        if event.origin() != Origin::Live {
            return None;
        }
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

    fn lost(count: u64) -> Self {
        Self { kind: StoredEventKind::Lost, payload: json!({ "count": count }), place: None }
    }
}

/// Events of sessions that nobody here stores, or does not store yet.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// What came for sessions that nobody keeps, the longest known first.
    strangers: VecDeque<(String, Heap)>,
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

    /// Remembers an event of a session that nobody keeps, for a moment.
    pub(super) fn remember(&mut self, session: &str, event: &Event, place: Option<&str>) {
        let Some(entry) = Entry::of(event, place) else { return };
        let known = self.strangers.iter_mut().find(|(stranger, _)| stranger == session);
        if let Some((_, heap)) = known {
            return heap.put(Some(entry), STRANGER_EVENTS);
        }
        if self.strangers.len() == STRANGERS {
            self.strangers.pop_front();
        }
        self.strangers.push_back((session.to_owned(), Heap { entries: vec![entry], missed: 0 }));
    }

    /// Gives what is remembered of a session that nobody kept, and forgets it.
    pub(super) fn recall(&mut self, session: &str) -> Vec<Entry> {
        let known = self.strangers.iter().position(|(stranger, _)| stranger == session);
        let recalled = known.and_then(|known| self.strangers.remove(known));
        recalled.map(|(_, heap)| heap.into_entries()).unwrap_or_default()
    }
}
