//! A store in a database that several programs share.

use std::fmt;
use std::time::Duration;

use futures::future::BoxFuture;
use sqlx::postgres::{PgArguments, PgPool};
use sqlx::query::{Query, QueryAs};
use sqlx::{Connection as _, PgConnection, Postgres};

use self::lent::{Lent, Watch};
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

mod lent;
mod options;
mod schema;

pub use options::{PostgresOptions, PostgresTls};

const DIALECT: Dialect = Dialect { mark: '$', sessions: "sandbox_agent_sessions" };
/// How many events of a transcript are sent at once: a message to the database has a gigabyte at most.
const MAX_ROWS: usize = 1000;

/// A store in a PostgreSQL database, which any number of programs on any number of machines may share.
///
/// Its tables are made when it is opened, and their names begin with `sandbox_agent_`. A schema of their own is chosen
/// with the search path of the connection, for instance by `?options=-csearch_path%3Dagents` in the URL.
pub struct PostgresStore {
    pool: PgPool,
    /// How long an answer of the database is waited for.
    limit: Option<Duration>,
}

impl PostgresStore {
    /// Opens the store in the database at this URL: `postgres://user:password@host/database`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if the database cannot be reached, [`StoreError::NewerSchema`] if a newer version of
    /// this library wrote it, [`StoreError::Invalid`] if this is no such URL.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        Self::open_with(PostgresOptions::new(url)).await
    }

    /// Opens the store with these options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(options: PostgresOptions) -> Result<Self, StoreError> {
        let store = Self { pool: options.connect().await?, limit: options.answer_limit() };
        let migrated = match store.lend().await {
            Ok(mut lent) => schema::migrate(&mut lent).await,
            Err(error) => Err(error),
        };
        if let Err(error) = migrated {
            store.pool.close().await;
            return Err(error);
        }
        Ok(store)
    }

    /// A connection for one call.
    async fn lend(&self) -> Result<Lent, StoreError> {
        Lent::of(&self.pool, self.limit).await
    }

    /// Writes a new record, and what happened in the session.
    async fn insert(&self, record: SessionRecord, events: &[NewEvent]) -> Result<SessionRecord, StoreError> {
        let kept = new_record(record, events);
        let mut lent = self.lend().await?;
        let (connection, watch) = lent.parts();
        let mut transaction = watch.step(connection.begin()).await?;
        let insert = sqlx::query(INSERT_SESSION)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.created_at.as_millis()))
            .bind(signed(kept.last_active.as_millis()))
            .bind(signed(kept.last_index))
            .bind(document(&kept)?);
        if watch.step(insert.execute(&mut *transaction)).await?.rows_affected() == 0 {
            return Err(StoreError::Exists { id: kept.id });
        }
        let placed: Vec<(&NewEvent, u64)> = events.iter().zip(1..).collect();
        for placed in placed.chunks(MAX_ROWS) {
            insert_events(&mut transaction, watch, placed).await?;
        }
        watch.step(transaction.commit()).await?;
        Ok(kept)
    }

    async fn replace(&self, kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        let update = format!(
            "UPDATE sandbox_agent_sessions SET agent = $2, status = $3, \
             last_active = GREATEST(last_active, $4), revision = revision + 1, document = $5 \
             WHERE id = $1 AND revision = $6 RETURNING {COLUMNS}"
        );
        let update = sqlx::query_as(&update)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.last_active.as_millis()))
            .bind(document(&kept)?)
            .bind(signed(kept.revision));
        let mut lent = self.lend().await?;
        let (connection, watch) = lent.parts();
        let row: Option<SessionRow<String>> = watch.step(update.fetch_optional(connection)).await?;
        drop(lent);
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
        let mut lent = self.lend().await?;
        let (connection, watch) = lent.parts();
        let mut transaction = watch.step(connection.begin()).await?;
        // The rows are locked until the end of the transaction: whoever else writes to the sessions comes later.
        let named: Vec<&str> = sessions(events).into_iter().collect();
        let lock = sqlx::query_as(LOCK_HEADS).bind(named);
        let rows: Vec<(String, i64, i64, String)> = watch.step(lock.fetch_all(&mut *transaction)).await?;
        let heads = rows.into_iter().map(Head::of_row).collect();
        let present = present(&mut transaction, watch, events).await?;
        let placed = place(events, &heads, &present)?;
        insert_events(&mut transaction, watch, &placed.fresh).await?;
        let update = sqlx::query(UPDATE_HEADS)
            .bind(placed.heads.keys().copied().collect::<Vec<&str>>())
            .bind(placed.heads.values().map(|(last, _)| signed(*last)).collect::<Vec<i64>>())
            .bind(placed.heads.values().map(|(_, at)| signed(at.as_millis())).collect::<Vec<i64>>());
        watch.step(update.execute(&mut *transaction)).await?;
        watch.step(transaction.commit()).await?;
        Ok(placed.indexes)
    }
}

