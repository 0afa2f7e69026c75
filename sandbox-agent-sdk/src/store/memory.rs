//! A store that ends with the program.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;

use super::fence::check_epoch;
use super::limits::check_moment;
use super::record::check_import;
use super::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, SessionStore,
    StoreError, StoredEvent,
};
use crate::session::Timestamp;
use crate::sessions::SessionStatus;

/// How many sessions are kept unless another number is asked for.
const MAX_SESSIONS: usize = 1024;
/// How many events of each session are kept unless another number is asked for.
const MAX_EVENTS: usize = 500;

/// A store that ends with the program, within bounds: of too many sessions the oldest are forgotten, and of too many
/// events the oldest of their session.
#[derive(Debug)]
pub struct MemoryStore {
    max_sessions: usize,
    max_events: usize,
    /// Guards everything; held for one operation and never across an await. `None` once it is closed.
    state: Mutex<Option<HashMap<String, Kept>>>,
}

#[derive(Debug)]
struct Kept {
    record: SessionRecord,
    events: VecDeque<StoredEvent>,
    /// The indexes of these events, and of some that were forgotten, by their ids.
    indexes: HashMap<String, u64>,
    /// The ids of the last that were forgotten: whoever writes them again is to be told of their places, too.
    forgotten: VecDeque<String>,
}

impl Kept {
    fn new(record: SessionRecord) -> Self {
        Self { record, events: VecDeque::new(), indexes: HashMap::new(), forgotten: VecDeque::new() }
    }

    /// Puts an event at its place, the one it has if it is there already, and forgets the oldest of too many.
    fn push(&mut self, event: NewEvent, max_events: usize) -> u64 {
        if let Some(index) = self.indexes.get(&event.id) {
            return *index;
        }
        self.record.last_index += 1;
        let index = self.record.last_index;
        self.record.last_active = self.record.last_active.max(event.recorded_at);
        if self.events.len() == max_events {
            self.forgotten.extend(self.events.pop_front().map(|event| event.id));
        }
        if self.forgotten.len() > max_events {
            let id = self.forgotten.pop_front();
            id.and_then(|id| self.indexes.remove(&id));
        }
        self.indexes.insert(event.id.clone(), index);
        self.events.push_back(event.at(index));
        index
    }
}

impl MemoryStore {
    /// A store of 1024 sessions with 500 events each.
    #[must_use]
    pub fn new() -> Self {
        Self::with_bounds(MAX_SESSIONS, MAX_EVENTS)
    }

    /// A store of so many sessions with so many events each; at least one of both.
    #[must_use]
    pub fn with_bounds(max_sessions: usize, max_events: usize) -> Self {
        let state = Mutex::new(Some(HashMap::new()));
        Self { max_sessions: max_sessions.max(1), max_events: max_events.max(1), state }
    }

