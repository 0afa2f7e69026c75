//! Statements on events.

use std::collections::HashMap;

use sqlx::{Connection as _, QueryBuilder, Row as _};

use super::super::super::limits::check_key;
use super::super::super::rows::{EVENT_COLUMNS, Failure, Prepared, signed, unsigned};
use super::super::super::{
    Appended, Change, Closes, EventKey, EventOrder, EventPage, EventQuery, NewEvent, OpenEvents, StoreError,
    StreamPosition,
};
use super::super::{BEGIN, Connection, Database, Size};
use super::columns::{Head, bind_position, read_event, read_record};
use super::records::{advance, end_older_binding, forget_scanned, locked, update_record};
use crate::session::Timestamp;

/// How many events one statement inserts. Statements of this size, and of one, are prepared once.
const ROWS: usize = 128;

pub(super) async fn open(connection: &mut Connection, id: &str) -> Result<OpenEvents, Failure> {
    if check_key("id", id).is_err() {
        return Ok(OpenEvents::default());
    }
    let select = "SELECT * FROM sandbox_agent_events WHERE session_id = $1 AND is_open = 1 ORDER BY position";
    let rows = sqlx::query(select).bind(id).fetch_all(connection).await?;
    let events: Result<Vec<_>, _> = rows.iter().map(read_event).collect();
    Ok(OpenEvents::of(events?))
}

pub(super) async fn events(connection: &mut Connection, query: &EventQuery) -> Result<EventPage, Failure> {
    let size = query.page_size();
    if check_key("id", &query.session_id).is_err() {
        return Ok(EventPage::of(Vec::new(), size));
    }
    if query.max_bytes.is_none() || size == 1 {
        let rows = events_sql("*", query, size + 1).build().fetch_all(connection).await?;
        let events: Result<Vec<_>, _> = rows.iter().map(read_event).collect();
        return Ok(EventPage::of(events?, size));
    }
    // Neither database reads a large payload to measure it.
    let mut measuring = events_sql("octet_length(payload)", query, size + 1);
    let measured = measuring.build().fetch_all(&mut *connection).await?;
    let sizes: Result<Vec<Size>, _> = measured.iter().map(|row| row.try_get(0)).collect();
    let sizes = sizes?;
    let fitting = query.fitting(sizes.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)));
    let rows = events_sql("*", query, fitting).build().fetch_all(connection).await?;
    let events = rows.iter().map(read_event).collect::<Result<Vec<_>, _>>()?;
    let next = events.last().filter(|_| sizes.len() > fitting).map(|event| event.index);
    Ok(EventPage { events, next })
}

/// The query for these columns of at most `limit` events.
pub(in super::super) fn events_sql<'q>(
    columns: &str,
    query: &'q EventQuery,
    limit: usize,
) -> QueryBuilder<'q, Database> {
    let (than, order, first) = match query.order {
        EventOrder::OldestFirst => (">", "position", 0),
        EventOrder::NewestFirst => ("<", "position DESC", u64::MAX),
    };
    let mut sql =
        QueryBuilder::new(format!("SELECT {columns} FROM sandbox_agent_events WHERE session_id = "));
    sql.push_bind(&query.session_id).push(format!(" AND position {than} "));
    sql.push_bind(signed(query.after.unwrap_or(first)));
    if !query.kinds.is_empty() {
        sql.push(" AND kind IN (");
        let mut kinds = sql.separated(", ");
        for kind in &query.kinds {
            kinds.push_bind(kind.as_str());
        }
        sql.push(")");
    }
    sql.push(format!(" ORDER BY {order} LIMIT ")).push_bind(signed(limit as u64));
    sql
}

