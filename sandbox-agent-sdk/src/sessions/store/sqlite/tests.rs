use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::Row as _;

use super::super::rows::update_session_sql;
use super::sql::events::events_sql;
use super::sql::records::{count_sql, list_sql};
use super::{SqliteOptions, SqliteStore, SqliteSync};
use crate::session::Timestamp;
use crate::sessions::status::{ArchivedSessions, SessionStatus};
use crate::sessions::store::{
    Append, Cursor, EventQuery, NewEvent, RecordQuery, SessionRecord, SessionStore, StoredEventKind,
};

async fn store() -> (tempfile::TempDir, SqliteStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("sessions.db")).await.unwrap();
    (directory, store)
}

/// Every step of every plan walks along an index; only the few rows of pages are sorted.
#[tokio::test]
async fn every_query_walks_along_an_index() {
    let (_directory, store) = store().await;
    let cursor = Cursor::after(Timestamp::from_millis(5), "x");
    let mut statements = Vec::new();
    for base in [RecordQuery::all(), RecordQuery::listed(ArchivedSessions::Hidden)] {
        for query in [
            base.clone(),
            base.clone().agent("a"),
            base.clone().user_key("u"),
            base.clone().endpoint("e"),
            base.owner("o"),
        ] {
            statements.push(count_sql(&query).into_sql());
            statements.push(list_sql(&query).into_sql());
            statements.push(list_sql(&query.after(cursor.clone())).into_sql());
        }
    }
    let inactive = RecordQuery::counted().inactive_before(Timestamp::from_millis(9));
    statements.extend([list_sql(&inactive).into_sql(), list_sql(&inactive.after(cursor)).into_sql()]);
    let events = EventQuery::of("s").after(5);
    let newest = events.clone().newest_first().kinds([StoredEventKind::Prompt]);
    statements.extend([
        events_sql("*", &events, 10).into_sql(),
        events_sql("*", &newest, 10).into_sql(),
        update_session_sql(),
    ]);
    for statement in [
        "SELECT * FROM sandbox_agent_events WHERE session_id = $1 AND is_open = 1 ORDER BY position",
        "SELECT position FROM sandbox_agent_events WHERE session_id = $1 AND id = $2 AND id <> ''",
        "SELECT position FROM sandbox_agent_events WHERE session_id = $1 AND incarnation = $2 AND stream_offset = $3",
        "SELECT * FROM sandbox_agent_sessions WHERE agent_session_id = $1 AND endpoint = $2 AND incarnation = $3",
        "SELECT 1 FROM sandbox_agent_sessions WHERE owner = $1 AND endpoint = $2",
        "SELECT id FROM sandbox_agent_sessions WHERE status = 'active' AND owner = $2 ORDER BY id",
        "DELETE FROM sandbox_agent_sessions WHERE id = $1",
    ] {
        statements.push(statement.to_owned());
    }
    for sql in statements {
        // A plan does not depend on the values of parameters, so that they are left out.
        let plan = format!("EXPLAIN QUERY PLAN {sql}");
        let rows = sqlx::query(&plan).fetch_all(&store.reading).await.unwrap();
        let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        assert!(steps.iter().any(|step| step.contains("sandbox_agent_")), "{sql}\n{steps:#?}");
        for step in &steps {
            assert!(!step.starts_with("SCAN sandbox_agent_"), "{sql}\n{steps:#?}");
            assert!(
                !step.starts_with("SEARCH sandbox_agent_") || step.contains("USING"),
                "{sql}\n{steps:#?}"
            );
        }
        // Within a status no rows are sorted, because the index has them in order: only those of the pages are.
        let is_page = sql.contains("AS page0");
        for pair in steps.windows(2).filter(|_| is_page) {
            let sorted = pair[0].starts_with("SEARCH") && pair[1].contains("TEMP B-TREE");
            assert!(!sorted, "{sql}\n{steps:#?}");
        }
    }
}

