//! A store in one file.

use std::fmt;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use serde::Serialize;
use sqlx::query::{Query, QueryAs};
use sqlx::sqlite::{SqliteArguments, SqlitePool};
use sqlx::{Sqlite, SqliteConnection};

use self::open::open;
use super::limits::check_moment;
use super::placing::{Head, Present, place, sessions};
use super::record::check_import;
use super::rows::{
    COLUMNS, Dialect, EventRow, SessionRow, count_sql, document, event, inactive_sql, list_sql, new_record,
    page, payload, record, signed, unsigned,
};
use super::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, SessionStore,
    StoreError,
};
use crate::session::Timestamp;

mod open;
mod schema;
#[cfg(test)]
mod tests;

pub use open::{SqliteOptions, SqliteSync};

const DIALECT: Dialect = Dialect { mark: '?', sessions: "sessions" };
/// How many events one statement inserts. Statements of this size are prepared once.
const ROWS: usize = 128;

/// Texts in a file that was damaged may be none, so documents and payloads are read as bytes.
type Bytes = Vec<u8>;

/// A store in one SQLite file, which several tasks and several programs of one machine may use at the same time.
///
/// An acknowledged write is in the file: a program that is killed at any moment loses nothing of it, nor does, with
/// the default [`SqliteSync::Full`], a machine that loses power.
///
/// Only the user of this program can read the file and those that SQLite keeps beside it: they have mode 0600, and files
/// with wider permissions lose them when the store is opened ([`SqliteOptions::keep_permissions`]). Missing directories on
/// the way to the file are created with mode 0700.
pub struct SqliteStore {
    path: PathBuf,
    /// One connection: SQLite has one writer at a time, and waiting here is fairer than waiting there.
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteStore {
    /// Opens the store in this file, which is made if there is none.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] if it cannot be written to, [`StoreError::NewerSchema`] if a newer version of this
    /// library wrote it, [`StoreError::Unavailable`] if it cannot be opened.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// Opens the store in this file with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let (writer, readers) = open(&path, &options).await?;
        Ok(Self { path, writer, readers })
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a failure means for this file.
    fn failure(&self, error: sqlx::Error) -> StoreError {
        open::failure(&self.path, error)
    }

    /// Writes a new record, and what happened in the session.
    async fn insert(&self, record: SessionRecord, events: &[NewEvent]) -> Result<SessionRecord, StoreError> {
        let kept = new_record(record, events);
        let failure = |error| self.failure(error);
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failure)?;
        let done = sqlx::query(INSERT_SESSION)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.created_at.as_millis()))
            .bind(signed(kept.last_active.as_millis()))
            .bind(signed(kept.last_index))
            .bind(document(&kept)?)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        if done.rows_affected() == 0 {
            return Err(StoreError::Exists { id: kept.id });
        }
        let placed: Vec<(&NewEvent, u64)> = events.iter().zip(1..).collect();
        self.insert_events(&mut transaction, &placed).await?;
        transaction.commit().await.map_err(failure)?;
        Ok(kept)
    }

    async fn replace(&self, kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        let row: Option<SessionRow<Bytes>> = sqlx::query_as(&replace_sql())
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.last_active.as_millis()))
            .bind(document(&kept)?)
            .bind(signed(kept.revision))
            .fetch_optional(&self.writer)
            .await
            .map_err(|error| self.failure(error))?;
        match row {
            Some(row) => record(row),
            None if self.get(&kept.id).await?.is_some() => Err(StoreError::Conflict { id: kept.id }),
            None => Err(StoreError::NotFound { id: kept.id }),
        }
    }

    async fn write(&self, events: &[NewEvent]) -> Result<Vec<u64>, StoreError> {
        events.iter().try_for_each(|event| event.check().map(drop))?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        // Most batches are new as a whole, and which of its events are there is looked up only for those that are not.
        match self.write_once(events, Repeats::Unexpected).await? {
            Some(indexes) => Ok(indexes),
            None => {
                let written = self.write_once(events, Repeats::LookedUp).await?;
                written.ok_or_else(|| StoreError::Conflict { id: events[0].session_id.clone() })
            }
        }
    }

    /// Writes a batch; `None`, and nothing is written, if some of it is there already and was not looked up.
    async fn write_once(
        &self,
        events: &[NewEvent],
        repeats: Repeats,
    ) -> Result<Option<Vec<u64>>, StoreError> {
        let failure = |error| self.failure(error);
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(failure)?;
        let rows: Vec<(String, i64, i64, Bytes)> = sqlx::query_as(SELECT_HEADS)
            .bind(json(&sessions(events))?)
            .fetch_all(&mut *transaction)
            .await
            .map_err(failure)?;
        let heads = rows.into_iter().map(Head::of_row).collect();
        let present = match repeats {
            Repeats::Unexpected => Present::new(),
            Repeats::LookedUp => self.present(&mut transaction, events).await?,
        };
        let placed = place(events, &heads, &present)?;
        if self.insert_events(&mut transaction, &placed.fresh).await? < placed.fresh.len() as u64 {
            transaction.rollback().await.map_err(failure)?;
            return Ok(None);
        }
        let advanced =
            placed.heads.iter().map(|(id, (last, at))| (id, signed(*last), signed(at.as_millis())));
        sqlx::query(UPDATE_HEADS)
            .bind(json(&advanced.collect::<Vec<_>>())?)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await.map_err(failure)?;
        Ok(Some(placed.indexes))
    }

    /// Which of these events are there already.
    async fn present(
        &self,
        connection: &mut SqliteConnection,
        events: &[NewEvent],
    ) -> Result<Present, StoreError> {
        let ids: Vec<(&str, &str)> =
            events.iter().map(|event| (event.session_id.as_str(), event.id.as_str())).collect();
        let rows = sqlx::query_as(SELECT_PRESENT).bind(json(&ids)?).fetch_all(connection).await;
        let rows: Vec<(String, String, i64)> = rows.map_err(|error| self.failure(error))?;
        Ok(rows.into_iter().map(|(session, id, position)| ((session, id), unsigned(position))).collect())
    }

    /// Writes events at their places, and tells how many were not there already.
    async fn insert_events(
        &self,
        connection: &mut SqliteConnection,
        events: &[(&NewEvent, u64)],
    ) -> Result<u64, StoreError> {
        let mut written = 0;
        for events in events.chunks(ROWS) {
            let sql = insert_events_sql(events.len());
            let mut insert = sqlx::query(&sql).persistent(events.len() == ROWS || events.len() == 1);
            for (event, index) in events {
                insert = insert
                    .bind(&event.session_id)
                    .bind(signed(*index))
                    .bind(&event.id)
                    .bind(signed(event.recorded_at.as_millis()))
                    .bind(event.kind.as_str())
                    .bind(payload(event)?);
            }
            let done = insert.execute(&mut *connection).await.map_err(|error| self.failure(error))?;
            written += done.rows_affected();
        }
        Ok(written)
    }
}

