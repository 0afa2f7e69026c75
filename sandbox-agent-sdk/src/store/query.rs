//! How sessions and events are found, page by page.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::limits::{DEFAULT_PAGE, check_key, page_size};
use super::{SessionRecord, StoreError, StoredEvent};
use crate::session::Timestamp;
use crate::sessions::{ArchivedSessions, SessionStatus};

/// Where the next page of sessions begins. It stays good whatever is written meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    pub(super) at: Timestamp,
    pub(super) id: String,
}

impl Cursor {
    /// Behind the session of this id, at this place in the order of the list. For those who write a store.
    #[must_use]
    pub fn behind(at: Timestamp, id: impl Into<String>) -> Self {
        Self { at, id: id.into() }
    }

    /// The moment by which the list is ordered.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The session it is behind.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Refuses a cursor behind an id that no session has: not every store could look for it.
    fn check(&self) -> Result<(), StoreError> {
        check_key("a cursor", &self.id).map_err(|_| {
            let cursor = self.to_string().chars().take(64).collect();
            StoreError::BadCursor { cursor }
        })
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at.as_millis(), self.id)
    }
}

impl FromStr for Cursor {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let bad = || StoreError::BadCursor { cursor: text.chars().take(64).collect() };
        let (at, id) = text.split_once('.').ok_or_else(bad)?;
        // A sign or leading zeros are read as well by the standard library, but were never written.
        let millis: u64 = at.parse().ok().filter(|millis: &u64| millis.to_string() == at).ok_or_else(bad)?;
        let cursor = Self { at: Timestamp::from_millis(millis), id: id.to_owned() };
        cursor.check().map(|()| cursor)
    }
}

impl TryFrom<String> for Cursor {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        text.parse()
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> Self {
        cursor.to_string()
    }
}

/// Which sessions are listed, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct RecordQuery {
    /// In which status they are.
    pub statuses: Vec<SessionStatus>,
    /// Whose sessions they are; `None` for every agent's.
    pub agent: Option<String>,
    /// Where to begin; `None` for the newest.
    pub cursor: Option<Cursor>,
    /// How many at most; [`MAX_PAGE`](super::MAX_PAGE) at most.
    pub limit: usize,
}

impl RecordQuery {
    /// All of them, whatever their status.
    pub fn all() -> Self {
        Self { statuses: SessionStatus::ALL.to_vec(), agent: None, cursor: None, limit: DEFAULT_PAGE }
    }

    /// Those that a list shows.
    pub fn listed(archived: ArchivedSessions) -> Self {
        let shown = SessionStatus::ALL.iter().copied().filter(|status| status.is_listed(archived));
        Self { statuses: shown.collect(), ..Self::all() }
    }

    /// Those that a badge counts.
    pub fn counted() -> Self {
        let counted = SessionStatus::ALL.iter().copied().filter(|status| status.is_counted());
        Self { statuses: counted.collect(), ..Self::all() }
    }

    /// Only those in one of these states.
    pub fn statuses(mut self, statuses: impl IntoIterator<Item = SessionStatus>) -> Self {
        self.statuses = statuses.into_iter().collect();
        self
    }

    /// Only those of this agent.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Those behind this cursor.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// At most so many.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Each status once, in the order of their definition.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(super) fn distinct_statuses(&self) -> Vec<SessionStatus> {
        SessionStatus::ALL.iter().copied().filter(|status| self.statuses.contains(status)).collect()
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    /// Whether no session can fit, whatever is stored.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(super) fn is_vain(&self) -> bool {
        self.statuses.is_empty()
            || self.agent.as_ref().is_some_and(|agent| check_key("the name of an agent", agent).is_err())
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.cursor.as_ref().map_or(Ok(()), Cursor::check)
    }
}

/// Those that a list shows, without the archived ones.
impl Default for RecordQuery {
    fn default() -> Self {
        Self::listed(ArchivedSessions::Hidden)
    }
}

/// Which sessions nothing has happened in for a while, the longest first.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct InactiveQuery {
    /// In which status they are.
    pub status: SessionStatus,
    /// Since when nothing has happened: their last activity is before this.
    pub before: Timestamp,
    /// Where to begin.
    pub cursor: Option<Cursor>,
    /// How many at most.
    pub limit: usize,
}

impl InactiveQuery {
    /// Those of a status in which nothing has happened since this moment.
    pub fn new(status: SessionStatus, before: Timestamp) -> Self {
        Self { status, before, cursor: None, limit: DEFAULT_PAGE }
    }

    /// Those behind this cursor.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// At most so many.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }

    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.cursor.as_ref().map_or(Ok(()), Cursor::check)
    }
}

/// Which events of a session are read, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a query does nothing until it is given to a store"]
#[non_exhaustive]
pub struct EventQuery {
    /// The session.
    pub session_id: String,
    /// Only events behind this index.
    pub after: u64,
    /// How many at most.
    pub limit: usize,
}

impl EventQuery {
    /// The events of a session from the first one on.
    pub fn of(session_id: impl Into<String>) -> Self {
        Self { session_id: session_id.into(), after: 0, limit: DEFAULT_PAGE }
    }

    /// Those behind this index.
    pub fn after(mut self, index: u64) -> Self {
        self.after = index;
        self
    }

    /// At most so many.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    pub(super) fn page_size(&self) -> usize {
        page_size(self.limit)
    }
}

/// A page of sessions.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordPage {
    /// The sessions.
    pub records: Vec<SessionRecord>,
    /// Sessions that belong to the page and cannot be read. [`get`](super::SessionStore::get) says what is wrong with
    /// each; they can be deleted.
    pub unreadable: Vec<String>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<Cursor>,
}

impl RecordPage {
    /// A page of what was found, which is one more than the page takes when there is a next one.
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
    /// A page of what was found, which is one more than the page takes when there is a next one.
    #[must_use]
    pub fn of(mut found: Vec<StoredEvent>, size: usize) -> Self {
        let more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| more).map(|event| event.index);
        Self { events: found, next }
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;
    use crate::session::Timestamp;
    use crate::sessions::StoreError;

    #[test]
    fn a_cursor_survives_its_text_and_nothing_else_is_one() {
        for id in ["a", "1.2.3", "'; --", "\u{1F600}", "x y"] {
            let cursor = Cursor::behind(Timestamp::from_millis(u64::MAX), id);
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        let long = format!("1.{}", "x".repeat(1 << 20));
        for text in [
            "",
            ".",
            "1",
            "1.",
            ".a",
            "-1.a",
            "+1.a",
            "01.a",
            "1 .a",
            "18446744073709551616.a",
            "1.a\0",
            &long,
        ] {
            let error = text.parse::<Cursor>().unwrap_err();
            // It is shown, though not all of it.
            assert!(matches!(&error, StoreError::BadCursor { cursor } if cursor.len() <= 64), "{error:?}");
        }
    }
}
