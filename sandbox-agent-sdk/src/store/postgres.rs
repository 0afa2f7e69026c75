//! A store in a database that several programs share.

use std::collections::BTreeMap;
use std::fmt;

use futures::future::BoxFuture;
use sqlx::postgres::{PgArguments, PgPool};
use sqlx::query::{Query, QueryAs};
use sqlx::{PgConnection, Postgres};

use super::rows::{
    COLUMNS, Dialect, EventRow, SessionRow, by_session, count_sql, document, event, failure, inactive_sql,
    list_sql, payload, place, record, signed, unsigned,
};
use super::{
    EventPage, EventQuery, InactiveQuery, NewEvent, RecordPage, RecordQuery, SessionRecord, SessionStore,
    StoreError,
};

mod options;
mod schema;

pub use options::{PostgresOptions, PostgresTls};

const DIALECT: Dialect = Dialect { mark: '$', sessions: "sandbox_agent_sessions" };

/// A store in a PostgreSQL database, which any number of programs on any number of machines may share.
///
/// Its tables are made when it is opened, and their names begin with `sandbox_agent_`. A schema of their own is chosen
/// with the search path of the connection, for instance by `?options=-csearch_path%3Dagents` in the URL.
pub struct PostgresStore {
    pool: PgPool,
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
        let pool = options.connect().await?;
        if let Err(error) = schema::migrate(&pool).await {
            pool.close().await;
            return Err(error);
        }
        Ok(Self { pool })
    }

    async fn insert(&self, mut kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        (kept.revision, kept.last_index) = (1, 0);
        let insert = "INSERT INTO sandbox_agent_sessions \
                      (id, agent, status, created_at, last_active, last_index, revision, document) \
                      VALUES ($1, $2, $3, $4, $5, 0, 1, $6) ON CONFLICT (id) DO NOTHING";
        let done = sqlx::query(insert)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.created_at.as_millis()))
            .bind(signed(kept.last_active.as_millis()))
            .bind(document(&kept)?)
            .execute(&self.pool)
            .await
            .map_err(failure)?;
        if done.rows_affected() == 0 { Err(StoreError::Exists { id: kept.id }) } else { Ok(kept) }
    }

    async fn replace(&self, kept: SessionRecord) -> Result<SessionRecord, StoreError> {
        let update = format!(
            "UPDATE sandbox_agent_sessions SET agent = $2, status = $3, \
             last_active = GREATEST(last_active, $4), revision = revision + 1, document = $5 \
             WHERE id = $1 AND revision = $6 RETURNING {COLUMNS}"
        );
        let row: Option<SessionRow> = sqlx::query_as(&update)
            .bind(&kept.id)
            .bind(&kept.agent)
            .bind(kept.status.as_str())
            .bind(signed(kept.last_active.as_millis()))
            .bind(document(&kept)?)
            .bind(signed(kept.revision))
            .fetch_optional(&self.pool)
            .await
            .map_err(failure)?;
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
        let mut transaction = self.pool.begin().await.map_err(failure)?;
        let mut before = BTreeMap::new();
        for (id, (count, latest)) in by_session(events) {
            // The row is locked until the end of the transaction: whoever else writes to the session comes later.
            let advance = "UPDATE sandbox_agent_sessions SET last_index = last_index + $2, \
                           last_active = GREATEST(last_active, $3) WHERE id = $1 RETURNING last_index";
            let row: Option<(i64,)> = sqlx::query_as(advance)
                .bind(id)
                .bind(signed(count))
                .bind(signed(latest.as_millis()))
                .fetch_optional(&mut *transaction)
                .await
                .map_err(failure)?;
            let (last,) = row.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?;
            before.insert(id.to_owned(), unsigned(last).saturating_sub(count));
        }
        let indexes = place(events, before);
        insert_events(&mut transaction, events, &indexes).await?;
        transaction.commit().await.map_err(failure)?;
        Ok(indexes)
    }
}

