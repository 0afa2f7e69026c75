//! Columns of a database as the types of a store, and back.

use std::sync::Arc;

use serde_json::json;
use sqlx::Row as _;

use super::super::super::rows::{Failure, failure, signed, to_json, unsigned};
use super::super::super::{
    AgentSession, Cursor, Fence, Fingerprint, NewEvent, RecordPage, SessionRecord, StoreError, StoredEvent,
    StoredEventKind, StreamPosition, read_json,
};
use super::super::{Database, Row, Text};
use crate::session::Timestamp;
use crate::sessions::status::SessionStatus;

pub(super) type Query<'q> = sqlx::query::Query<'q, Database, <Database as sqlx::Database>::Arguments<'q>>;

const POSITION: [&str; 3] = ["position_incarnation", "position_offset", "position_fingerprint"];

/// The columns of a session that are looked at without its document.
pub(super) struct Head {
    pub(super) fence: Fence,
    pub(super) status: SessionStatus,
    pub(super) last_index: u64,
    pub(super) last_active_at: Timestamp,
    pub(super) position: Option<StreamPosition>,
}

impl Head {
    pub(super) fn read(row: &Row) -> Result<Self, Failure> {
        let (id, status): (String, String) = (row.try_get("id")?, row.try_get("status")?);
        let status = SessionStatus::from_stored(&status)
            .map_err(|error| StoreError::Unreadable { id, source: Arc::new(error) })?;
        let (epoch, created_at) = (number(row, "epoch")?, moment(row, "created_at")?);
        Ok(Self {
            fence: Fence { epoch, created_at },
            status,
            last_index: number(row, "last_index")?,
            last_active_at: moment(row, "last_active_at")?,
            position: read_position(row, POSITION)?,
        })
    }
}

fn number(row: &Row, column: &str) -> Result<u64, sqlx::Error> {
    row.try_get(column).map(unsigned)
}

fn moment(row: &Row, column: &str) -> Result<Timestamp, sqlx::Error> {
    number(row, column).map(Timestamp::from_millis)
}

pub(super) fn read_position(
    row: &Row,
    [incarnation, offset, fingerprint]: [&str; 3],
) -> Result<Option<StreamPosition>, sqlx::Error> {
    let incarnation: Option<i64> = row.try_get(incarnation)?;
    let offset: Option<i64> = row.try_get(offset)?;
    let fingerprint: Option<i64> = row.try_get(fingerprint)?;
    Ok(incarnation.zip(offset).map(|(incarnation, offset)| StreamPosition {
        incarnation: unsigned(incarnation),
        offset: unsigned(offset),
        fingerprint: Fingerprint(fingerprint.unwrap_or_default().cast_unsigned()),
    }))
}

pub(super) fn bind_position(query: Query<'_>, position: Option<StreamPosition>) -> Query<'_> {
    query
        .bind(position.map(|position| signed(position.incarnation)))
        .bind(position.map(|position| signed(position.offset)))
        .bind(position.map(|position| position.fingerprint.0.cast_signed()))
}

/// Gives a statement all columns of a record, the id and the creation time first.
pub(super) fn bind_record<'q>(sql: &'q str, record: &'q SessionRecord) -> Result<Query<'q>, StoreError> {
    let session = record.agent_session.as_ref();
    let query = sqlx::query(sql)
        .bind(&record.id)
        .bind(signed(record.created_at.as_millis()))
        .bind(&record.agent)
        .bind(record.user_key.as_deref())
        .bind(record.status.as_str())
        .bind(signed(record.epoch))
        .bind(record.owner.as_deref())
        .bind(i64::from(record.caught_up))
        .bind(record.endpoint.as_deref())
        .bind(session.map(|session| session.id.as_str()))
        .bind(session.map_or(0, |session| signed(session.incarnation)));
    Ok(bind_position(query, record.position)
        .bind(signed(record.last_active_at.as_millis()))
        .bind(signed(record.last_index))
        .bind(signed(record.revision))
        .bind(to_json(&record.details)?))
}

pub(super) fn read_record(row: &Row) -> Result<SessionRecord, StoreError> {
    let id: String = row.try_get("id").map_err(failure)?;
    let read = || -> Result<SessionRecord, Box<dyn std::error::Error + Send + Sync>> {
        let document: Text = row.try_get("document")?;
        let document = std::str::from_utf8(document.as_ref())?;
        let status: String = row.try_get("status")?;
        let incarnation = number(row, "incarnation")?;
        let agent_session: Option<String> = row.try_get("agent_session_id")?;
        let mut record =
            SessionRecord::new(&id, row.try_get::<String, _>("agent")?, moment(row, "created_at")?);
        record.user_key = row.try_get("user_key")?;
        record.status = SessionStatus::from_stored(&status)?;
        record.epoch = number(row, "epoch")?;
        record.owner = row.try_get("owner")?;
        record.caught_up = row.try_get::<i64, _>("caught_up")? != 0;
        record.endpoint = row.try_get("endpoint")?;
        record.agent_session = agent_session.map(|id| AgentSession { id, incarnation });
        record.position = read_position(row, POSITION)?;
        record.last_active_at = moment(row, "last_active_at")?;
        record.last_index = number(row, "last_index")?;
        record.revision = number(row, "revision")?;
        record.details = read_json(document)?;
        Ok(record)
    };
    read().map_err(|error| StoreError::Unreadable { id: id.clone(), source: error.into() })
}

/// The page of these rows, which are one more than the page takes if there is a next one.
pub(super) fn page(rows: &[Row], size: usize, order: &str) -> Result<RecordPage, sqlx::Error> {
    let mut page = RecordPage::default();
    for row in rows.iter().take(size) {
        match read_record(row) {
            Ok(record) => page.records.push(record),
            // A damaged record does not hide the others.
            Err(error) => {
                let id: String = row.try_get("id")?;
                tracing::warn!(session = id, error = %crate::convert::text::OneLine(&error), "a damaged session record is omitted from a list");
                page.unreadable.push(id);
            }
        }
    }
    if let Some(last) = rows.get(size - 1).filter(|_| rows.len() > size) {
        page.next = Some(Cursor::after(moment(last, order)?, last.try_get::<String, _>("id")?));
    }
    Ok(page)
}

/// An event as it is stored. A damaged payload does not hide the events around it.
pub(super) fn read_event(row: &Row) -> Result<StoredEvent, sqlx::Error> {
    let (kind, payload): (String, Text) = (row.try_get("kind")?, row.try_get("payload")?);
    let payload: &[u8] = payload.as_ref();
    let (kind, payload) = match std::str::from_utf8(payload).map(read_json) {
        Ok(Ok(payload)) => (kind.into(), payload),
        _ => {
            let text = String::from_utf8_lossy(payload);
            (StoredEventKind::Unreadable, json!({ "kind": kind, "text": text }))
        }
    };
    let (incarnation, offset): (Option<i64>, Option<i64>) =
        (row.try_get("incarnation")?, row.try_get("stream_offset")?);
    let recorded_at = moment(row, "recorded_at")?;
    let mut event = match incarnation.zip(offset) {
        Some((incarnation, offset)) => {
            NewEvent::from_stream(unsigned(incarnation), unsigned(offset), recorded_at, kind, payload)
        }
        None => NewEvent::new(row.try_get::<String, _>("id")?, recorded_at, kind, payload),
    };
    event.turn_id = row.try_get("turn_id")?;
    event.rpc_id = row.try_get("rpc_id")?;
    let session: String = row.try_get("session_id")?;
    Ok(event.stored(session, number(row, "position")?, number(row, "epoch")?))
}
