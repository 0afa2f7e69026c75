//! A store in memory.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;

use super::limits::{check_key, check_value};
use super::{
    Acquire, Append, Appended, Change, EventKey, EventOrder, EventPage, EventQuery, Fence, NewEvent,
    OpenEvents, RecordPage, RecordQuery, ScannedTo, SessionRecord, SessionStore, StoreError, StoreFuture,
    StoredEvent, StoredEventKind, StreamPosition, Suspend, TurnEnd, opens_request,
};
use crate::session::Timestamp;
use crate::sessions::replay::PROMPTS;
use crate::sessions::status::SessionStatus;

#[cfg(test)]
mod tests;

/// How many sessions a store holds by default.
const MAX_SESSIONS: usize = 1024;
/// How many events of each session a store holds by default.
const MAX_EVENTS: usize = 500;

/// A store in memory. Its contents are lost when the program exits.
///
/// Its size is limited. If a limit is exceeded, the oldest sessions, or the oldest events of a session, are dropped. What
/// a session needs to continue is dropped last: its open turn and agent requests, and the latest prompts that may have
/// run.
#[derive(Debug)]
pub struct MemoryStore {
    max_sessions: usize,
    max_events: usize,
    /// Guards everything; held for one operation and never across an await. `None` once the store is closed.
    state: Mutex<Option<State>>,
}

#[derive(Debug, Default)]
struct State {
    sessions: HashMap<String, Stored>,
    incarnations: HashMap<String, u64>,
    /// By owner and endpoint.
    scanned: HashMap<(String, String), StreamPosition>,
}

#[derive(Debug)]
struct Stored {
    record: SessionRecord,
    events: VecDeque<StoredEvent>,
    /// The indexes of open events.
    open: HashSet<u64>,
    /// The indexes of the prompts that may have run.
    prompts: VecDeque<u64>,
    /// The indexes of the events, and of some that were dropped: a writer may repeat these, too.
    indexes: HashMap<EventKey, u64>,
    /// The keys of the last events that were dropped.
    dropped: VecDeque<EventKey>,
}

impl Stored {
    fn new(record: SessionRecord, events: Vec<NewEvent>, max_events: usize) -> Self {
        let mut stored = Self {
            record,
            events: VecDeque::new(),
            open: HashSet::new(),
            prompts: VecDeque::new(),
            indexes: HashMap::new(),
            dropped: VecDeque::new(),
        };
        stored.record.last_index = 0;
        for event in events {
            stored.push(event, 0, max_events);
        }
        stored.open.clear();
        stored
    }

    /// Stores an event unless its key is already stored. Drops an event if there are too many.
    fn push(&mut self, event: NewEvent, epoch: u64, max_events: usize) -> u64 {
        if let Some(index) = self.indexes.get(&event.key) {
            return *index;
        }
        self.record.last_index += 1;
        let index = self.record.last_index;
        self.record.last_active_at = self.record.last_active_at.max(event.recorded_at);
        if let Some(closes) = event.closes() {
            let never_ran =
                event.kind == StoredEventKind::TurnEnded && !TurnEnd::from_payload(&event.payload).executed;
            for stored in self.events.iter().filter(|stored| closes.matches(stored)) {
                self.open.remove(&stored.index);
                if never_ran {
                    self.prompts.retain(|prompt| *prompt != stored.index);
                }
            }
        }
        if event.is_open() {
            self.open.insert(index);
        }
        if event.kind == StoredEventKind::Prompt {
            self.prompts.push_back(index);
        }
        if self.events.len() >= max_events {
            self.drop_event();
        }
        if self.dropped.len() > max_events {
            let key = self.dropped.pop_front();
            key.and_then(|key| self.indexes.remove(&key));
        }
        self.indexes.insert(event.key.clone(), index);
        self.events.push_back(event.stored(&self.record.id, index, epoch));
        index
    }
}

