//! What both databases have in common: their rows, the shape of their queries, and what their errors mean.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use sqlx::error::DatabaseError;

use super::{InactiveQuery, NewEvent, RecordQuery, SessionRecord, StoreError, StoredEvent};
use crate::{SessionStatus, Timestamp};

/// The columns of a session, in the order of [`SessionRow`].
pub(super) const COLUMNS: &str = "id, status, created_at, last_active, last_index, revision, document";

/// One session as it is read.
pub(super) type SessionRow = (String, String, i64, i64, i64, i64, String);

/// One event as it is read, in the order of `position, id, recorded_at, kind, payload`.
pub(super) type EventRow = (i64, String, i64, String, String);

/// The names that differ between the databases.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    /// What comes before the number of a parameter.
    pub(super) mark: char,
    /// The table of sessions.
    pub(super) sessions: &'static str,
}

/// A number of ours as databases keep it. Checked when it was written; a cursor of any size is behind everything.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of a database as it was written. None is negative unless somebody else wrote it.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn moment(millis: i64) -> Timestamp {
    Timestamp::from_millis(unsigned(millis))
}

/// The record as a text. What has a column of its own is read from there.
pub(super) fn document(record: &SessionRecord) -> Result<String, StoreError> {
    serde_json::to_string(record).map_err(|error| StoreError::Invalid(error.to_string()))
}

pub(super) fn record(row: SessionRow) -> Result<SessionRecord, StoreError> {
    let (id, status, created_at, last_active, last_index, revision, document) = row;
    let unreadable =
        |source: Arc<dyn std::error::Error + Send + Sync>| StoreError::Unreadable { id: id.clone(), source };
    let mut record: SessionRecord =
        serde_json::from_str(&document).map_err(|error| unreadable(Arc::new(error)))?;
    record.status = SessionStatus::from_stored(&status).map_err(|error| unreadable(Arc::new(error)))?;
    record.id = id;
    record.created_at = moment(created_at);
    record.last_active = moment(last_active);
    record.last_index = unsigned(last_index);
    record.revision = unsigned(revision);
    Ok(record)
}

pub(super) fn event(session_id: &str, row: EventRow) -> Result<StoredEvent, StoreError> {
    let (position, id, recorded_at, kind, payload) = row;
    let payload = serde_json::from_str(&payload)
        .map_err(|error| StoreError::Unreadable { id: session_id.to_owned(), source: Arc::new(error) })?;
    let event = NewEvent::new(id, session_id, moment(recorded_at), kind, ());
    Ok(NewEvent { payload, ..event }.at(unsigned(position)))
}

pub(super) fn payload(event: &NewEvent) -> Result<String, StoreError> {
    serde_json::to_string(&event.payload).map_err(|error| StoreError::Invalid(error.to_string()))
}

/// How many events each session of a batch gets and when its last one was, in the order in which the sessions are
/// locked: the same for every writer, so that no two wait for each other.
pub(super) fn by_session(events: &[NewEvent]) -> BTreeMap<&str, (u64, Timestamp)> {
    let mut sessions = BTreeMap::new();
    for event in events {
        let (count, latest) = sessions.entry(event.session_id.as_str()).or_insert((0, event.recorded_at));
        *count += 1;
        *latest = event.recorded_at.max(*latest);
    }
    sessions
}

/// The index of each event, by the index that comes before the first one of each session.
pub(super) fn place(events: &[NewEvent], mut before: BTreeMap<String, u64>) -> Vec<u64> {
    let place = |event: &NewEvent| {
        let index = before.entry(event.session_id.clone()).or_default();
        *index += 1;
        *index
    };
    events.iter().map(place).collect()
}

/// The query for a page of sessions.
///
/// The parameters are the limit, the moment and the id of the cursor, the agent, and each status. The page is put
/// together from one page of each status, so that each is a walk along an index, however many sessions there are.
pub(super) fn list_sql(dialect: Dialect, query: &RecordQuery) -> String {
    let Dialect { mark, sessions } = dialect;
    let mut sql = String::new();
    for number in 0..query.distinct_statuses().len() {
        if number > 0 {
            sql.push_str(" UNION ALL ");
        }
        // Writing to a string does not fail.
        let _ = write!(
            sql,
            "SELECT * FROM (SELECT {COLUMNS} FROM {sessions} WHERE status = {mark}{}",
            number + 5
        );
        if query.agent.is_some() {
            let _ = write!(sql, " AND agent = {mark}4");
        }
        if query.cursor.is_some() {
            let _ = write!(sql, " AND (created_at, id) < ({mark}2, {mark}3)");
        }
        let _ = write!(sql, " ORDER BY created_at DESC, id DESC LIMIT {mark}1) AS page{number}");
    }
    let _ = write!(sql, " ORDER BY created_at DESC, id DESC LIMIT {mark}1");
    sql
}

/// The query for the number of sessions; the parameters are the agent and each status.
pub(super) fn count_sql(dialect: Dialect, query: &RecordQuery) -> String {
    let Dialect { mark, sessions } = dialect;
    let mut sql = format!("SELECT COUNT(*) FROM {sessions} WHERE status IN (");
    for number in 0..query.distinct_statuses().len() {
        let comma = if number > 0 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(sql, "{comma}{mark}{}", number + 2);
    }
    sql.push(')');
    if query.agent.is_some() {
        let _ = write!(sql, " AND agent = {mark}1");
    }
    sql
}

/// The query for sessions without activity; the parameters are the limit, the status, the moment, and those of the
/// cursor.
pub(super) fn inactive_sql(dialect: Dialect, query: &InactiveQuery) -> String {
    let Dialect { mark, sessions } = dialect;
    let behind = match query.cursor {
        Some(_) => format!(" AND (last_active, id) > ({mark}4, {mark}5)"),
        None => String::new(),
    };
    format!(
        "SELECT {COLUMNS} FROM {sessions} WHERE status = {mark}2 AND last_active < {mark}3{behind} \
         ORDER BY last_active, id LIMIT {mark}1"
    )
}

/// What a failure of the database means.
pub(super) fn failure(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::PoolClosed => StoreError::Closed,
        sqlx::Error::PoolTimedOut | sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::WorkerCrashed => {
            StoreError::Unavailable(Arc::new(error))
        }
        sqlx::Error::Database(ref database) if is_passing(&**database) => {
            StoreError::Unavailable(Arc::new(error))
        }
        error => StoreError::database(error),
    }
}

/// Whether the database could do the same a little later: it is locked, starting, stopping, or crowded.
fn is_passing(error: &dyn DatabaseError) -> bool {
    let Some(code) = error.code() else { return false };
    if let Some(number) = sqlite_code(error) {
        return matches!(number & 0xff, 5 | 6);
    }
    code.starts_with("08") || code.starts_with("57P") || matches!(&*code, "53300" | "40001" | "40P01")
}

/// The number of a failure of SQLite, with its extension; `None` for one of another database.
pub(super) fn sqlite_code(error: &dyn DatabaseError) -> Option<u32> {
    // The codes of PostgreSQL have five characters.
    error.code().filter(|code| code.len() < 5).and_then(|code| code.parse().ok())
}