/// What is known of the events of a batch before it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeats {
    Unexpected,
    LookedUp,
}

/// Many parameters as one.
fn json(values: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(values).map_err(|error| StoreError::Invalid(error.to_string()))
}

const INSERT_SESSION: &str = "INSERT INTO sessions (id, agent, status, created_at, last_active, last_index, revision, \
                              document) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7) ON CONFLICT (id) DO NOTHING";
const SELECT_HEADS: &str = "SELECT id, last_index, created_at, document FROM sessions \
                            WHERE id IN (SELECT value FROM json_each(?1))";
const UPDATE_HEADS: &str = "UPDATE sessions SET last_index = head.last_index, \
                            last_active = max(sessions.last_active, head.last_active) FROM \
                            (SELECT value ->> 0 AS id, value ->> 1 AS last_index, value ->> 2 AS last_active \
                            FROM json_each(?1)) AS head WHERE sessions.id = head.id";
const DELETE: &str = "DELETE FROM sessions WHERE id = ?1";
const DELETE_UNCHANGED: &str = "DELETE FROM sessions WHERE id = ?1 AND revision = ?2 AND last_index = ?3";
/// A document that somebody spoilt stays as it is, and what the columns say counts in any case.
const SUSPEND: &str = "UPDATE sessions SET status = 'suspended', last_active = max(last_active, ?1), \
                       revision = revision + 1, document = CASE WHEN typeof(document) <> 'text' THEN document \
                       WHEN json_valid(document) THEN json_set(document, '$.status', 'suspended', \
                       '$.lastActive', max(last_active, ?1)) ELSE document END WHERE status = 'active'";
const SELECT_PRESENT: &str = "SELECT session_id, id, position FROM events WHERE (session_id, id) IN \
                              (SELECT value ->> 0, value ->> 1 FROM json_each(?1))";
const SELECT_EVENTS: &str = "SELECT position, id, recorded_at, kind, payload FROM events \
                             WHERE session_id = ?1 AND position > ?2 ORDER BY position LIMIT ?3";

fn select_sql() -> String {
    format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1")
}

fn replace_sql() -> String {
    format!(
        "UPDATE sessions SET agent = ?2, status = ?3, last_active = max(last_active, ?4), \
         revision = revision + 1, document = ?5 WHERE id = ?1 AND revision = ?6 RETURNING {COLUMNS}"
    )
}

fn insert_events_sql(count: usize) -> String {
    let mut sql =
        "INSERT INTO events (session_id, position, id, recorded_at, kind, payload) VALUES ".to_owned();
    sql.push_str(&vec!["(?, ?, ?, ?, ?, ?)"; count].join(", "));
    sql.push_str(" ON CONFLICT (session_id, id) DO NOTHING");
    sql
}

type Parameters<'q> = SqliteArguments<'q>;