/// How many hundreds of steps the database takes for the pages of a list, one after the other.
async fn steps(store: &SqliteStore, mut query: RecordQuery, pages: usize) -> usize {
    let counted = Arc::new(AtomicUsize::new(0));
    let mut connection = store.reading.acquire().await.unwrap();
    let counting = Arc::clone(&counted);
    connection.lock_handle().await.unwrap().set_progress_handler(100, move || {
        counting.fetch_add(1, Ordering::Relaxed);
        true
    });
    for _ in 0..pages {
        let rows = list_sql(&query).build().fetch_all(&mut *connection).await.unwrap();
        let last = &rows[query.page_size() - 1];
        let created_at: i64 = last.get("created_at");
        query = query
            .after(Cursor::after(Timestamp::from_millis(created_at as u64), last.get::<String, _>("id")));
    }
    connection.lock_handle().await.unwrap().remove_progress_handler();
    counted.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_page_of_a_hundred_thousand_sessions_takes_no_more_steps_than_one_of_a_few_hundred() {
    let (_directory, store) = store().await;
    let fill = async |from: u64, to: u64| {
        // Directly: a transaction for each would take long.
        let insert = format!(
            "WITH RECURSIVE n(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {to}) \
             INSERT INTO sandbox_agent_sessions \
             (id, agent, status, created_at, last_active_at, last_index, revision, document, user_key) \
             SELECT 'session-' || n, 'agent-' || (n % 2), \
             CASE n % 4 WHEN 0 THEN 'suspended' WHEN 1 THEN 'archived' ELSE 'active' END, n / 3, n, 0, 1, '{{}}', \
             'user-' || (n % 2) FROM n"
        );
        sqlx::raw_sql(&insert).execute(&store.writing).await.unwrap();
    };
    let queries = [
        RecordQuery::default(),
        RecordQuery::all(),
        RecordQuery::all().agent("agent-1"),
        RecordQuery::all().user_key("user-1"),
        RecordQuery::default().statuses([SessionStatus::Archived]).agent("agent-1"),
    ]
    .map(|query| query.limit(25));
    fill(0, 800).await;
    let mut few = Vec::new();
    for query in &queries {
        few.push(steps(&store, query.clone(), 3).await);
    }
    fill(800, 100_000).await;
    // From the newest, and from the middle.
    let middle = Cursor::after(Timestamp::from_millis(16_666), "session-50000");
    for (query, few) in queries.iter().zip(few) {
        for query in [query.clone(), query.clone().after(middle.clone())] {
            let many = steps(&store, query.clone(), 3).await;
            assert!(many <= few + few / 2 + 5, "{query:?}: {few} and {many} hundred steps");
        }
    }
}

async fn pragma(store: &SqliteStore, name: &str) -> i64 {
    let (value,) = sqlx::query_as(&format!("PRAGMA {name}")).fetch_one(&store.writing).await.unwrap();
    value
}

#[tokio::test]
async fn a_write_waits_for_the_chosen_synchronisation() {
    for (sync, expected) in [(SqliteSync::Full, 2), (SqliteSync::Normal, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteOptions::default().sync(sync);
        let store = SqliteStore::open_with(directory.path().join("sessions.db"), options).await.unwrap();
        assert_eq!(
            (pragma(&store, "synchronous").await, pragma(&store, "foreign_keys").await),
            (expected, 1)
        );
    }
    assert_eq!(SqliteOptions::default().sync, SqliteSync::Full, "a loss of power loses nothing by default");
}

async fn create(store: &SqliteStore, id: &str) {
    let record = SessionRecord::new(id, "mock", Timestamp::from_millis(1));
    store.create(record, Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_retryable_and_fails_an_append_as_a_whole() {
    let (_directory, store) = store().await;
    create(&store, "s").await;
    let pages = pragma(&store, "page_count").await;
    let large = || {
        let event =
            |n: u64| NewEvent::new(format!("e{n}"), Timestamp::from_millis(n), "update", "x".repeat(1 << 16));
        Append::to("s").events((0..8).map(event))
    };
    assert_eq!(pragma(&store, &format!("max_page_count = {}", pages + 20)).await, pages + 20);
    let error = store.append(large()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, 0, "nothing of it was stored");
    assert_eq!(pragma(&store, &format!("max_page_count = {}", pages + 2000)).await, pages + 2000);
    assert_eq!(store.append(large()).await.unwrap().indexes, (1..=8).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_append_that_the_database_refuses_fails_alone() {
    let (_directory, store) = store().await;
    for id in ["a", "b"] {
        create(&store, id).await;
    }
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON sandbox_agent_events WHEN NEW.session_id = 'b' \
                  BEGIN SELECT RAISE(ABORT, 'no'); END";
    sqlx::raw_sql(refuse).execute(&store.writing).await.unwrap();
    let append = |id: &str, n: u64| {
        store.append(Append::to(id).events([NewEvent::new(
            format!("{n}"),
            Timestamp::from_millis(1),
            "update",
            n,
        )]))
    };
    // While the only connection for writing is taken, all of them wait, and are one transaction then.
    let taken = store.writing.acquire().await.unwrap();
    let mut waiting = std::pin::pin!(futures::future::join_all([
        append("a", 1),
        append("b", 2),
        append("a", 3),
        append("gone", 4)
    ]));
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    drop(taken);
    let results = waiting.await;
    assert_eq!(results[0].as_ref().unwrap().indexes, [1]);
    assert!(results[1].is_err() && results[3].is_err());
    assert_eq!(results[2].as_ref().unwrap().indexes, [2]);
}