    fn with<T>(
        &self,
        act: impl FnOnce(&mut HashMap<String, Kept>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state: MutexGuard<'_, _> = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        act(state.as_mut().ok_or(StoreError::Closed)?)
    }

    /// Forgets the oldest of too many sessions. The one that was just made stays, even if it claims to be the oldest.
    fn forget(&self, sessions: &mut HashMap<String, Kept>, made: &str) {
        while sessions.len() > self.max_sessions {
            let others = sessions.values().map(|kept| &kept.record).filter(|other| other.id != made);
            let oldest = others.min_by_key(|other| (other.created_at, other.id.clone()));
            let Some(oldest) = oldest.map(|oldest| oldest.id.clone()) else { break };
            sessions.remove(&oldest);
        }
    }

    fn write(
        &self,
        sessions: &mut HashMap<String, Kept>,
        mut record: SessionRecord,
    ) -> Result<SessionRecord, StoreError> {
        let id = record.id.clone();
        match sessions.get_mut(&id) {
            Some(_) if record.revision == 0 => return Err(StoreError::Exists { id }),
            Some(kept) if kept.record.revision != record.revision => return Err(StoreError::Conflict { id }),
            Some(kept) => {
                record.revision += 1;
                record.last_index = kept.record.last_index;
                record.last_active = record.last_active.max(kept.record.last_active);
                record.created_at = kept.record.created_at;
                kept.record = record.clone();
            }
            None if record.revision != 0 => return Err(StoreError::NotFound { id }),
            None => {
                record.revision = 1;
                record.last_index = 0;
                sessions.insert(id.clone(), Kept::new(record.clone()));
                self.forget(sessions, &id);
            }
        }
        Ok(record)
    }

    fn write_events(
        &self,
        sessions: &mut HashMap<String, Kept>,
        events: Vec<NewEvent>,
    ) -> Result<Vec<u64>, StoreError> {
        for event in &events {
            let kept = sessions.get(&event.session_id);
            let kept = kept.filter(|kept| event.belongs_to(kept.record.created_at));
            let kept = kept.ok_or_else(|| StoreError::NotFound { id: event.session_id.clone() })?;
            check_epoch(event, kept.record.epoch)?;
        }
        let mut indexes = Vec::with_capacity(events.len());
        for event in events {
            let Some(kept) = sessions.get_mut(&event.session_id) else { continue };
            indexes.push(kept.push(event, self.max_events));
        }
        Ok(indexes)
    }

    fn write_all(
        &self,
        sessions: &mut HashMap<String, Kept>,
        mut record: SessionRecord,
        events: Vec<NewEvent>,
    ) -> Result<SessionRecord, StoreError> {
        if sessions.contains_key(&record.id) {
            return Err(StoreError::Exists { id: record.id });
        }
        (record.revision, record.last_index) = (1, 0);
        let mut kept = Kept::new(record);
        for event in events {
            kept.push(event, self.max_events);
        }
        let record = kept.record.clone();
        sessions.insert(record.id.clone(), kept);
        self.forget(sessions, &record.id);
        Ok(record)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

fn fits(query: &RecordQuery, record: &SessionRecord) -> bool {
    query.statuses.contains(&record.status) && query.agent.as_ref().is_none_or(|agent| *agent == record.agent)
}

impl SessionStore for MemoryStore {
    fn put(&self, record: SessionRecord) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        let written = record.check().and_then(|()| self.with(|sessions| self.write(sessions, record)));
        Box::pin(std::future::ready(written))
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<SessionRecord>, StoreError>> {
        let found = self.with(|sessions| Ok(sessions.get(id).map(|kept| kept.record.clone())));
        Box::pin(std::future::ready(found))
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        let page = self.with(|sessions| {
            query.check()?;
            let records = sessions.values().map(|kept| &kept.record).filter(|record| fits(query, record));
            let behind = |record: &&SessionRecord| {
                let place = (record.created_at, record.id.as_str());
                query.cursor.as_ref().is_none_or(|cursor| place < (cursor.at, cursor.id.as_str()))
            };
            let ordered: BTreeMap<_, _> =
                records.filter(behind).map(|record| ((record.created_at, &record.id), record)).collect();
            let found = ordered.into_values().rev().take(query.page_size() + 1).cloned().collect();
            Ok(RecordPage::of(found, query.page_size(), |record| record.created_at))
        });
        Box::pin(std::future::ready(page))
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        let count = self
            .with(|sessions| Ok(sessions.values().filter(|kept| fits(query, &kept.record)).count() as u64));
        Box::pin(std::future::ready(count))
    }

    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        let page = self.with(|sessions| {
            query.check()?;
            let records = sessions.values().map(|kept| &kept.record);
            let fitting = records.filter(|record| {
                let place = (record.last_active, record.id.as_str());
                record.status == query.status
                    && record.last_active < query.before
                    && query.cursor.as_ref().is_none_or(|cursor| place > (cursor.at, cursor.id.as_str()))
            });
            let ordered: BTreeMap<_, _> =
                fitting.map(|record| ((record.last_active, &record.id), record)).collect();
            let found = ordered.into_values().take(query.page_size() + 1).cloned().collect();
            Ok(RecordPage::of(found, query.page_size(), |record| record.last_active))
        });
        Box::pin(std::future::ready(page))
    }

    fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        let deleted = self.with(|sessions| Ok(sessions.remove(id).is_some()));
        Box::pin(std::future::ready(deleted))
    }

    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> BoxFuture<'a, Result<bool, StoreError>> {
        let deleted = self.with(|sessions| {
            let unchanged = |kept: &Kept| {
                (kept.record.revision, kept.record.last_index) == (record.revision, record.last_index)
            };
            Ok(sessions.get(&record.id).is_some_and(unchanged) && sessions.remove(&record.id).is_some())
        });
        Box::pin(std::future::ready(deleted))
    }

