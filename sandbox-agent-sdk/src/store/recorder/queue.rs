//! What waits for the store, and what there was no room for.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem::{Discriminant, discriminant};

use serde_json::json;

use super::claims::Claims;
use super::losses::Failures;
use super::{RecorderOptions, Unrecorded};
use crate::session::Timestamp;
use crate::store::{NewEvent, StoreError, StoredEventKind};

/// Of how many sessions it is remembered when they were made.
const KNOWN: usize = 16_384;

/// What an event is called until it has its place in the queue.
const UNNAMED: &str = "?";

/// A session, and when it was made if that is known: one that was deleted and made again is another one.
pub(super) type SessionKey = (String, Option<Timestamp>);

/// An event on its way to the store.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) event: NewEvent,
    /// How many bytes it takes, about.
    size: usize,
    /// For how many events it stands: one, unless it stands for events that were lost.
    weight: u64,
    /// Whether it was put here in place of events that somebody was told of.
    is_mark: bool,
    /// How many of those it stands for the store would not take before.
    refused: u64,
    /// How often the server had begun to count anew since the session was taken up.
    pub(super) restarts: i64,
}

impl Entry {
    /// An event that stands for itself.
    #[cfg(test)]
    pub(super) fn of(event: NewEvent) -> Self {
        Self { event, size: 0, weight: 1, is_mark: false, refused: 0, restarts: 0 }
    }

    pub(super) fn key(&self) -> SessionKey {
        (self.event.session_id.clone(), self.event.session_made_at)
    }

    /// How many events somebody has to be told of if it is not stored. What a mark stands for was told when it was lost.
    fn told(&self) -> u64 {
        if self.is_mark { 0 } else { self.weight }
    }
}

/// Everything a recorder knows. Nothing here waits.
#[derive(Debug)]
pub(super) struct Queue {
    options: RecorderOptions,
    /// What tells the ids of this recorder's events from those of all others.
    prefix: String,
    waiting: VecDeque<Entry>,
    /// The sessions that this program has taken up.
    pub(super) claims: Claims,
    /// What these and those that are being written take.
    bytes: usize,
    /// How many events of each session are being written.
    writing: BTreeMap<String, u64>,
    /// How many events were taken down so far, including what stands for lost ones.
    pub(super) taken: u64,
    /// When sessions were made.
    made: HashMap<String, Timestamp>,
    /// Sessions that this program deletes, or has: what is left of them is not missed.
    deleted: HashSet<SessionKey>,
    /// What is to be put in the place of events that were lost, by session.
    lost: BTreeMap<SessionKey, Lost>,
    /// Losses that nobody was told of yet, by session and kind of error.
    untold: HashMap<(String, Option<Discriminant<StoreError>>), Unrecorded>,
    pub(super) failures: Failures,
    pub(super) closed: bool,
}

#[derive(Debug, Default)]
struct Lost {
    count: u64,
    /// How many of them the store would not take. The others did not fit into the queue.
    refused: u64,
    /// Whether the store would not take the last mark either, so that only somebody who asks makes for another one.
    is_hopeless: bool,
}

