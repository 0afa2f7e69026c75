//! How sessions and events are found, page by page.

use super::limits::{DEFAULT_PAGE, page_size};
use super::{Cursor, SessionRecord, StoreError, StoredEvent, StoredEventKind};
use crate::session::Timestamp;
use crate::sessions::status::{ArchivedSessions, SessionStatus};

/// Which sessions are listed, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct RecordQuery {
    /// Their statuses.
    pub statuses: Vec<SessionStatus>,
    /// Only those of this agent.
    pub agent: Option<String>,
    /// Only those with this key of the application.
    pub user_key: Option<String>,
    /// Only those on this endpoint of a server.
    pub endpoint: Option<String>,
    /// Only those that this process owns.
    pub owner: Option<String>,
    /// Only those that are bound to the agent's session of this id.
    pub agent_session_id: Option<String>,
    /// Where to begin; `None` for the newest.
    pub cursor: Option<Cursor>,
    /// The most sessions of a page; at most [`MAX_PAGE`](super::MAX_PAGE).
    pub limit: usize,
}

impl RecordQuery {
    /// All sessions.
    pub fn all() -> Self {
        Self {
            statuses: SessionStatus::ALL.to_vec(),
            agent: None,
            user_key: None,
            endpoint: None,
            owner: None,
            agent_session_id: None,
            cursor: None,
            limit: DEFAULT_PAGE,
        }
    }

    /// Sessions that a list shows.
    pub fn listed(archived: ArchivedSessions) -> Self {
        let shown = SessionStatus::ALL.iter().copied().filter(|status| status.is_listed(archived));
        Self { statuses: shown.collect(), ..Self::all() }
    }

    /// Sessions that a badge counts.
    pub fn counted() -> Self {
        let counted = SessionStatus::ALL.iter().copied().filter(|status| status.is_counted());
        Self { statuses: counted.collect(), ..Self::all() }
    }

    /// Returns whether a record is among those that are listed, whatever the cursor. For implementors of stores.
    #[must_use]
    pub fn matches(&self, record: &SessionRecord) -> bool {
        let fits = |wanted: &Option<String>, found: Option<&String>| {
            wanted.as_ref().is_none_or(|wanted| found == Some(wanted))
        };
        self.statuses.contains(&record.status)
            && fits(&self.agent, Some(&record.agent))
            && fits(&self.user_key, record.user_key.as_ref())
            && fits(&self.endpoint, record.endpoint.as_ref())
            && fits(&self.owner, record.owner.as_ref())
            && fits(&self.agent_session_id, record.agent_session.as_ref().map(|session| &session.id))
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    /// The filters by column.
    pub(super) fn filters(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let filters = [
            ("agent", &self.agent),
            ("user_key", &self.user_key),
            ("endpoint", &self.endpoint),
            ("owner", &self.owner),
            ("agent_session_id", &self.agent_session_id),
        ];
        filters.into_iter().filter_map(|(column, wanted)| Some((column, wanted.as_deref()?)))
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    /// Each status once, in the order of their definition.
    pub(super) fn distinct_statuses(&self) -> Vec<SessionStatus> {
        SessionStatus::ALL.iter().copied().filter(|status| self.statuses.contains(status)).collect()
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    /// Whether no session can match, whatever is stored.
    pub(super) fn matches_nothing(&self) -> bool {
        self.statuses.is_empty()
            || self.filters().any(|(column, wanted)| super::limits::check_key(column, wanted).is_err())
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.cursor.as_ref().map_or(Ok(()), Cursor::check)
    }
}

setters! { RecordQuery:
    /// Only those of these statuses.
    statuses(statuses: impl IntoIterator<Item = SessionStatus>) => statuses = statuses.into_iter().collect();
    /// Only those of this agent.
    agent(agent: impl Into<String>) => agent = Some(agent.into());
    /// Only those with this key of the application.
    user_key(key: impl Into<String>) => user_key = Some(key.into());
    /// Only those on this endpoint of a server.
    endpoint(endpoint: impl Into<String>) => endpoint = Some(endpoint.into());
    /// Only those that this process owns.
    owner(owner: impl Into<String>) => owner = Some(owner.into());
    /// Only those that are bound to the agent's session of this id.
    agent_session_id(id: impl Into<String>) => agent_session_id = Some(id.into());
    /// Those behind this cursor.
    after(cursor: Cursor) => cursor = Some(cursor);
    /// At most so many.
    limit(limit: usize) => limit = limit;
}

/// Sessions that a list shows, without the archived ones.
impl Default for RecordQuery {
    fn default() -> Self {
        Self::listed(ArchivedSessions::Hidden)
    }
}

/// Which sessions had no activity for a while, the longest first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct InactiveQuery {
    /// Their status.
    pub status: SessionStatus,
    /// Their last activity is before this.
    pub before: Timestamp,
    /// Where to begin.
    pub cursor: Option<Cursor>,
    /// The most sessions of a page.
    pub limit: usize,
}

impl InactiveQuery {
    /// Sessions of a status whose last activity is before this time.
    pub fn new(status: SessionStatus, before: Timestamp) -> Self {
        Self { status, before, cursor: None, limit: DEFAULT_PAGE }
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.cursor.as_ref().map_or(Ok(()), Cursor::check)
    }
}

setters! { InactiveQuery:
    /// Those behind this cursor.
    after(cursor: Cursor) => cursor = Some(cursor);
    /// At most so many.
    limit(limit: usize) => limit = limit;
}

/// The order of events on a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EventOrder {
    /// The oldest first.
    #[default]
    OldestFirst,
    /// The newest first.
    NewestFirst,
}

/// Which events of a session are read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct EventQuery {
    /// The session.
    pub session_id: String,
    /// Their order.
    pub order: EventOrder,
    /// Only events behind this index, in the order of the query; `None` for all.
    pub after: Option<u64>,
    /// Only events of these kinds; all if it is empty.
    pub kinds: Vec<StoredEventKind>,
    /// The most events of a page.
    pub limit: usize,
}