impl Stored {
    /// Drops the oldest event that the session does not need to continue. If it needs all of them, drops the oldest
    /// agent request or response, or the oldest event.
    fn drop_event(&mut self) {
        let latest: Vec<u64> = self.prompts.iter().rev().take(PROMPTS).copied().collect();
        let is_needed =
            |event: &StoredEvent| self.open.contains(&event.index) || latest.contains(&event.index);
        let unneeded = self.events.iter().position(|event| !is_needed(event));
        let request = || self.events.iter().position(|event| opens_request(&event.kind));
        let Some(dropped) = self.events.remove(unneeded.or_else(request).unwrap_or_default()) else { return };
        self.open.remove(&dropped.index);
        self.prompts.retain(|prompt| *prompt != dropped.index);
        self.dropped.push_back(dropped.key);
    }

    fn has_open_turn(&self) -> bool {
        let is_open = |event: &StoredEvent| self.open.contains(&event.index);
        self.events.iter().any(|event| event.kind == StoredEventKind::Prompt && is_open(event))
    }
}

impl State {
    fn session(&mut self, id: &str) -> Result<&mut Stored, StoreError> {
        self.sessions.get_mut(id).ok_or_else(|| StoreError::not_found(id))
    }

    fn scanned_to(&self, owner: Option<&String>, endpoint: Option<&String>) -> Option<StreamPosition> {
        self.scanned.get(&(owner?.clone(), endpoint?.clone())).copied()
    }

    fn advance(&mut self, scanned_to: ScannedTo) {
        let ScannedTo { owner, endpoint, position } = scanned_to;
        let stored = self.scanned.entry((owner, endpoint)).or_insert(position);
        *stored = stored.later(position);
    }

    /// Ends the ownership of a session with `end`, which receives the owner's read position.
    fn end_ownership(
        &mut self,
        id: &str,
        end: impl FnOnce(&mut SessionRecord, Option<StreamPosition>) -> Result<(), StoreError>,
    ) -> Result<SessionRecord, StoreError> {
        let stored = self.session(id)?;
        let (owner, endpoint) = (stored.record.owner.clone(), stored.record.endpoint.clone());
        // The scanned events may include the end of an open turn, which is not stored.
        let has_open_turn = stored.has_open_turn();
        let scanned_to = self.scanned_to(owner.as_ref(), endpoint.as_ref()).filter(|_| !has_open_turn);
        let record = &mut self.session(id)?.record;
        end(record, scanned_to)?;
        let record = record.clone();
        self.forget_scanned(owner, endpoint);
        Ok(record)
    }

    /// Removes the read position of a process on an endpoint if it owns no session there.
    fn forget_scanned(&mut self, owner: Option<String>, endpoint: Option<String>) {
        let still_owns = |stored: &Stored| stored.record.owner == owner && stored.record.endpoint == endpoint;
        if !self.sessions.values().any(still_owns)
            && let (Some(owner), Some(endpoint)) = (owner, endpoint)
        {
            self.scanned.remove(&(owner, endpoint));
        }
    }

    fn delete(&mut self, id: &str) -> bool {
        let Some(deleted) = self.sessions.remove(id) else { return false };
        self.forget_scanned(deleted.record.owner, deleted.record.endpoint);
        true
    }

    /// Ends the binding of another session to the agent's session of this one.
    fn end_older_binding(&mut self, record: &SessionRecord) {
        if record.endpoint.is_none() || record.agent_session.is_none() {
            return;
        }
        let others = self.sessions.values_mut().map(|stored| &mut stored.record);
        let bound = others.filter(|other| {
            (&other.endpoint, &other.agent_session) == (&record.endpoint, &record.agent_session)
                && other.id != record.id
        });
        bound.for_each(SessionRecord::unbind);
    }

