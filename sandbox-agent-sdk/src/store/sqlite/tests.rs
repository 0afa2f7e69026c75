use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::Row as _;

use super::{
    DELETE, DIALECT, SELECT_EVENTS, SELECT_HEADS, SELECT_PRESENT, SUSPEND, SqliteStore, UPDATE_HEADS,
    bind_count, bind_list, count_sql, inactive_sql, list_sql, replace_sql, select_sql,
};
use crate::session::Timestamp;
use crate::sessions::{ArchivedSessions, SessionStatus};
use crate::store::{
    Cursor, InactiveQuery, NewEvent, RecordQuery, SessionRecord, SessionStore, SqliteOptions, SqliteSync,
};

async fn store() -> (tempfile::TempDir, SqliteStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("sessions.db")).await.unwrap();
    (directory, store)
}

/// Every step of every plan must walk along an index; only the few rows of the pages are put in order.
#[tokio::test]
async fn every_query_walks_along_an_index() {
    let (_directory, store) = store().await;
    let cursor = Cursor::behind(Timestamp::from_millis(5), "x");
    let mut plans = Vec::new();
    let mut explain = async |sql: String, rows: Result<Vec<sqlx::sqlite::SqliteRow>, sqlx::Error>| {
        let steps: Vec<String> = rows.unwrap().iter().map(|row| row.get("detail")).collect();
        plans.push((sql, steps));
    };
    for base in [RecordQuery::all(), RecordQuery::listed(ArchivedSessions::Hidden)] {
        for query in [base.clone(), base.clone().agent("mock")] {
            for query in [query.clone(), query.after(cursor.clone())] {
                let sql = format!("EXPLAIN QUERY PLAN {}", list_sql(DIALECT, &query));
                // The tuple of the query is not that of its plan: only the parameters are shared.
                let mut plan = sqlx::query(&sql).bind(10i64);
                let cursor = query.cursor.as_ref();
                plan = plan.bind(cursor.map(|_| 5i64)).bind(cursor.map(|_| "x")).bind(query.agent.as_deref());
                for status in query.distinct_statuses() {
                    plan = plan.bind(status.as_str());
                }
                explain(sql.clone(), plan.fetch_all(&store.readers).await).await;
                let sql = format!("EXPLAIN QUERY PLAN {}", count_sql(DIALECT, &query));
                explain(sql.clone(), bind_count(&sql, &query).fetch_all(&store.readers).await).await;
            }
        }
    }
    let inactive = InactiveQuery::new(SessionStatus::Active, Timestamp::from_millis(9));
    for query in [inactive.clone(), inactive.after(cursor)] {
        let sql = format!("EXPLAIN QUERY PLAN {}", inactive_sql(DIALECT, &query));
        let plan = sqlx::query(&sql).bind(10i64).bind("active").bind(9i64).bind(5i64).bind("x");
        explain(sql.clone(), plan.fetch_all(&store.readers).await).await;
    }
    // A plan does not depend on what the parameters are, so that they need not be given.
    let (select, replace) = (select_sql(), replace_sql());
    let plain = [
        SELECT_EVENTS,
        SELECT_PRESENT,
        SELECT_HEADS,
        UPDATE_HEADS,
        DELETE,
        SUSPEND,
        select.as_str(),
        replace.as_str(),
    ];
    for sql in plain {
        let sql = format!("EXPLAIN QUERY PLAN {sql}");
        explain(sql.clone(), sqlx::query(&sql).fetch_all(&store.readers).await).await;
    }

    assert_eq!(plans.len(), 2 * 2 * 2 * 2 + 2 + plain.len());
    for (sql, steps) in plans {
        let on_table = |table: &str| steps.iter().filter(|step| step.contains(table)).count();
        assert!(on_table(" sessions") + on_table(" events") > 0, "{steps:?}");
        for step in &steps {
            let scans = step.starts_with("SCAN sessions") || step.starts_with("SCAN events");
            assert!(!scans, "{sql}\n{steps:#?}");
            let searches = step.starts_with("SEARCH sessions") || step.starts_with("SEARCH events");
            assert!(!searches || step.contains("USING"), "{sql}\n{steps:#?}");
        }
        // Within a status no rows are put in order, because the index has them so: only those of the pages are.
        for pair in steps.windows(2) {
            let sorted = pair[0].starts_with("SEARCH") && pair[1].contains("TEMP B-TREE");
            assert!(!sorted, "{sql}\n{steps:#?}");
        }
    }
}

