//! Queries for sessions and events, page by page.

use super::limits::{DEFAULT_PAGE, page_size};
use super::{Cursor, SessionRecord, StoreError, StoredEvent, StoredEventKind};
use crate::session::Timestamp;
use crate::sessions::status::{ArchivedSessions, SessionStatus};

/// Selects sessions, newest first.
///
/// With [`inactive_before`](Self::inactive_before), it selects inactive sessions, longest inactive first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is passed to a store"]
#[non_exhaustive]
pub struct RecordQuery {
    /// Only sessions with one of these statuses.
    pub statuses: Vec<SessionStatus>,
    /// Only sessions of this agent.
    pub agent: Option<String>,
    /// Only sessions with this key of the application.
    pub user_key: Option<String>,
    /// Only sessions on this endpoint of a server.
    pub endpoint: Option<String>,
    /// Only sessions that this process owns.
    pub owner: Option<String>,
    /// Only sessions that are bound to the agent's session with this id.
    pub agent_session_id: Option<String>,
    /// Only sessions whose last activity is before this time. Then the longest inactive session comes first.
    pub inactive_before: Option<Timestamp>,
    /// Where the page starts; `None` for the first session.
    pub cursor: Option<Cursor>,
    /// The maximum number of sessions on the page, up to [`MAX_PAGE`](super::MAX_PAGE).
    pub limit: usize,
}

impl RecordQuery {
    /// Selects all sessions.
    pub fn all() -> Self {
        Self {
            statuses: SessionStatus::ALL.to_vec(),
            agent: None,
            user_key: None,
            endpoint: None,
            owner: None,
            agent_session_id: None,
            inactive_before: None,
            cursor: None,
            limit: DEFAULT_PAGE,
        }
    }

    /// Selects the sessions that a list shows.
    pub fn listed(archived: ArchivedSessions) -> Self {
        let shown = SessionStatus::ALL.iter().copied().filter(|status| status.is_listed(archived));
        Self { statuses: shown.collect(), ..Self::all() }
    }

    /// Selects the sessions that a badge counts.
    pub fn counted() -> Self {
        let counted = SessionStatus::ALL.iter().copied().filter(|status| status.is_counted());
        Self { statuses: counted.collect(), ..Self::all() }
    }

    /// Returns whether a record matches the filters. Ignores the cursor. For implementors of stores.
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
            && self.inactive_before.is_none_or(|before| record.last_active_at < before)
    }

    /// Returns the time by which a record is ordered. For implementors of stores.
    #[must_use]
    pub fn order_time(&self, record: &SessionRecord) -> Timestamp {
        if self.inactive_before.is_some() { record.last_active_at } else { record.created_at }
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
    /// The name of each status once, in the order of their definition.
    pub(super) fn distinct_statuses(&self) -> impl Iterator<Item = &'static str> {
        let wanted = SessionStatus::ALL.iter().filter(move |status| self.statuses.contains(status));
        wanted.map(|status| status.as_str())
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    /// Whether no session can ever match.
    pub(super) fn matches_nothing(&self) -> bool {
        self.statuses.is_empty()
            || self.filters().any(|(column, wanted)| super::limits::check_key(column, wanted).is_err())
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.cursor.as_ref().map_or(Ok(()), Cursor::check)
    }
}

setters! { RecordQuery:
    /// Selects only sessions with one of these statuses.
    statuses(statuses: impl IntoIterator<Item = SessionStatus>) => statuses = statuses.into_iter().collect();
    /// Selects only sessions of this agent.
    agent(agent: impl Into<String>) => agent = Some(agent.into());
    /// Selects only sessions with this key of the application.
    user_key(key: impl Into<String>) => user_key = Some(key.into());
    /// Selects only sessions on this endpoint of a server.
    endpoint(endpoint: impl Into<String>) => endpoint = Some(endpoint.into());
    /// Selects only sessions that this process owns.
    owner(owner: impl Into<String>) => owner = Some(owner.into());
    /// Selects only sessions that are bound to the agent's session with this id.
    agent_session_id(id: impl Into<String>) => agent_session_id = Some(id.into());
    /// Selects only sessions whose last activity is before this time, longest inactive first.
    inactive_before(time: Timestamp) => inactive_before = Some(time);
    /// Starts the page after this cursor.
    after(cursor: Cursor) => cursor = Some(cursor);
    /// Sets the maximum number of sessions on the page.
    limit(limit: usize) => limit = limit;
}

