//! Statements on records.

use sqlx::{Connection as _, QueryBuilder, Row as _};

use super::super::super::limits::check_key;
use super::super::super::rows::{
    Failure, insert_session_sql, payloads, signed, unsigned, update_session_sql,
};
use super::super::super::{
    NewEvent, RecordPage, RecordQuery, ScannedTo, SessionRecord, StoreError, StreamPosition, Suspend,
};
use super::super::{BEGIN, Connection, Database, FOR_UPDATE, FOR_UPDATE_UNLESS_LOCKED, Row};
use super::columns::{Query, bind_position, bind_record, page, read_position, read_record};
use super::events::{EventRow, insert_events};
use crate::session::Timestamp;

pub(super) async fn create(
    connection: &mut Connection,
    record: SessionRecord,
    events: &[NewEvent],
) -> Result<SessionRecord, Failure> {
    let record = record.created(events)?;
    let payloads = payloads(events)?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let sql = insert_session_sql();
    if bind_record(&sql, &record)?.execute(&mut *transaction).await?.rows_affected() == 0 {
        return Err(StoreError::Exists { id: record.id }.into());
    }
    let rows: Vec<EventRow<'_>> = (1..)
        .zip(events.iter().zip(&payloads))
        .map(|(index, (event, payload))| EventRow { event, payload, index, epoch: 0, is_open: false })
        .collect();
    insert_events(&mut transaction, &record.id, &rows).await?;
    end_older_binding(&mut transaction, &record).await?;
    transaction.commit().await?;
    Ok(record)
}

pub(super) async fn get(connection: &mut Connection, id: &str) -> Result<Option<SessionRecord>, Failure> {
    // No session has such an id, and not every database could search for it.
    if check_key("id", id).is_err() {
        return Ok(None);
    }
    let select = "SELECT * FROM sandbox_agent_sessions WHERE id = $1";
    let row = sqlx::query(select).bind(id).fetch_optional(connection).await?;
    Ok(row.map(|row| read_record(&row)).transpose()?)
}

/// Ends the ownership of a session with `end`, which receives the owner's read position on the endpoint.
pub(super) async fn end_ownership(
    connection: &mut Connection,
    id: &str,
    end: impl FnOnce(&mut SessionRecord, Option<StreamPosition>) -> Result<(), StoreError>,
) -> Result<SessionRecord, Failure> {
    let mut transaction = connection.begin_with(BEGIN).await?;
    let mut record = read_record(&locked(&mut transaction, id).await?)?;
    let (owner, endpoint) = (record.owner.clone(), record.endpoint.clone());
    let scanned_to = match (&owner, &endpoint) {
        (Some(owner), Some(endpoint)) => scanned_to(&mut transaction, owner, endpoint).await?,
        _ => None,
    };
    // The scanned events may include the end of an open turn, which is not stored.
    let open = "SELECT 1 FROM sandbox_agent_events WHERE session_id = $1 AND is_open = 1 AND kind = 'prompt' LIMIT 1";
    let has_open_turn = sqlx::query(open).bind(id).fetch_optional(&mut *transaction).await?.is_some();
    let scanned_to = scanned_to.filter(|_| !has_open_turn);
    end(&mut record, scanned_to)?;
    update_record(&mut transaction, &record).await?;
    forget_scanned(&mut transaction, owner.as_deref(), endpoint.as_deref()).await?;
    transaction.commit().await?;
    Ok(record)
}

/// Removes the read position of a process on an endpoint if it owns no session there.
pub(super) async fn forget_scanned(
    connection: &mut Connection,
    owner: Option<&str>,
    endpoint: Option<&str>,
) -> Result<(), Failure> {
    let (Some(owner), Some(endpoint)) = (owner, endpoint) else { return Ok(()) };
    let delete = "DELETE FROM sandbox_agent_scanned WHERE owner = $1 AND endpoint = $2 AND NOT EXISTS \
                  (SELECT 1 FROM sandbox_agent_sessions WHERE owner = $1 AND endpoint = $2)";
    sqlx::query(delete).bind(owner).bind(endpoint).execute(connection).await?;
    Ok(())
}

pub(super) async fn list(connection: &mut Connection, query: &RecordQuery) -> Result<RecordPage, Failure> {
    query.check()?;
    if query.matches_nothing() {
        return Ok(RecordPage::default());
    }
    let rows = list_sql(query).build().fetch_all(connection).await?;
    Ok(page(&rows, query.page_size(), order_of(query).0)?)
}

/// The column by which sessions are ordered, and the words for their order.
fn order_of(query: &RecordQuery) -> (&'static str, &'static str, &'static str) {
    match query.inactive_before {
        None => ("created_at", "<", "DESC"),
        Some(_) => ("last_active_at", ">", "ASC"),
    }
}