/// Executes appends in one transaction. A rejected append does not affect the others.
pub(in super::super) async fn append_all(
    connection: &mut Connection,
    group: &[Prepared],
) -> Result<Vec<Result<Appended, StoreError>>, Failure> {
    let mut transaction = connection.begin_with(BEGIN).await?;
    let mut results = Vec::with_capacity(group.len());
    for prepared in group {
        results.push(match append(&mut transaction, prepared).await {
            Ok(appended) => Ok(appended),
            Err(Failure::Refused(error)) => Err(error),
            Err(error) => return Err(error),
        });
    }
    transaction.commit().await?;
    Ok(results)
}

async fn append(connection: &mut Connection, prepared: &Prepared) -> Result<Appended, Failure> {
    let Prepared { append, payloads } = prepared;
    let row = locked(connection, &append.session_id).await?;
    let head = Head::read(&row)?;
    append.admit(head.fence, head.status)?;
    let (mut record, mut ended) = (None, None);
    if !append.patch.is_empty() {
        let mut patched = read_record(&row)?;
        let before = (patched.owner.clone(), patched.endpoint.clone());
        append.patch.apply(&mut patched)?;
        ended = Some(before).filter(|(owner, _)| patched.owner != *owner);
        record = Some(patched);
    }
    // From here on no append is rejected.
    let epoch = append.fence.map_or(0, |fence| fence.epoch);
    let rows: Vec<EventRow<'_>> = (head.last_index + 1..)
        .zip(append.events.iter().zip(payloads))
        .map(|(index, (event, payload))| EventRow { event, payload, index, epoch, is_open: event.is_open() })
        .collect();
    let (fresh, indexes) = insert_fresh(connection, &append.session_id, rows, head.last_index).await?;
    for row in &fresh {
        close_events(connection, &append.session_id, row).await?;
    }
    let last_index = fresh.last().map_or(head.last_index, |row| row.index);
    let moments = fresh.iter().map(|row| row.event.recorded_at);
    let last_active_at = moments.fold(head.last_active_at, Timestamp::max);
    let position = StreamPosition::later_of(head.position, append.position);
    match &mut record {
        Some(record) => {
            (record.last_index, record.position) = (last_index, position);
            record.last_active_at = record.last_active_at.max(last_active_at);
            update_record(connection, record).await?;
            if matches!(append.patch.agent_session, Change::Set(_)) {
                end_older_binding(connection, record).await?;
            }
        }
        None if fresh.is_empty() && position == head.position => {}
        None => {
            let update = "UPDATE sandbox_agent_sessions SET last_index = $2, last_active_at = $3, \
                          position_incarnation = $4, position_offset = $5, position_fingerprint = $6 WHERE id = $1";
            let update = sqlx::query(update)
                .bind(&append.session_id)
                .bind(signed(last_index))
                .bind(signed(last_active_at.as_millis()));
            bind_position(update, position).execute(&mut *connection).await?;
        }
    }
    if let Some(scanned_to) = &append.scanned_to {
        advance(connection, scanned_to).await?;
    }
    if let Some((owner, endpoint)) = ended {
        forget_scanned(connection, owner.as_deref(), endpoint.as_deref()).await?;
    }
    Ok(Appended::new(indexes, fresh.len(), record))
}

/// An event as it is about to be inserted.
#[derive(Clone, Copy)]
pub(super) struct EventRow<'a> {
    pub(super) event: &'a NewEvent,
    pub(super) payload: &'a str,
    pub(super) index: u64,
    pub(super) epoch: u64,
    pub(super) is_open: bool,
}

