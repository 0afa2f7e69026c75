//! Common parts of both databases: columns, values, and the meaning of errors.

use std::sync::Arc;

use sqlx::error::DatabaseError;

use super::{Append, NewEvent, StoreError};

/// The columns of a session that a patch may change, in the order of their parameters.
pub(super) const CHANGING: [&str; 16] = [
    "agent",
    "user_key",
    "status",
    "epoch",
    "owner",
    "caught_up",
    "endpoint",
    "agent_session_id",
    "incarnation",
    "position_incarnation",
    "position_offset",
    "position_fingerprint",
    "last_active_at",
    "last_index",
    "revision",
    "document",
];
/// The columns of an event, in the order of their parameters.
pub(super) const EVENT_COLUMNS: &str = "session_id, position, id, incarnation, stream_offset, recorded_at, kind, payload, \
                                        epoch, turn_id, rpc_id, is_open";

/// Why statements were not executed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The store rejects the operation; the earlier statements only read.
    Refused(StoreError),
    /// The database failed, and the transaction is rolled back.
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// An append whose payloads are written as text, outside of any transaction.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) append: Append,
    pub(super) payloads: Vec<String>,
}

impl Prepared {
    pub(super) fn new(append: Append) -> Result<Self, StoreError> {
        append.check()?;
        let payloads = payloads(&append.events)?;
        Ok(Self { append, payloads })
    }
}

pub(super) fn payloads(events: &[NewEvent]) -> Result<Vec<String>, StoreError> {
    events.iter().map(|event| to_json(&event.payload)).collect()
}

pub(super) fn to_json(value: &impl serde::Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Invalid(error.to_string()))
}

/// A number as databases store it. Stored numbers were checked; a larger number in a query is above every stored one.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of a database. None is negative unless another program wrote it.
pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

pub(super) fn insert_session_sql() -> String {
    let parameters: Vec<String> = (1..=CHANGING.len() + 2).map(|n| format!("${n}")).collect();
    format!(
        "INSERT INTO sandbox_agent_sessions (id, created_at, {}) VALUES ({}) ON CONFLICT (id) DO NOTHING",
        CHANGING.join(", "),
        parameters.join(", ")
    )
}

/// The first two parameters are those of [`insert_session_sql`], so that both are bound alike.
pub(super) fn update_session_sql() -> String {
    let columns: Vec<String> = (3..).zip(CHANGING).map(|(n, column)| format!("{column} = ${n}")).collect();
    format!("UPDATE sandbox_agent_sessions SET {} WHERE id = $1 AND created_at = $2", columns.join(", "))
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
        error => StoreError::Database(Arc::new(error)),
    }
}

/// Whether the database could do the same later: it is locked, slow, starting, stopping, crowded or full.
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
    // The classes are connections, resources, and interventions by an operator or a time limit.
    let class = ["08", "53", "57"].into_iter().any(|class| code.starts_with(class));
    class || matches!(&*code, "40001" | "40P01" | "55P03" | "25P03")
}

/// The number of a failure of SQLite, with its extension; `None` for one of another database.
pub(super) fn sqlite_code(error: &dyn DatabaseError) -> Option<u32> {
    // The codes of PostgreSQL have five characters.
    error.code().filter(|code| code.len() < 5).and_then(|code| code.parse().ok())
}
