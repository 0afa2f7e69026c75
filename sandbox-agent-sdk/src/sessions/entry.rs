//! What is stored of what happens, and what waits to be.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::Event;
use crate::client::event::Weight;
use crate::event::Origin;
use crate::sessions::StoredEventKind;

/// How much is held back of a session that is being taken up, or left. What does not fit is counted.
const HELD_EVENTS: usize = 8192;
const HELD_BYTES: usize = 32 << 20;

/// What is stored of an event.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) kind: StoredEventKind,
    pub(super) payload: Value,
    /// What every program that sees it calls it, if it has a place in a stream that others see.
    pub(super) place: Option<String>,
    /// What it takes, in bytes, about.
    pub(super) weight: usize,
}

impl Entry {
    /// What is stored of an event, if it is new and worth it.
    pub(super) fn of(event: &Event, place: Option<&str>) -> Option<Self> {
        if event.origin() == Origin::Live { Self::whenever(event, place) } else { None }
    }

    /// What is stored of an event, if it is worth it, also if it is older than this connection.
    pub(super) fn whenever(event: &Event, place: Option<&str>) -> Option<Self> {
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
        Some(Self { kind, payload, place: place.map(str::to_owned), weight: event.weight() })
    }

    /// Events that nobody has, by their numbers in the stream as far as these are known.
    pub(super) fn gap(from: Option<u64>, to: Option<u64>) -> Self {
        Self::own(StoredEventKind::Gap, json!({"from": from, "to": to, "by": "restore"}))
    }

    pub(super) fn lost(count: u64) -> Self {
        Self::own(StoredEventKind::Lost, json!({ "count": count }))
    }

    /// What is no event of the stream.
    pub(super) fn own(kind: StoredEventKind, payload: Value) -> Self {
        Self { kind, payload, place: None, weight: 0 }
    }
}

/// Events of sessions that are being taken up or left.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// What came for sessions that are being taken up or left.
    held: HashMap<String, Heap>,
}

/// Events in their order, and how many did not fit.
#[derive(Debug, Default)]
struct Heap {
    entries: Vec<Entry>,
    bytes: usize,
    missed: u64,
}

impl Heap {
    fn put(&mut self, entry: Entry) {
        let weight = entry.weight;
        if self.entries.len() < HELD_EVENTS && (self.bytes + weight <= HELD_BYTES || self.entries.is_empty())
        {
            self.bytes += weight;
            self.entries.push(entry);
        } else {
            self.missed += 1;
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
        if let Some(entry) = Entry::of(event, place) {
            heap.put(entry);
        }
        true
    }

    /// Keeps what is no event of the stream, if the session's events are held back.
    pub(super) fn take_own(&mut self, session: &str, entry: &Entry) -> bool {
        let Some(heap) = self.held.get_mut(session) else { return false };
        heap.put(entry.clone());
        true
    }

    /// Keeps an event of all sessions for those whose events are held back, but for these.
    pub(super) fn take_for_all_but(&mut self, sessions: &HashSet<&str>, entry: &Entry) {
        for (_, heap) in self.held.iter_mut().filter(|(session, _)| !sessions.contains(session.as_str())) {
            heap.put(entry.clone());
        }
    }
}