/// The query for a page of sessions. It is put together from one page of each status, so that each is a walk along an
/// index.
pub(in super::super) fn list_sql(query: &RecordQuery) -> QueryBuilder<'_, Database> {
    let (column, than, order) = order_of(query);
    let order = format!(" ORDER BY {column} {order}, id {order} LIMIT ");
    let limit = signed(query.page_size() as u64 + 1);
    let mut sql = QueryBuilder::new("");
    for (n, status) in query.distinct_statuses().enumerate() {
        sql.push(if n > 0 { " UNION ALL " } else { "" });
        sql.push("SELECT * FROM (SELECT * FROM sandbox_agent_sessions WHERE status = ").push_bind(status);
        push_filters(&mut sql, query);
        if let Some(cursor) = &query.cursor {
            sql.push(format!(" AND ({column}, id) {than} (")).push_bind(signed(cursor.at.as_millis()));
            sql.push(", ").push_bind(cursor.id.as_str()).push(")");
        }
        sql.push(&order).push_bind(limit).push(format!(") AS page{n}"));
    }
    sql.push(order).push_bind(limit);
    sql
}

pub(super) async fn count(connection: &mut Connection, query: &RecordQuery) -> Result<u64, Failure> {
    if query.matches_nothing() {
        return Ok(0);
    }
    let row = count_sql(query).build().fetch_one(connection).await?;
    Ok(row.try_get(0).map(unsigned)?)
}

pub(in super::super) fn count_sql(query: &RecordQuery) -> QueryBuilder<'_, Database> {
    let mut sql = QueryBuilder::new("SELECT COUNT(*) FROM sandbox_agent_sessions WHERE status IN (");
    let mut statuses = sql.separated(", ");
    for status in query.distinct_statuses() {
        statuses.push_bind(status);
    }
    sql.push(")");
    push_filters(&mut sql, query);
    sql
}

fn push_filters<'q>(sql: &mut QueryBuilder<'q, Database>, query: &'q RecordQuery) {
    for (column, wanted) in query.filters() {
        sql.push(format!(" AND {column} = ")).push_bind(wanted);
    }
    if let Some(before) = query.inactive_before {
        sql.push(" AND last_active_at < ").push_bind(signed(before.as_millis()));
    }
}

pub(super) async fn suspend(
    connection: &mut Connection,
    which: &Suspend,
    now: Timestamp,
) -> Result<u64, Failure> {
    which.check(now)?;
    let owned = if matches!(which, Suspend::Own(_)) { " AND owner = $2" } else { "" };
    // In a fixed order, so that two processes cannot deadlock.
    let sql = format!(
        "UPDATE sandbox_agent_sessions SET status = 'suspended', revision = revision + 1, \
         last_active_at = CASE WHEN last_active_at < $1 THEN $1 ELSE last_active_at END \
         WHERE status = 'active' AND id IN (SELECT id FROM sandbox_agent_sessions WHERE status = 'active'{owned} \
         ORDER BY id{FOR_UPDATE})"
    );
    let mut update = sqlx::query(&sql).bind(signed(now.as_millis()));
    if let Suspend::Own(owner) = which {
        update = update.bind(owner);
    }
    Ok(update.execute(connection).await?.rows_affected())
}

pub(super) async fn delete(connection: &mut Connection, id: &str) -> Result<bool, Failure> {
    if check_key("id", id).is_err() {
        return Ok(false);
    }
    let delete = "DELETE FROM sandbox_agent_sessions WHERE id = $1 RETURNING owner, endpoint";
    deleted(connection, sqlx::query(delete).bind(id)).await
}

pub(super) async fn delete_unchanged(
    connection: &mut Connection,
    record: &SessionRecord,
) -> Result<bool, Failure> {
    let delete = "DELETE FROM sandbox_agent_sessions WHERE id = $1 AND created_at = $2 AND revision = $3 \
                  AND last_index = $4 RETURNING owner, endpoint";
    let delete = sqlx::query(delete)
        .bind(&record.id)
        .bind(signed(record.created_at.as_millis()))
        .bind(signed(record.revision))
        .bind(signed(record.last_index));
    deleted(connection, delete).await
}

