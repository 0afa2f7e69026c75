//! What both databases have in common: their rows, the shape of their queries, and what their errors mean.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::json;
use sqlx::error::DatabaseError;

use super::json::read;
use super::{
    Cursor, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, StoreError, StoredEvent,
    StoredEventKind,
};
use crate::session::Timestamp;
use crate::sessions::SessionStatus;

/// The columns of a session, in the order of [`SessionRow`].
pub(super) const COLUMNS: &str = "id, status, created_at, last_active, last_index, revision, document";

/// One session as it is read. A document is a text, or bytes where the database does not see to it that texts are.
pub(super) type SessionRow<T> = (String, String, i64, i64, i64, i64, T);

/// One event as it is read, in the order of `position, id, recorded_at, kind, payload`.
pub(super) type EventRow<T> = (i64, String, i64, String, T);

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

/// The record of a new session in which this has happened.
pub(super) fn new_record(mut record: SessionRecord, events: &[NewEvent]) -> SessionRecord {
    (record.revision, record.last_index) = (1, events.len() as u64);
    let moments = events.iter().map(|event| event.recorded_at);
    record.last_active = moments.fold(record.last_active, Timestamp::max);
    record
}

pub(super) fn record<T: Into<Vec<u8>>>(row: SessionRow<T>) -> Result<SessionRecord, StoreError> {
    let (id, status, created_at, last_active, last_index, revision, document) = row;
    let unreadable =
        |source: Arc<dyn std::error::Error + Send + Sync>| StoreError::Unreadable { id: id.clone(), source };
    let document = String::from_utf8(document.into()).map_err(|error| unreadable(Arc::new(error)))?;
    let mut record: SessionRecord = read(&document).map_err(|error| unreadable(Arc::new(error)))?;
    record.status = SessionStatus::from_stored(&status).map_err(|error| unreadable(Arc::new(error)))?;
    record.id = id;
    record.created_at = moment(created_at);
    record.last_active = moment(last_active);
    record.last_index = unsigned(last_index);
    record.revision = unsigned(revision);
    Ok(record)
}

/// The page of these rows, which are one more than the page takes when there is a next one. `at` gives the moment by
/// which they are ordered.
pub(super) fn page<T: Into<Vec<u8>>>(
    mut rows: Vec<SessionRow<T>>,
    size: usize,
    at: fn(&SessionRow<T>) -> i64,
) -> RecordPage {
    let more = rows.len() > size;
    rows.truncate(size);
    let last = rows.last().filter(|_| more);
    let next = last.map(|row| Cursor::behind(moment(at(row)), &row.0));
    let mut page = RecordPage { records: Vec::new(), unreadable: Vec::new(), next };
    for row in rows {
        let id = row.0.clone();
        match record(row) {
            Ok(record) => page.records.push(record),
            // One that is spoilt must not hide the others.
            Err(error) => {
                tracing::warn!(session = id, %error, "a session is left out of a list");
                page.unreadable.push(id);
            }
        }
    }
    page
}

/// An event as it is kept. One that is spoilt must not hide those around it, so it comes as what is there of it.
pub(super) fn event<T: Into<Vec<u8>>>(session_id: &str, row: EventRow<T>) -> StoredEvent {
    let (position, id, recorded_at, kind, payload) = row;
    let payload = payload.into();
    let (kind, payload) = match std::str::from_utf8(&payload).map(read) {
        Ok(Ok(payload)) => (kind.into(), payload),
        _ => {
            let text = String::from_utf8_lossy(&payload);
            (StoredEventKind::Unreadable, json!({ "kind": kind, "text": text }))
        }
    };
    NewEvent::new(id, session_id, moment(recorded_at), kind, payload).at(unsigned(position))
}

pub(super) fn payload(event: &NewEvent) -> Result<String, StoreError> {
    serde_json::to_string(&event.payload).map_err(|error| StoreError::Invalid(error.to_string()))
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

/// Whether the database could do the same a little later: it is locked, slow, starting, stopping, crowded or full.
fn is_passing(error: &dyn DatabaseError) -> bool {
    const BUSY: u32 = 5;
    const LOCKED: u32 = 6;
    const NO_MEMORY: u32 = 7;
    const IO: u32 = 10;
    const FULL: u32 = 13;
    let Some(code) = error.code() else { return false };
    if let Some(number) = sqlite_code(error) {
        return matches!(number & 0xff, BUSY | LOCKED | NO_MEMORY | IO | FULL);
    }
    // The classes are of connections, of resources, and of an operator, or a time limit, that steps in.
    let class = ["08", "53", "57"].into_iter().any(|class| code.starts_with(class));
    class || matches!(&*code, "40001" | "40P01" | "55P03" | "25P03")
}

/// The number of a failure of SQLite, with its extension; `None` for one of another database.
pub(super) fn sqlite_code(error: &dyn DatabaseError) -> Option<u32> {
    // The codes of PostgreSQL have five characters.
    error.code().filter(|code| code.len() < 5).and_then(|code| code.parse().ok())
}