/// Sessions that a list shows, without the archived ones.
impl Default for RecordQuery {
    fn default() -> Self {
        Self::listed(ArchivedSessions::Hidden)
    }
}

/// The order of events on a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum EventOrder {
    /// Oldest events first.
    #[default]
    OldestFirst,
    /// Newest events first.
    NewestFirst,
}

/// Selects events of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is passed to a store"]
#[non_exhaustive]
pub struct EventQuery {
    /// The id of the session.
    pub session_id: String,
    /// The order of the events.
    pub order: EventOrder,
    /// Only events after this index, in the order of the query; `None` for all.
    pub after: Option<u64>,
    /// Only events of these kinds; all kinds if empty.
    pub kinds: Vec<StoredEventKind>,
    /// The maximum number of events on the page.
    pub limit: usize,
    /// The maximum size of the payloads on the page in bytes, approximately; `None` for no limit. A page has at least
    /// one event, however large it is.
    pub max_bytes: Option<usize>,
}

impl EventQuery {
    /// Selects all events of a session, oldest first.
    pub fn of(session_id: impl Into<String>) -> Self {
        let order = EventOrder::OldestFirst;
        let session_id = session_id.into();
        Self { session_id, order, after: None, kinds: Vec::new(), limit: DEFAULT_PAGE, max_bytes: None }
    }

    /// How many events the page has, if the events that match have payloads of these sizes.
    pub(super) fn fitting(&self, sizes: impl IntoIterator<Item = usize>) -> usize {
        let max_bytes = self.max_bytes.unwrap_or(usize::MAX);
        let sums = sizes.into_iter().take(self.page_size()).scan(0usize, |sum, size| {
            *sum = sum.saturating_add(size);
            Some(*sum)
        });
        sums.take_while(|sum| *sum <= max_bytes).count().max(1)
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    /// Returns whether an event matches the query. For implementors of stores.
    #[must_use]
    pub fn matches(&self, event: &StoredEvent) -> bool {
        let is_after = self.after.is_none_or(|after| match self.order {
            EventOrder::OldestFirst => event.index > after,
            EventOrder::NewestFirst => event.index < after,
        });
        is_after && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
    }
}

setters! { EventQuery:
    /// Selects the newest events first. The `next` of a page then leads to older events.
    newest_first() => order = EventOrder::NewestFirst;
    /// Selects only events after this index, in the order of the query.
    after(index: u64) => after = Some(index);
    /// Selects only events of these kinds.
    kinds(kinds: impl IntoIterator<Item = StoredEventKind>) => kinds = kinds.into_iter().collect();
    /// Sets the maximum number of events on the page.
    limit(limit: usize) => limit = limit;
    /// Sets the maximum size of the payloads on the page in bytes, approximately.
    max_bytes(bytes: usize) => max_bytes = Some(bytes);
}

/// A page of sessions.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordPage {
    /// The records of the sessions.
    pub records: Vec<SessionRecord>,
    /// The ids of sessions on the page whose records are damaged. [`get`](super::SessionStore::get) returns the error
    /// for each. They can be deleted.
    pub unreadable: Vec<String>,
    /// Where the next page starts; `None` on the last page.
    pub next: Option<Cursor>,
}

impl RecordPage {
    /// Creates a page of at most as many records as the query requests. Pass one more record if there is a next page.
    /// For implementors of stores.
    #[must_use]
    pub fn of(mut found: Vec<SessionRecord>, query: &RecordQuery) -> Self {
        let more = found.len() > query.page_size();
        found.truncate(query.page_size());
        let last = found.last().filter(|_| more);
        let next = last.map(|record| Cursor::after(query.order_time(record), &record.id));
        Self { records: found, unreadable: Vec::new(), next }
    }
}

/// A page of events.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EventPage {
    /// The events, in the order of the query.
    pub events: Vec<StoredEvent>,
    /// The index after which the next page starts; `None` on the last page.
    pub next: Option<u64>,
}

impl EventPage {
    /// Creates a page of at most `size` events from the found ones. Pass one more event than `size` if there is a
    /// next page. For implementors of stores.
    #[must_use]
    pub fn of(mut found: Vec<StoredEvent>, size: usize) -> Self {
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|event| event.index);
        Self { events: found, next }
    }
}