async fn insert_events(
    connection: &mut PgConnection,
    events: &[NewEvent],
    indexes: &[u64],
) -> Result<(), StoreError> {
    let insert = "INSERT INTO sandbox_agent_events (session_id, position, id, recorded_at, kind, payload) \
                  SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[])";
    let text = |of: fn(&NewEvent) -> &str| events.iter().map(of).collect::<Vec<_>>();
    let moments: Vec<i64> = events.iter().map(|event| signed(event.recorded_at.as_millis())).collect();
    sqlx::query(insert)
        .bind(text(|event| &event.session_id))
        .bind(indexes.iter().copied().map(signed).collect::<Vec<i64>>())
        .bind(text(|event| &event.id))
        .bind(moments)
        .bind(text(|event| event.kind.as_str()))
        .bind(events.iter().map(payload).collect::<Result<Vec<String>, _>>()?)
        .execute(connection)
        .await
        .map_err(failure)?;
    Ok(())
}

/// Gives the query for a page of sessions its parameters.
fn bind_list<'q>(sql: &'q str, query: &'q RecordQuery) -> QueryAs<'q, Postgres, SessionRow, PgArguments> {
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
) -> QueryAs<'q, Postgres, SessionRow, PgArguments> {
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
            if record.revision == 0 { self.insert(record).await } else { self.replace(record).await }
        })
    }

    fn get<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<SessionRecord>, StoreError>> {
        Box::pin(async move {
            // No id has it, and the database takes no such text.
            if id.contains('\0') {
                return Ok(None);
            }
            let select = format!("SELECT {COLUMNS} FROM sandbox_agent_sessions WHERE id = $1");
            let row = sqlx::query_as(&select).bind(id).fetch_optional(&self.pool).await;
            row.map_err(failure)?.map(record).transpose()
        })
    }

    fn list<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            if query.statuses.is_empty() || query.agent.as_ref().is_some_and(|agent| agent.contains('\0')) {
                return Ok(RecordPage { records: Vec::new(), next: None });
            }
            let sql = list_sql(DIALECT, query);
            let rows = bind_list(&sql, query).fetch_all(&self.pool).await.map_err(failure)?;
            let found = rows.into_iter().map(record).collect::<Result<_, _>>()?;
            Ok(RecordPage::of(found, query.page_size(), |record| record.created_at))
        })
    }

    fn count<'a>(&'a self, query: &'a RecordQuery) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(async move {
            use sqlx::Row as _;
            if query.statuses.is_empty() || query.agent.as_ref().is_some_and(|agent| agent.contains('\0')) {
                return Ok(0);
            }
            let sql = count_sql(DIALECT, query);
            let row = bind_count(&sql, query).fetch_one(&self.pool).await;
            row.and_then(|row| row.try_get::<i64, _>(0)).map(unsigned).map_err(failure)
        })
    }

    fn inactive<'a>(&'a self, query: &'a InactiveQuery) -> BoxFuture<'a, Result<RecordPage, StoreError>> {
        Box::pin(async move {
            let sql = inactive_sql(DIALECT, query);
            let rows = bind_inactive(&sql, query).fetch_all(&self.pool).await.map_err(failure)?;
            let found = rows.into_iter().map(record).collect::<Result<_, _>>()?;
            Ok(RecordPage::of(found, query.page_size(), |record| record.last_active))
        })
    }

    fn delete<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            if id.contains('\0') {
                return Ok(false);
            }
            let delete = "DELETE FROM sandbox_agent_sessions WHERE id = $1";
            let done = sqlx::query(delete).bind(id).execute(&self.pool).await.map_err(failure)?;
            Ok(done.rows_affected() > 0)
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
            let rows: Vec<EventRow> = sqlx::query_as(select)
                .bind(&query.session_id)
                .bind(signed(query.after))
                .bind(signed(query.page_size() as u64 + 1))
                .fetch_all(&self.pool)
                .await
                .map_err(failure)?;
            let read = rows.into_iter().map(|row| event(&query.session_id, row));
            Ok(EventPage::of(read.collect::<Result<_, _>>()?, query.page_size()))
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