const INSERT_SESSION: &str = "INSERT INTO sandbox_agent_sessions \
                              (id, agent, status, created_at, last_active, last_index, revision, document) \
                              VALUES ($1, $2, $3, $4, $5, $6, 1, $7) ON CONFLICT (id) DO NOTHING";
/// In one order for all writers, so that no two wait for each other.
const LOCK_HEADS: &str = "SELECT id, last_index, created_at, document FROM sandbox_agent_sessions WHERE id = ANY($1) \
                          ORDER BY id FOR UPDATE";
const UPDATE_HEADS: &str = "UPDATE sandbox_agent_sessions AS kept SET last_index = head.last_index, \
                            last_active = GREATEST(kept.last_active, head.last_active) \
                            FROM UNNEST($1::text[], $2::bigint[], $3::bigint[]) \
                            AS head (id, last_index, last_active) WHERE kept.id = head.id";
const SELECT_PRESENT: &str = "SELECT session_id, id, position FROM sandbox_agent_events \
                              WHERE (session_id, id) IN (SELECT * FROM UNNEST($1::text[], $2::text[]))";
const INSERT_EVENTS: &str = "INSERT INTO sandbox_agent_events \
                             (session_id, position, id, recorded_at, kind, payload) SELECT * FROM \
                             UNNEST($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[])";
/// In one order as well. The database has no function that changes a member of a document and leaves everything else as
/// it is, down to the numbers and the NUL characters. So the members are found by their places, first and last, in a
/// document as it is written here. One that somebody spoilt stays as it is, and what the columns say counts in any case.
const SUSPEND: &str = r#"WITH active AS
    (SELECT id FROM sandbox_agent_sessions WHERE status = 'active' ORDER BY id FOR UPDATE)
    UPDATE sandbox_agent_sessions AS kept SET status = 'suspended', last_active = GREATEST(kept.last_active, $1),
    revision = kept.revision + 1, document = regexp_replace(
        regexp_replace(kept.document,
            '^(\{"id":"(?:[^"\\]|\\.)*","agent":"(?:[^"\\]|\\.)*","status":")[a-z]*"', '\1suspended"'),
        '"lastActive":[0-9]+(,"lastIndex":[0-9]+,"revision":[0-9]+\})$',
        '"lastActive":' || GREATEST(kept.last_active, $1) || '\1')
    FROM active WHERE kept.id = active.id"#;

/// Which of these events are there already. The locks of their sessions are held, so this does not change.
async fn present(
    connection: &mut PgConnection,
    watch: &Watch,
    events: &[NewEvent],
) -> Result<Present, StoreError> {
    let select = sqlx::query_as(SELECT_PRESENT)
        .bind(events.iter().map(|event| event.session_id.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|event| event.id.as_str()).collect::<Vec<_>>());
    let rows: Vec<(String, String, i64)> = watch.step(select.fetch_all(connection)).await?;
    Ok(rows.into_iter().map(|(session, id, position)| ((session, id), unsigned(position))).collect())
}

async fn insert_events(
    connection: &mut PgConnection,
    watch: &Watch,
    events: &[(&NewEvent, u64)],
) -> Result<(), StoreError> {
    let text = |of: fn(&NewEvent) -> &str| events.iter().map(|(event, _)| of(event)).collect::<Vec<_>>();
    let moments: Vec<i64> = events.iter().map(|(event, _)| signed(event.recorded_at.as_millis())).collect();
    let insert = sqlx::query(INSERT_EVENTS)
        .bind(text(|event| &event.session_id))
        .bind(events.iter().map(|(_, index)| signed(*index)).collect::<Vec<i64>>())
        .bind(text(|event| &event.id))
        .bind(moments)
        .bind(text(|event| event.kind.as_str()))
        .bind(events.iter().map(|(event, _)| payload(event)).collect::<Result<Vec<String>, _>>()?);
    watch.step(insert.execute(connection)).await.map(drop)
}