/// Inserts the events that are not stored yet, and returns these with the index of every event.
async fn insert_fresh<'a>(
    connection: &mut Connection,
    session: &str,
    rows: Vec<EventRow<'a>>,
    last_index: u64,
) -> Result<(Vec<EventRow<'a>>, Vec<u64>), Failure> {
    // Most batches contain only new events. The stored events are looked up only for the other batches.
    if insert_events(connection, session, &rows).await? == rows.len() as u64 {
        let indexes = rows.iter().map(|row| row.index).collect();
        return Ok((rows, indexes));
    }
    let undo = "DELETE FROM sandbox_agent_events WHERE session_id = $1 AND position > $2";
    sqlx::query(undo).bind(session).bind(signed(last_index)).execute(&mut *connection).await?;
    let (mut fresh, mut indexes) = (Vec::new(), Vec::with_capacity(rows.len()));
    let mut known: HashMap<&EventKey, u64> = HashMap::new();
    for row in rows {
        let key = &row.event.key;
        let stored = match known.get(key) {
            Some(index) => Some(*index),
            None => stored_index(connection, session, key).await?,
        };
        let index = stored.unwrap_or_else(|| {
            let index = last_index + fresh.len() as u64 + 1;
            fresh.push(EventRow { index, ..row });
            index
        });
        known.insert(key, index);
        indexes.push(index);
    }
    insert_events(connection, session, &fresh).await?;
    Ok((fresh, indexes))
}

async fn stored_index(
    connection: &mut Connection,
    session: &str,
    key: &EventKey,
) -> Result<Option<u64>, Failure> {
    let row = match key {
        EventKey::Id { id } => {
            let select =
                "SELECT position FROM sandbox_agent_events WHERE session_id = $1 AND id = $2 AND id <> ''";
            sqlx::query(select).bind(session).bind(id).fetch_optional(connection).await?
        }
        EventKey::Stream { incarnation, offset } => {
            let select = "SELECT position FROM sandbox_agent_events WHERE session_id = $1 AND incarnation = $2 \
                          AND stream_offset = $3";
            let select = sqlx::query(select).bind(session).bind(signed(*incarnation)).bind(signed(*offset));
            select.fetch_optional(connection).await?
        }
    };
    Ok(row.map(|row| row.try_get(0).map(unsigned)).transpose()?)
}

/// Inserts events, and returns how many were not stored already.
pub(super) async fn insert_events(
    connection: &mut Connection,
    session: &str,
    rows: &[EventRow<'_>],
) -> Result<u64, Failure> {
    let mut inserted = 0;
    for rows in rows.chunks(ROWS) {
        let mut sql =
            QueryBuilder::<Database>::new(format!("INSERT INTO sandbox_agent_events ({EVENT_COLUMNS}) "));
        sql.push_values(rows, |mut row, EventRow { event, payload, index, epoch, is_open }| {
            let (id, incarnation, offset) = match &event.key {
                EventKey::Id { id } => (id.as_str(), None, None),
                EventKey::Stream { incarnation, offset } => {
                    ("", Some(signed(*incarnation)), Some(signed(*offset)))
                }
            };
            row.push_bind(session).push_bind(signed(*index)).push_bind(id);
            row.push_bind(incarnation).push_bind(offset).push_bind(signed(event.recorded_at.as_millis()));
            row.push_bind(event.kind.as_str()).push_bind(*payload).push_bind(signed(*epoch));
            row.push_bind(event.turn_id.as_deref()).push_bind(event.rpc_id.as_deref());
            row.push_bind(i64::from(*is_open));
        });
        sql.push(" ON CONFLICT DO NOTHING");
        let insert = sql.build().persistent(rows.len() == ROWS || rows.len() == 1);
        inserted += insert.execute(&mut *connection).await?.rows_affected();
    }
    Ok(inserted)
}

/// Closes the older events that an event closes.
async fn close_events(connection: &mut Connection, session: &str, row: &EventRow<'_>) -> Result<(), Failure> {
    let (which, id) = match row.event.closes() {
        Some(Closes::Turn(id)) => ("turn_id = $2", id),
        Some(Closes::Request(id)) => ("rpc_id = $2 AND kind NOT IN ('prompt', 'prompt_resent')", id),
        None => return Ok(()),
    };
    let sql = format!(
        "UPDATE sandbox_agent_events SET is_open = 0 \
         WHERE session_id = $1 AND is_open = 1 AND {which} AND position < $3"
    );
    sqlx::query(&sql).bind(session).bind(id).bind(signed(row.index)).execute(connection).await?;
    Ok(())
}