    fn suspend_active(&self, now: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        let suspended = check_moment("the moment of a shutdown", now).and_then(|()| {
            self.with(|sessions| {
                let records = sessions.values_mut().map(|kept| &mut kept.record);
                let active = records.filter(|record| record.status == SessionStatus::Active);
                let suspend = |record: &mut SessionRecord| {
                    record.status = SessionStatus::Suspended;
                    record.last_active = record.last_active.max(now);
                    record.revision += 1;
                };
                Ok(active.map(suspend).count() as u64)
            })
        });
        Box::pin(std::future::ready(suspended))
    }

    fn import(
        &self,
        record: SessionRecord,
        events: Vec<NewEvent>,
    ) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        let checked = check_import(&record, &events);
        let written = checked.and_then(|()| self.with(|sessions| self.write_all(sessions, record, events)));
        Box::pin(std::future::ready(written))
    }

    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<u64>, StoreError>> {
        let checked = events.iter().try_for_each(|event| event.check().map(drop));
        let written = checked.and_then(|()| self.with(|sessions| self.write_events(sessions, events)));
        Box::pin(std::future::ready(written))
    }

    fn events<'a>(&'a self, query: &'a EventQuery) -> BoxFuture<'a, Result<EventPage, StoreError>> {
        let page = self.with(|sessions| {
            let Some(kept) = sessions.get(&query.session_id) else {
                return Ok(EventPage::of(Vec::new(), query.page_size()));
            };
            let first = kept.events.partition_point(|event| event.index <= query.after);
            let found = kept.events.iter().skip(first).take(query.page_size() + 1).cloned().collect();
            Ok(EventPage::of(found, query.page_size()))
        });
        Box::pin(std::future::ready(page))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(std::future::ready(()))
    }
}

/// A look-up of a key that no store can keep finds nothing, so only writing checks keys.
#[cfg(test)]
mod tests {
    use super::{MemoryStore, SessionStore};
    use crate::session::Timestamp;
    use crate::sessions::StoreError;
    use crate::store::limits::check_key;
    use crate::store::{EventQuery, NewEvent, RecordQuery, SessionRecord};

    #[tokio::test]
    async fn of_too_many_sessions_and_events_the_oldest_are_forgotten() {
        let store = MemoryStore::with_bounds(2, 3);
        for (id, made) in [("a", 1), ("b", 2), ("c", 3)] {
            store.put(SessionRecord::new(id, "mock", Timestamp::from_millis(made))).await.unwrap();
        }
        let page = store.list(&RecordQuery::all()).await.unwrap();
        assert_eq!(page.records.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["c", "b"]);
        for n in 0..5 {
            let event = NewEvent::new(format!("e{n}"), "c", Timestamp::from_millis(9), "update", n);
            store.append(vec![event]).await.unwrap();
        }
        let kept = store.events(&EventQuery::of("c")).await.unwrap().events;
        assert_eq!(kept.iter().map(|event| event.index).collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(store.get("c").await.unwrap().unwrap().last_index, 5);
        // Whoever writes them again is told where they were, as long as they were forgotten only lately.
        let again = ["e1", "e4", "e0", "new"];
        let again = again.map(|id| NewEvent::new(id, "c", Timestamp::from_millis(9), "update", ()));
        assert_eq!(store.append(again.to_vec()).await.unwrap(), [2, 5, 1, 6]);
    }

    #[tokio::test]
    async fn a_store_that_is_not_told_otherwise_keeps_1024_sessions_with_500_events_each() {
        let store = MemoryStore::new();
        for n in 0..=1024u64 {
            store.put(SessionRecord::new(format!("s{n}"), "mock", Timestamp::from_millis(n))).await.unwrap();
        }
        assert_eq!(store.count(&RecordQuery::all()).await.unwrap(), 1024);
        assert_eq!(store.get("s0").await.unwrap(), None);
        let event = |n| NewEvent::new(format!("e{n}"), "s9", Timestamp::from_millis(n), "update", n);
        store.append((1..=501).map(event).collect()).await.unwrap();
        let kept = store.events(&EventQuery::of("s9").limit(1000)).await.unwrap().events;
        assert_eq!((kept.len(), kept[0].index, kept[499].index), (500, 2, 501));
    }

    #[test]
    fn a_key_that_some_store_cannot_keep_is_refused() {
        for key in ["", "a\0b", &"x".repeat(super::super::MAX_KEY_BYTES + 1)] {
            assert!(matches!(check_key("k", key), Err(StoreError::Invalid(_))), "{}", key.len());
        }
        assert!(check_key("k", "'; drop table sessions; --\n\u{1F600}").is_ok());
    }
}