/// How many hundreds of steps the database's machine takes for the pages of a list, one after the other.
async fn steps(store: &SqliteStore, mut query: RecordQuery, pages: usize) -> usize {
    let counted = Arc::new(AtomicUsize::new(0));
    let mut connection = store.readers.acquire().await.unwrap();
    let counting = Arc::clone(&counted);
    connection.lock_handle().await.unwrap().set_progress_handler(100, move || {
        counting.fetch_add(1, Ordering::Relaxed);
        true
    });
    for _ in 0..pages {
        let sql = list_sql(DIALECT, &query);
        let rows = bind_list(&sql, &query).fetch_all(&mut *connection).await.unwrap();
        let last = &rows[query.page_size() - 1];
        query = query.after(Cursor::behind(Timestamp::from_millis(last.2 as u64), &last.0));
    }
    connection.lock_handle().await.unwrap().remove_progress_handler();
    counted.load(Ordering::Relaxed)
}

#[tokio::test]
async fn a_page_of_a_hundred_thousand_sessions_takes_no_more_steps_than_one_of_a_few_hundred() {
    let (_directory, store) = store().await;
    let fill = async |from: u64, to: u64| {
        // By the back door: a transaction for each would take long.
        let insert = format!(
            "WITH RECURSIVE n(n) AS (SELECT {from} UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {to}) \
             INSERT INTO sessions SELECT 'session-' || n, 'agent-' || (n % 2), \
             CASE n % 4 WHEN 0 THEN 'suspended' WHEN 1 THEN 'archived' ELSE 'active' END, n / 3, n, 0, 1, '{{}}' FROM n"
        );
        sqlx::raw_sql(&insert).execute(&store.writer).await.unwrap();
    };
    let queries = [
        RecordQuery::default(),
        RecordQuery::all(),
        RecordQuery::all().agent("agent-1"),
        RecordQuery::default().statuses([SessionStatus::Archived]).agent("agent-1"),
    ]
    .map(|query| query.limit(25));
    fill(0, 800).await;
    let mut few = Vec::new();
    for query in &queries {
        few.push(steps(&store, query.clone(), 3).await);
    }
    fill(800, 100_000).await;
    // From the newest on, and from the middle of all.
    let middle = Cursor::behind(Timestamp::from_millis(16_666), "session-50000");
    for (query, few) in queries.iter().zip(few) {
        for query in [query.clone(), query.clone().after(middle.clone())] {
            let many = steps(&store, query.clone(), 3).await;
            assert!(many <= few + few / 2 + 5, "{query:?}: {few} and {many} hundred steps");
        }
    }
}

async fn pragma(store: &SqliteStore, name: &str) -> i64 {
    let (value,) = sqlx::query_as(&format!("PRAGMA {name}")).fetch_one(&store.writer).await.unwrap();
    value
}

#[tokio::test]
async fn a_write_waits_for_what_was_asked_for() {
    for (sync, expected) in [(SqliteSync::Full, 2), (SqliteSync::Normal, 1)] {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteOptions::default().sync(sync);
        let store = SqliteStore::open_with(directory.path().join("sessions.db"), options).await.unwrap();
        assert_eq!(
            (pragma(&store, "synchronous").await, pragma(&store, "foreign_keys").await),
            (expected, 1)
        );
    }
    assert_eq!(
        SqliteOptions::default().sync,
        SqliteSync::Full,
        "the default loses nothing to a loss of power"
    );
}

#[tokio::test]
async fn a_full_disk_is_no_reason_to_give_up_at_once() {
    let (_directory, store) = store().await;
    store.put(SessionRecord::new("s", "mock", Timestamp::from_millis(1))).await.unwrap();
    let pages = pragma(&store, "page_count").await;
    let large = || {
        let event = |n: u64| {
            NewEvent::new(format!("e{n}"), "s", Timestamp::from_millis(n), "update", "x".repeat(1 << 16))
        };
        (0..8).map(event).collect::<Vec<_>>()
    };
    assert_eq!(pragma(&store, &format!("max_page_count = {}", pages + 20)).await, pages + 20);
    let error = store.append(large()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, 0, "nothing of it was written");
    assert_eq!(pragma(&store, &format!("max_page_count = {}", pages + 2000)).await, pages + 2000);
    assert_eq!(store.append(large()).await.unwrap(), (1..=8).collect::<Vec<_>>());
}