    fn append(&mut self, append: Append, max_events: usize) -> Result<Appended, StoreError> {
        let stored = self.session(&append.session_id)?;
        append.admit(stored.record.fence(), stored.record.status)?;
        let (mut patched, before) = (None, (stored.record.owner.clone(), stored.record.endpoint.clone()));
        if !append.patch.is_empty() {
            let mut record = stored.record.clone();
            append.patch.apply(&mut record)?;
            stored.record = record;
        }
        stored.record.position = StreamPosition::later_of(stored.record.position, append.position);
        let epoch = append.fence.map_or(0, |fence| fence.epoch);
        let (events, last_index) = (append.events.into_iter(), stored.record.last_index);
        let indexes = events.map(|event| stored.push(event, epoch, max_events)).collect();
        let added = (stored.record.last_index - last_index) as usize;
        if !append.patch.is_empty() {
            let record = stored.record.clone();
            if matches!(append.patch.agent_session, Change::Set(_)) {
                self.end_older_binding(&record);
            }
            patched = Some(record);
        }
        if let Some(scanned_to) = append.scanned_to {
            self.advance(scanned_to);
        }
        if patched.as_ref().is_some_and(|patched| patched.owner != before.0) {
            self.forget_scanned(before.0, before.1);
        }
        Ok(Appended::new(indexes, added, patched))
    }
}