/// Deletes a session, and read positions that only it needed. Returns whether it existed.
async fn deleted(connection: &mut Connection, delete: Query<'_>) -> Result<bool, Failure> {
    let mut transaction = connection.begin_with(BEGIN).await?;
    let Some(row) = delete.fetch_optional(&mut *transaction).await? else { return Ok(false) };
    let (owner, endpoint): (Option<String>, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
    forget_scanned(&mut transaction, owner.as_deref(), endpoint.as_deref()).await?;
    transaction.commit().await?;
    Ok(true)
}

pub(super) async fn incarnation(connection: &mut Connection, endpoint: &str) -> Result<u64, Failure> {
    if check_key("an endpoint", endpoint).is_err() {
        return Ok(1);
    }
    let select = "SELECT incarnation FROM sandbox_agent_incarnations WHERE endpoint = $1";
    let row = sqlx::query(select).bind(endpoint).fetch_optional(connection).await?;
    Ok(row.map_or(Ok(1), |row| row.try_get(0).map(unsigned))?)
}

pub(super) async fn raise_incarnation(
    connection: &mut Connection,
    endpoint: &str,
    from: u64,
) -> Result<u64, Failure> {
    check_key("an endpoint", endpoint)?;
    let mut transaction = connection.begin_with(BEGIN).await?;
    let insert = "INSERT INTO sandbox_agent_incarnations (endpoint, incarnation) VALUES ($1, 1) ON CONFLICT DO NOTHING";
    sqlx::query(insert).bind(endpoint).execute(&mut *transaction).await?;
    let raise = "UPDATE sandbox_agent_incarnations SET incarnation = incarnation + 1 \
                 WHERE endpoint = $1 AND incarnation = $2";
    sqlx::query(raise).bind(endpoint).bind(signed(from)).execute(&mut *transaction).await?;
    let current = incarnation(&mut transaction, endpoint).await?;
    transaction.commit().await?;
    Ok(current)
}

pub(super) async fn scanned_to(
    connection: &mut Connection,
    owner: &str,
    endpoint: &str,
) -> Result<Option<StreamPosition>, Failure> {
    if check_key("an owner", owner).is_err() || check_key("an endpoint", endpoint).is_err() {
        return Ok(None);
    }
    let select = "SELECT incarnation, stream_offset, fingerprint FROM sandbox_agent_scanned \
                  WHERE owner = $1 AND endpoint = $2";
    let row = sqlx::query(select).bind(owner).bind(endpoint).fetch_optional(connection).await?;
    Ok(row.map_or(Ok(None), |row| read_position(&row, ["incarnation", "stream_offset", "fingerprint"]))?)
}

/// Stores a read position, unless another transaction is storing one: all appends of a process share this row, and would
/// wait for each other. The position that stays is true as well, only older.
pub(super) async fn advance(connection: &mut Connection, scanned_to: &ScannedTo) -> Result<(), Failure> {
    scanned_to.check()?;
    let bind = |sql| {
        let query = sqlx::query(sql).bind(&scanned_to.owner).bind(&scanned_to.endpoint);
        bind_position(query, Some(scanned_to.position))
    };
    let update = format!(
        "UPDATE sandbox_agent_scanned SET incarnation = $3, stream_offset = $4, fingerprint = $5 \
         WHERE (incarnation, stream_offset) < ($3, $4) AND (owner, endpoint) IN \
         (SELECT owner, endpoint FROM sandbox_agent_scanned WHERE owner = $1 AND endpoint = $2 \
         {FOR_UPDATE_UNLESS_LOCKED})"
    );
    if bind(&update).execute(&mut *connection).await?.rows_affected() == 0 {
        let insert = "INSERT INTO sandbox_agent_scanned (owner, endpoint, incarnation, stream_offset, fingerprint) \
                      SELECT $1, $2, $3, $4, $5 WHERE NOT EXISTS \
                      (SELECT 1 FROM sandbox_agent_scanned WHERE owner = $1 AND endpoint = $2) \
                      ON CONFLICT DO NOTHING";
        bind(insert).execute(connection).await?;
    }
    Ok(())
}

/// The row of a session, which no other transaction changes until this one ends.
pub(super) async fn locked(connection: &mut Connection, id: &str) -> Result<Row, Failure> {
    let not_found = || StoreError::NotFound { id: id.to_owned() };
    check_key("id", id).map_err(|_| not_found())?;
    let select = format!("SELECT * FROM sandbox_agent_sessions WHERE id = $1{FOR_UPDATE}");
    let row = sqlx::query(&select).bind(id).fetch_optional(connection).await?;
    Ok(row.ok_or_else(not_found)?)
}

pub(super) async fn update_record(
    connection: &mut Connection,
    record: &SessionRecord,
) -> Result<(), Failure> {
    let sql = update_session_sql();
    bind_record(&sql, record)?.execute(connection).await?;
    Ok(())
}

/// Ends the binding of another session to the agent's session of this one.
pub(super) async fn end_older_binding(
    connection: &mut Connection,
    record: &SessionRecord,
) -> Result<(), Failure> {
    let (Some(session), Some(endpoint)) = (&record.agent_session, &record.endpoint) else { return Ok(()) };
    let select = format!(
        "SELECT * FROM sandbox_agent_sessions WHERE agent_session_id = $1 AND endpoint = $2 AND incarnation = $3 \
         AND id <> $4{FOR_UPDATE}"
    );
    let select = sqlx::query(&select)
        .bind(&session.id)
        .bind(endpoint)
        .bind(signed(session.incarnation))
        .bind(&record.id);
    for row in select.fetch_all(&mut *connection).await? {
        // A damaged record cannot be restored, so that its binding does no harm.
        if let Ok(mut other) = read_record(&row) {
            other.unbind();
            update_record(connection, &other).await?;
        }
    }
    Ok(())
}
