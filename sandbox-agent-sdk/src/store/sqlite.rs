//! A store in one file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use futures::future::BoxFuture;
use sqlx::query::{Query, QueryAs};
use sqlx::sqlite::{SqliteArguments, SqlitePool};
use sqlx::{Sqlite, SqliteConnection};

use self::open::open;
use super::rows::{
    COLUMNS, Dialect, EventRow, SessionRow, by_session, count_sql, document, event, failure, inactive_sql,
    list_sql, payload, place, record, signed, unsigned,
};
use super::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, SessionStore,
    StoreError,
};

mod open;
mod schema;
#[cfg(test)]
mod tests;

pub use open::{SqliteOptions, SqliteSync};

const DIALECT: Dialect = Dialect { mark: '?', sessions: "sessions" };
/// How many events one statement inserts. Statements of this size are prepared once.
const ROWS: usize = 128;

/// A store in one SQLite file, which several tasks and several programs of one machine may use at the same time.
///
/// An acknowledged write is in the file: a program that is killed at any moment loses nothing of it, nor does, with
/// the default [`SqliteSync::Full`], a machine that loses power.
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

    async fn insert(&self, mut kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        (kept.revision, kept.last_index) = (1, 0);
        let insert = "INSERT INTO sessions (id, agent, status, created_at, last_active, last_index, revision, document) \
                      VALUES (?1, ?2, ?3, ?4, ?5, 0, 1, ?6) ON CONFLICT (id) DO NOTHING";
        let done = sqlx::query(insert)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.created_at.as_millis()))
            .bind(signed(kept.last_active.as_millis()))
            .bind(document(&kept)?)
            .execute(&self.writer)
            .await
            .map_err(|error| self.failure(error))?;
        if done.rows_affected() == 0 { Err(StoreError::Exists { id: kept.id }) } else { Ok(kept) }
    }

    async fn replace(&self, kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        let update = format!(
            "UPDATE sessions SET agent = ?2, status = ?3, last_active = max(last_active, ?4), \
             revision = revision + 1, document = ?5 WHERE id = ?1 AND revision = ?6 RETURNING {COLUMNS}"
        );
        let row: Option<SessionRow> = sqlx::query_as(&update)
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
        events.iter().try_for_each(NewEvent::check)?;
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let begun = self.writer.begin_with("BEGIN IMMEDIATE").await;
        let mut transaction = begun.map_err(|error| self.failure(error))?;
        let mut before = BTreeMap::new();
        for (id, (count, latest)) in by_session(events) {
            let advance = "UPDATE sessions SET last_index = last_index + ?2, last_active = max(last_active, ?3) \
                           WHERE id = ?1 RETURNING last_index";
            let row: Option<(i64,)> = sqlx::query_as(advance)
                .bind(id)
                .bind(signed(count))
                .bind(signed(latest.as_millis()))
                .fetch_optional(&mut *transaction)
                .await
                .map_err(|error| self.failure(error))?;
            let (last,) = row.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?;
            before.insert(id.to_owned(), unsigned(last).saturating_sub(count));
        }
        let indexes = place(events, before);
        for (events, indexes) in events.chunks(ROWS).zip(indexes.chunks(ROWS)) {
            insert_events(&mut transaction, events, indexes).await?;
        }
        transaction.commit().await.map_err(|error| self.failure(error))?;
        Ok(indexes)
    }
}

async fn insert_events(
    connection: &mut SqliteConnection,
    events: &[NewEvent],
    indexes: &[u64],
) -> Result<(), StoreError> {
    let mut sql =
        "INSERT INTO events (session_id, position, id, recorded_at, kind, payload) VALUES ".to_owned();
    sql.push_str(&vec!["(?, ?, ?, ?, ?, ?)"; events.len()].join(", "));
    let mut insert = sqlx::query(&sql).persistent(events.len() == ROWS || events.len() == 1);
    for (event, index) in events.iter().zip(indexes) {
        insert = insert
            .bind(&event.session_id)
            .bind(signed(*index))
            .bind(&event.id)
            .bind(signed(event.recorded_at.as_millis()))
            .bind(event.kind.as_str().to_owned())
            .bind(payload(event)?);
    }
    insert.execute(connection).await.map_err(failure)?;
    Ok(())
}

type Parameters<'q> = SqliteArguments<'q>;

/// Gives the query for a page of sessions its parameters.
fn bind_list<'q>(sql: &'q str, query: &'q RecordQuery) -> QueryAs<'q, Sqlite, SessionRow, Parameters<'q>> {
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
) -> QueryAs<'q, Sqlite, SessionRow, Parameters<'q>> {
    let bound = sqlx::query_as(sql)
        .bind(signed(query.page_size() as u64 + 1))
        .bind(query.status.as_str())
        .bind(signed(query.before.as_millis()));
    match &query.cursor {
        Some(cursor) => bound.bind(signed(cursor.at.as_millis())).bind(cursor.id.as_str()),
        None => bound,
    }
}

const SELECT_EVENTS: &str = "SELECT position, id, recorded_at, kind, payload FROM events \
                             WHERE session_id = ?1 AND position > ?2 ORDER BY position LIMIT ?3";

impl SessionStore for SqliteStore {
    fn put(&self, record: SessionRecord) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        Box::pin(async move {
            record.check()?;
            if record.revision == 0 { self.insert(record).await } else { self.replace(record).await }
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<SessionRecord>, StoreError>> {
        Box::pin(async move {
            let select = format!("SELECT {COLUMNS} FROM sessions WHERE id = ?1");
            let row = sqlx::query_as(&select).bind(id).fetch_optional(&self.readers).await;
            row.map_err(|error| self.failure(error))?.map(record).transpose()
        })
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            if query.statuses.is_empty() {
                return Ok(RecordPage { records: Vec::new(), next: None });
            }
            let sql = list_sql(DIALECT, query);
            let rows = bind_list(&sql, query).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| self.failure(error))?;
            let found = rows.into_iter().map(record).collect::<Result<_, _>>()?;
            Ok(RecordPage::of(found, query.page_size(), |record| record.created_at))
        })
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            use sqlx::Row as _;
            if query.statuses.is_empty() {
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
            let sql = inactive_sql(DIALECT, query);
            let rows = bind_inactive(&sql, query).fetch_all(&self.readers).await;
            let rows = rows.map_err(|error| self.failure(error))?;
            let found = rows.into_iter().map(record).collect::<Result<_, _>>()?;
            Ok(RecordPage::of(found, query.page_size(), |record| record.last_active))
        })
    }

    fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query("DELETE FROM sessions WHERE id = ?1").bind(id).execute(&self.writer).await;
            done.map(|done| done.rows_affected() > 0).map_err(|error| self.failure(error))
        })
    }

    fn append(&self, events: Vec<NewEvent>) -> BoxFuture<'_, Result<Vec<u64>, StoreError>> {
        Box::pin(async move { self.write(&events).await })
    }

    fn events<'a>(&'a self, query: &'a EventQuery) -> BoxFuture<'a, Result<EventPage, StoreError>> {
        Box::pin(async move {
            let rows: Vec<EventRow> = sqlx::query_as(SELECT_EVENTS)
                .bind(&query.session_id)
                .bind(signed(query.after))
                .bind(signed(query.page_size() as u64 + 1))
                .fetch_all(&self.readers)
                .await
                .map_err(|error| self.failure(error))?;
            let read = rows.into_iter().map(|row| event(&query.session_id, row));
            Ok(EventPage::of(read.collect::<Result<_, _>>()?, query.page_size()))
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