impl MemoryStore {
    /// Creates a store for 1,024 sessions with 500 events each.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bounds(MAX_SESSIONS, MAX_EVENTS)
    }

    /// Creates a store for this many sessions with this many events each. Both limits are at least one.
    #[must_use]
    pub fn with_bounds(max_sessions: usize, max_events: usize) -> Self {
        let state = Mutex::new(Some(State::default()));
        Self { max_sessions: max_sessions.max(1), max_events: max_events.max(1), state }
    }

    fn with<'a, T: Send + 'a>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> StoreFuture<'a, T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = state.as_mut().ok_or(StoreError::Closed).and_then(act);
        Box::pin(std::future::ready(result))
    }

    /// Drops the oldest session if there are too many, but not the one that was just created.
    fn drop_oldest(&self, sessions: &mut HashMap<String, Stored>, created: &str) {
        while sessions.len() > self.max_sessions {
            let others = sessions.values().map(|stored| &stored.record).filter(|other| other.id != created);
            let oldest = others.min_by_key(|other| (other.created_at, other.id.clone()));
            let Some(oldest) = oldest.map(|oldest| oldest.id.clone()) else { break };
            sessions.remove(&oldest);
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl SessionStore for MemoryStore {
    fn create(&self, record: SessionRecord, events: Vec<NewEvent>) -> StoreFuture<'_, SessionRecord> {
        self.with(|state| {
            if state.sessions.contains_key(&record.id) {
                return Err(StoreError::Exists { id: record.id });
            }
            let record = record.created(&events)?;
            state.sessions.insert(record.id.clone(), Stored::new(record.clone(), events, self.max_events));
            state.end_older_binding(&record);
            self.drop_oldest(&mut state.sessions, &record.id);
            Ok(record)
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> StoreFuture<'a, Option<SessionRecord>> {
        self.with(|state| Ok(state.sessions.get(id).map(|stored| stored.record.clone())))
    }

    fn append(&self, append: Append) -> StoreFuture<'_, Appended> {
        self.with(|state| append.check().and_then(|()| state.append(append, self.max_events)))
    }

    fn acquire<'a>(&'a self, id: &'a str, acquire: Acquire) -> StoreFuture<'a, SessionRecord> {
        self.with(|state| state.end_ownership(id, |record, scanned_to| acquire.apply(record, scanned_to)))
    }

    fn release<'a>(&'a self, id: &'a str, fence: Fence) -> StoreFuture<'a, SessionRecord> {
        self.with(|state| state.end_ownership(id, |record, scanned_to| fence.release(record, scanned_to)))
    }

    fn open<'a>(&'a self, id: &'a str) -> StoreFuture<'a, OpenEvents> {
        self.with(|state| {
            let Some(stored) = state.sessions.get(id) else { return Ok(OpenEvents::default()) };
            let open = stored.events.iter().filter(|event| stored.open.contains(&event.index));
            Ok(OpenEvents::of(open.cloned()))
        })
    }

    fn events<'a>(&'a self, query: &'a EventQuery) -> StoreFuture<'a, EventPage> {
        self.with(|state| {
            let size = query.page_size();
            let Some(stored) = state.sessions.get(&query.session_id) else {
                return Ok(EventPage::of(Vec::new(), size));
            };
            let matching = stored.events.iter().filter(|event| query.matches(event));
            let found: Vec<&StoredEvent> = match query.order {
                EventOrder::OldestFirst => matching.take(size + 1).collect(),
                EventOrder::NewestFirst => matching.rev().take(size + 1).collect(),
            };
            // What is stored has been measured before.
            let bytes = |event: &&StoredEvent| check_value("a payload", &event.payload).unwrap_or_default();
            let fitting = match query.max_bytes {
                Some(_) => query.fitting(found.iter().map(bytes)),
                None => size,
            };
            let is_last = found.len() <= fitting;
            let events: Vec<_> = found.into_iter().take(fitting).cloned().collect();
            let next = events.last().filter(|_| !is_last).map(|event| event.index);
            Ok(EventPage { events, next })
        })
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, RecordPage> {
        self.with(|state| {
            query.check()?;
            let records = state.sessions.values().map(|stored| &stored.record);
            let matching = records.filter(|record| query.matches(record));
            let ordered: BTreeMap<_, _> =
                matching.map(|record| ((query.order_time(record), record.id.as_str()), record)).collect();
            let cursor = query.cursor.as_ref().map(|cursor| (cursor.at, cursor.id.as_str()));
            let behind = cursor.map_or(Bound::Unbounded, Bound::Excluded);
            let size = query.page_size() + 1;
            let found = if query.inactive_before.is_some() {
                let found = ordered.range((behind, Bound::Unbounded));
                found.take(size).map(|(_, record)| (*record).clone()).collect()
            } else {
                let found = ordered.range((Bound::Unbounded, behind)).rev();
                found.take(size).map(|(_, record)| (*record).clone()).collect()
            };
            Ok(RecordPage::of(found, query))
        })
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> StoreFuture<'a, u64> {
        self.with(|state| {
            let records = state.sessions.values().map(|stored| &stored.record);
            Ok(records.filter(|record| query.matches(record)).count() as u64)
        })
    }

    fn suspend(&self, which: Suspend, now: Timestamp) -> StoreFuture<'_, u64> {
        self.with(|state| {
            which.check(now)?;
            let records = state.sessions.values_mut().map(|stored| &mut stored.record);
            let active = records.filter(|record| {
                let is_meant = match &which {
                    Suspend::Own(owner) => record.owner.as_ref() == Some(owner),
                    Suspend::All => true,
                };
                is_meant && record.status == SessionStatus::Active
            });
            let suspend = |record: &mut SessionRecord| {
                record.status = SessionStatus::Suspended;
                record.last_active_at = record.last_active_at.max(now);
                record.revision += 1;
            };
            Ok(active.map(suspend).count() as u64)
        })
    }

    fn delete<'a>(&'a self, id: &'a str) -> StoreFuture<'a, bool> {
        self.with(|state| Ok(state.delete(id)))
    }

    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> StoreFuture<'a, bool> {
        self.with(|state| {
            let is_unchanged = state.sessions.get(&record.id).is_some_and(|stored| {
                let version =
                    |record: &SessionRecord| (record.created_at, record.revision, record.last_index);
                version(&stored.record) == version(record)
            });
            Ok(is_unchanged && state.delete(&record.id))
        })
    }

    fn incarnation<'a>(&'a self, endpoint: &'a str) -> StoreFuture<'a, u64> {
        self.with(|state| Ok(state.incarnations.get(endpoint).copied().unwrap_or(1)))
    }

    fn raise_incarnation<'a>(&'a self, endpoint: &'a str, from: u64) -> StoreFuture<'a, u64> {
        self.with(|state| {
            check_key("an endpoint", endpoint)?;
            let incarnation = state.incarnations.entry(endpoint.to_owned()).or_insert(1);
            *incarnation += u64::from(*incarnation == from);
            Ok(*incarnation)
        })
    }

    fn scanned_to<'a>(
        &'a self,
        owner: &'a str,
        endpoint: &'a str,
    ) -> StoreFuture<'a, Option<StreamPosition>> {
        self.with(|state| Ok(state.scanned_to(Some(&owner.to_owned()), Some(&endpoint.to_owned()))))
    }

    fn advance(&self, scanned_to: ScannedTo) -> StoreFuture<'_, ()> {
        self.with(|state| scanned_to.check().map(|()| state.advance(scanned_to)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(std::future::ready(()))
    }
}