impl EventQuery {
    /// The events of a session, the oldest first.
    pub fn of(session_id: impl Into<String>) -> Self {
        let order = EventOrder::OldestFirst;
        Self { session_id: session_id.into(), order, after: None, kinds: Vec::new(), limit: DEFAULT_PAGE }
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    /// Returns whether an event is among those that are read. For implementors of stores.
    #[must_use]
    pub fn matches(&self, event: &StoredEvent) -> bool {
        let is_behind = self.after.is_none_or(|after| match self.order {
            EventOrder::OldestFirst => event.index > after,
            EventOrder::NewestFirst => event.index < after,
        });
        is_behind && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
    }
}

setters! { EventQuery:
    /// The newest events first. A page's `next` then leads to older ones.
    newest_first() => order = EventOrder::NewestFirst;
    /// Those behind this index, in the order of the query.
    after(index: u64) => after = Some(index);
    /// Only those of these kinds.
    kinds(kinds: impl IntoIterator<Item = StoredEventKind>) => kinds = kinds.into_iter().collect();
    /// At most so many.
    limit(limit: usize) => limit = limit;
}

/// A page of sessions.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordPage {
    /// The sessions.
    pub records: Vec<SessionRecord>,
    /// Sessions of the page whose record is damaged. [`get`](super::SessionStore::get) says what is wrong with each;
    /// they can be deleted.
    pub unreadable: Vec<String>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<Cursor>,
}

impl RecordPage {
    /// A page of the found records, which are one more than the page takes if there is a next one. For implementors of
    /// stores.
    #[must_use]
    pub fn of(mut found: Vec<SessionRecord>, size: usize, at: fn(&SessionRecord) -> Timestamp) -> Self {
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last().filter(|_| more);
        let next = last.map(|record| Cursor::behind(at(record), &record.id));
        Self { records: found, unreadable: Vec::new(), next }
    }
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EventPage {
    /// The events.
    pub events: Vec<StoredEvent>,
    /// Behind which index the next page begins; `None` behind the last one.
    pub next: Option<u64>,
}

impl EventPage {
    /// A page of the found events, which are one more than the page takes if there is a next one. For implementors of
    /// stores.
    #[must_use]
    pub fn of(mut found: Vec<StoredEvent>, size: usize) -> Self {
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|event| event.index);
        Self { events: found, next }
    }
}