/// Gives the query for a page of sessions its parameters.
fn bind_list<'q>(
    sql: &'q str,
    query: &'q RecordQuery,
) -> QueryAs<'q, Postgres, SessionRow<String>, PgArguments> {
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
fn bind_count<'q>(sql: &'q str, query: &'q RecordQuery) -> Query<'q, Postgres, PgArguments> {
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
) -> QueryAs<'q, Postgres, SessionRow<String>, PgArguments> {
    let bound = sqlx::query_as(sql)
        .bind(signed(query.page_size() as u64 + 1))
        .bind(query.status.as_str())
        .bind(signed(query.before.as_millis()));
    match &query.cursor {
        Some(cursor) => bound.bind(signed(cursor.at.as_millis())).bind(cursor.id.as_str()),
        None => bound,
    }
}

impl SessionStore for PostgresStore {
    fn put(&self, record: SessionRecord) -> BoxFuture<'_, Result<SessionRecord, StoreError>> {
        Box::pin(async move {
            record.check()?;
            if record.revision == 0 { self.insert(record, &[]).await } else { self.replace(record).await }
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<SessionRecord>, StoreError>> {
        Box::pin(async move {
            // No id has it, and the database takes no such text.
            if id.contains('\0') {
                return Ok(None);
            }
            let select = format!("SELECT {COLUMNS} FROM sandbox_agent_sessions WHERE id = $1");
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let select = sqlx::query_as(&select).bind(id);
            let row: Option<SessionRow<String>> = watch.step(select.fetch_optional(connection)).await?;
            row.map(record).transpose()
        })
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            query.check()?;
            if query.is_vain() {
                return Ok(RecordPage::default());
            }
            let sql = list_sql(DIALECT, query);
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let rows = watch.step(bind_list(&sql, query).fetch_all(connection)).await?;
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
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let row = watch.step(bind_count(&sql, query).fetch_one(connection)).await?;
            row.try_get::<i64, _>(0).map(unsigned).map_err(StoreError::database)
        })
    }

    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            query.check()?;
            let sql = inactive_sql(DIALECT, query);
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let rows = watch.step(bind_inactive(&sql, query).fetch_all(connection)).await?;
            Ok(page(rows, query.page_size(), |row| row.3))
        })
    }

    fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            if id.contains('\0') {
                return Ok(false);
            }
            let delete = "DELETE FROM sandbox_agent_sessions WHERE id = $1";
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let done = watch.step(sqlx::query(delete).bind(id).execute(connection)).await?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn delete_unchanged<'a>(&'a self, record: &'a SessionRecord) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let delete =
                "DELETE FROM sandbox_agent_sessions WHERE id = $1 AND revision = $2 AND last_index = $3";
            let delete = sqlx::query(delete)
                .bind(&record.id)
                .bind(signed(record.revision))
                .bind(signed(record.last_index));
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            Ok(watch.step(delete.execute(connection)).await?.rows_affected() > 0)
        })
    }

    fn suspend_active(&self, now: Timestamp) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            check_moment("the moment of a shutdown", now)?;
            let suspend = sqlx::query(SUSPEND).bind(signed(now.as_millis()));
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            Ok(watch.step(suspend.execute(connection)).await?.rows_affected())
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
            if query.session_id.contains('\0') {
                return Ok(EventPage::of(Vec::new(), query.page_size()));
            }
            let select = "SELECT position, id, recorded_at, kind, payload FROM sandbox_agent_events \
                          WHERE session_id = $1 AND position > $2 ORDER BY position LIMIT $3";
            let select = sqlx::query_as(select)
                .bind(&query.session_id)
                .bind(signed(query.after))
                .bind(signed(query.page_size() as u64 + 1));
            let mut lent = self.lend().await?;
            let (connection, watch) = lent.parts();
            let rows: Vec<EventRow<String>> = watch.step(select.fetch_all(connection)).await?;
            let read = rows.into_iter().map(|row| event(&query.session_id, row));
            Ok(EventPage::of(read.collect(), query.page_size()))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.pool.close())
    }
}

/// The URL may hold a password, and is left out.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("connections", &self.pool.size()).finish_non_exhaustive()
    }
}