impl Queue {
    pub(super) fn new(options: RecorderOptions, prefix: String) -> Self {
        Self {
            options,
            prefix,
            waiting: VecDeque::new(),
            claims: Claims::default(),
            bytes: 0,
            writing: BTreeMap::new(),
            taken: 0,
            made: HashMap::new(),
            deleted: HashSet::new(),
            lost: BTreeMap::new(),
            untold: HashMap::new(),
            failures: Failures::default(),
            closed: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// What is taken down of the session from now on happened in the one that was made at this moment.
    pub(super) fn know(&mut self, session: &str, made_at: Timestamp) {
        if self.made.len() >= KNOWN && !self.made.contains_key(session) {
            // Without the moment an event goes to whichever session has the id.
            let any = self.made.keys().next().cloned();
            any.and_then(|any| self.made.remove(&any));
        }
        self.made.insert(session.to_owned(), made_at);
    }

    /// The program deletes the session; `false` if it does not after all.
    pub(super) fn delete(&mut self, session: &str, is_deleted: bool) {
        let key = (session.to_owned(), self.made.get(session).copied());
        if is_deleted {
            if self.deleted.len() >= KNOWN {
                self.deleted.clear();
            }
            self.deleted.insert(key);
        } else {
            self.deleted.remove(&key);
        }
    }

    /// Takes an event down, or counts it.
    pub(super) fn push(
        &mut self,
        session: &str,
        at: Timestamp,
        kind: StoredEventKind,
        payload: serde_json::Value,
        place: Option<&str>,
    ) {
        let weight = weight(&kind, &payload);
        let made_at = self.made.get(session).copied();
        let key = || (session.to_owned(), made_at);
        let event = NewEvent::new(UNNAMED, session, at, kind, payload);
        let size = match event.check() {
            _ if self.closed => return self.refuse(session, weight, &StoreError::Closed),
            Ok(size) => size,
            Err(error) => {
                self.refuse(session, weight, &error);
                // Where even the id of the session cannot be kept, there is no place for a mark.
                let is_keepable =
                    NewEvent::new(UNNAMED, session, at, StoredEventKind::Lost, ()).check().is_ok();
                if is_keepable {
                    let lost = self.lost.entry(key()).or_default();
                    lost.count += weight;
                    lost.refused += weight;
                    self.failures.stands(session, weight);
                }
                return;
            }
        };
        let too_large = self.bytes > 0 && self.bytes + size > self.options.bytes;
        if self.waiting.len() >= self.options.capacity || too_large {
            let lost = self.lost.entry(key()).or_default();
            lost.count += weight;
            lost.is_hopeless = false;
            self.tell(session, weight, None);
            return;
        }
        if !self.lost.is_empty() {
            self.mark(&key(), at);
        }
        self.enter(Entry { event, size, weight, is_mark: false, refused: 0, restarts: 0 }, made_at, place);
    }

    fn enter(&mut self, mut entry: Entry, made_at: Option<Timestamp>, place: Option<&str>) {
        self.taken += 1;
        entry.event.id = format!("{}-{}", self.prefix, self.taken);
        entry.restarts = self.claims.mark(&mut entry.event, place);
        entry.event.session_made_at = made_at;
        self.bytes += entry.size;
        self.waiting.push_back(entry);
    }

    /// Puts an event in the place of those of a session that were lost, if there were any.
    fn mark(&mut self, key: &SessionKey, at: Timestamp) {
        let Some(Lost { count, refused, .. }) = self.lost.remove(key) else { return };
        let event = NewEvent::new(UNNAMED, &key.0, at, StoredEventKind::Lost, json!({ "count": count }));
        self.enter(Entry { event, size: 0, weight: count, is_mark: true, refused, restarts: 0 }, key.1, None);
    }

    /// Puts events in the place of all that were lost.
    pub(super) fn mark_all(&mut self, at: Timestamp) {
        let keys: Vec<SessionKey> = self.lost.keys().cloned().collect();
        keys.iter().for_each(|key| self.mark(key, at));
    }

    /// Takes the next batch, if there is any, and puts marks where there is room for them.
    pub(super) fn take(&mut self, at: Timestamp) -> Vec<Entry> {
        let count = self.waiting.len().min(self.options.batch);
        let batch: Vec<Entry> = self.waiting.drain(..count).collect();
        let due = self.lost.iter().filter(|(_, lost)| !lost.is_hopeless);
        let due: Vec<SessionKey> = due.map(|(key, _)| key.clone()).collect();
        due.iter().for_each(|key| self.mark(key, at));
        if batch.is_empty() && !self.waiting.is_empty() {
            return self.take(at);
        }
        for entry in &batch {
            match self.writing.get_mut(&entry.event.session_id) {
                Some(count) => *count += entry.told(),
                None => _ = self.writing.insert(entry.event.session_id.clone(), entry.told()),
            }
        }
        batch
    }

    /// These are written.
    pub(super) fn written(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.leave(entry);
            self.failures.settled(&entry.event.session_id, entry.refused);
            // The store takes events of the session, so it will take a mark.
            if !self.lost.is_empty()
                && let Some(lost) = self.lost.get_mut(&entry.key())
            {
                lost.is_hopeless = false;
            }
        }
    }

    /// The store would not take these.
    pub(super) fn give_up(&mut self, entries: &[Entry], error: &StoreError) {
        // Their sessions get an event in their place, as soon as the store takes one again. Those of sessions that are
        // gone would only be refused again.
        let is_gone = matches!(error, StoreError::NotFound { .. });
        for entry in entries {
            self.leave(entry);
            let (key, fresh) = (entry.key(), entry.weight - entry.refused);
            let is_missed = !(is_gone && self.deleted.contains(&key));
            if is_missed {
                // Whoever waits for a mark to be stored hears of it, too.
                self.failures.add(&key.0, fresh, error);
            }
            if is_missed && entry.told() > 0 {
                self.tell(&key.0, entry.told(), Some(error));
            }
            if is_gone {
                let gone = self.lost.remove(&key).unwrap_or_default();
                self.failures.settled(&key.0, gone.refused + entry.refused);
                continue;
            }
            self.failures.stands(&key.0, fresh);
            let lost = self.lost.entry(key).or_default();
            lost.count += entry.weight;
            lost.refused += entry.weight;
            lost.is_hopeless = true;
        }
        tracing::warn!(count = entries.len(), %error, "events were not stored");
    }

    fn leave(&mut self, entry: &Entry) {
        self.bytes -= entry.size;
        if let Some(count) = self.writing.get_mut(&entry.event.session_id) {
            *count -= entry.told();
            if *count == 0 {
                self.writing.remove(&entry.event.session_id);
            }
        }
    }

    fn refuse(&mut self, session: &str, count: u64, error: &StoreError) {
        self.failures.add(session, count, error);
        self.tell(session, count, Some(error));
    }

    /// Adds a loss to those that somebody has to be told of.
    fn tell(&mut self, session: &str, count: u64, error: Option<&StoreError>) {
        let told = self.untold.entry((session.to_owned(), error.map(discriminant)));
        let session_id = session.to_owned();
        let told = told.or_insert_with(|| Unrecorded { session_id, count: 0, error: error.cloned() });
        told.count += count;
    }

    pub(super) fn has_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// What somebody has to be told of.
    pub(super) fn untold(&mut self) -> Vec<Unrecorded> {
        std::mem::take(&mut self.untold).into_values().collect()
    }

    /// The end: nothing that is not stored will be, or is known to be.
    pub(super) fn abandon(&mut self) {
        self.closed = true;
        let mut counts = std::mem::take(&mut self.writing);
        for entry in std::mem::take(&mut self.waiting) {
            *counts.entry(entry.event.session_id.clone()).or_default() += entry.told();
        }
        for (session, count) in counts {
            if count > 0 {
                self.refuse(&session, count, &StoreError::Closed);
            }
        }
    }
}

/// For how many events an event stands.
fn weight(kind: &StoredEventKind, payload: &serde_json::Value) -> u64 {
    /// More than are ever lost, and so few that adding them up is safe.
    const MOST: u64 = 1 << 32;
    let count = payload.get("count").and_then(serde_json::Value::as_u64);
    count.filter(|_| *kind == StoredEventKind::Lost).unwrap_or(1).min(MOST)
}