/// Gives the query for a page of sessions its parameters.
fn bind_list<'q>(
    sql: &'q str,
    query: &'q RecordQuery,
) -> QueryAs<'q, Sqlite, SessionRow<Bytes>, Parameters<'q>> {
    let cursor = query.cursor.as_ref();
    let mut bound = sqlx::query_as(sql)
        .bind(signed(query.page_size() as u64 + 1))
        .bind(cursor.map(|cursor| signed(cursor.at.as_millis())))
        .bind(cursor.map(|cursor| cursor.id.as_str()))
        .bind(query.agent.as_deref());
    for status in query.distinct_statuses() {
        bound = bound.bind(status.as_str());
    }
    bound
}

/// Gives the query for the number of sessions its parameters.
fn bind_count<'q>(sql: &'q str, query: &'q RecordQuery) -> Query<'q, Sqlite, Parameters<'q>> {
    let mut bound = sqlx::query(sql).bind(query.agent.as_deref());
    for status in query.distinct_statuses() {
        bound = bound.bind(status.as_str());
    }
    bound
}

/// Gives the query for sessions without activity its parameters.
fn bind_inactive<'q>(
    sql: &'q str,
    query: &'q InactiveQuery,
) -> QueryAs<'q, Sqlite, SessionRow<Bytes>, Parameters<'q>> {
    let bound = sqlx::query_as(sql)
        .bind(signed(query.page_size() as u64 + 1))
        .bind(query.status.as_str())
        .bind(signed(query.before.as_millis()));
    match &query.cursor {
        Some(cursor) => bound.bind(signed(cursor.at.as_millis())).bind(cursor.id.as_str()),
        None => bound,
    }
}

impl SessionStore for SqliteStore {
    fn put(&self, record: SessionRecord) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        Box::pin(async move {
            record.check()?;
            if record.revision == 0 { self.insert(record, &[]).await } else { self.replace(record).await }
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<SessionRecord>, StoreError>> {
        Box::pin(async move {
            let select = select_sql();
            let row: Result<Option<SessionRow<Bytes>>, _> =
                sqlx::query_as(&select).bind(id).fetch_optional(&self.readers).await;
            row.map_err(|error| self.failure(error))?.map(record).transpose()
        })
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            query.check()?;
            if query.is_vain() {
                return Ok(RecordPage::default());
            }
            let sql = list_sql(DIALECT, query);
            let rows = bind_list(&sql, query).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| self.failure(error))?;
            Ok(page(rows, query.page_size(), |row| row.2))
        })
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            use sqlx::Row as _;
            if query.is_vain() {
                return Ok(0);
            }
            let sql = count_sql(DIALECT, query);
            let row = bind_count(&sql, query).fetch_one(&self.readers).await;
            let count = row.and_then(|row| row.try_get::<i64, _>(0));
            count.map(unsigned).map_err(|error| self.failure(error))
        })
    }

    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            query.check()?;
            let sql = inactive_sql(DIALECT, query);
            let rows = bind_inactive(&sql, query).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| self.failure(error))?;
            Ok(page(rows, query.page_size(), |row| row.3))
        })
    }

    fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query(DELETE).bind(id).execute(&self.writer).await;
            done.map(|done| done.rows_affected() > 0).map_err(|error| self.failure(error))
        })
    }

    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query(DELETE_UNCHANGED)
                .bind(&record.id)
                .bind(signed(record.revision))
                .bind(signed(record.last_index))
                .execute(&self.writer)
                .await;
            done.map(|done| done.rows_affected() > 0).map_err(|error| self.failure(error))
        })
    }

    fn suspend_active(&self, now: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            check_moment("the moment of a shutdown", now)?;
            let done = sqlx::query(SUSPEND).bind(signed(now.as_millis())).execute(&self.writer).await;
            done.map(|done| done.rows_affected()).map_err(|error| self.failure(error))
        })
    }

    fn import(
        &self,
        record: SessionRecord,
        events: Vec<NewEvent>,
    ) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        Box::pin(async move {
            check_import(&record, &events)?;
            self.insert(record, &events).await
        })
    }

    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<u64>, StoreError>> {
        Box::pin(async move { self.write(&events).await })
    }

    fn events<'a>(&'a self, query: &'a EventQuery) -> BoxFuture<'a, Result<EventPage, StoreError>> {
        Box::pin(async move {
            let rows: Vec<EventRow<Bytes>> = sqlx::query_as(SELECT_EVENTS)
                .bind(&query.session_id)
                .bind(signed(query.after))
                .bind(signed(query.page_size() as u64 + 1))
                .fetch_all(&self.readers)
                .await
                .map_err(|error| self.failure(error))?;
            let read = rows.into_iter().map(|row| event(&query.session_id, row));
            Ok(EventPage::of(read.collect(), query.page_size()))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.readers.close().await;
            self.writer.close().await;
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}
