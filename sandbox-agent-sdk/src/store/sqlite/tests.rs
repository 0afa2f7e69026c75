use sqlx::Row as _;

use super::{DIALECT, SELECT_EVENTS, SqliteStore, bind_count, bind_inactive, bind_list, count_sql};
use super::{inactive_sql, list_sql};
use crate::store::{Cursor, InactiveQuery, RecordQuery, SessionRecord, SessionStore};
use crate::{ArchivedSessions, SessionStatus, Timestamp};

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
    let sql = format!("EXPLAIN QUERY PLAN {SELECT_EVENTS}");
    let plan = sqlx::query(&sql).bind("a").bind(0i64).bind(9i64);
    explain(sql.clone(), plan.fetch_all(&store.readers).await).await;

    assert_eq!(plans.len(), 2 * 2 * 2 * 2 + 3);
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

#[tokio::test]
async fn a_page_reads_only_what_it_gives() {
    let (_directory, store) = store().await;
    for n in 0..50u64 {
        let mut record = SessionRecord::new(format!("s{n}"), "mock", Timestamp::from_millis(n));
        record.status = SessionStatus::ALL[(n % 4) as usize];
        store.put(record).await.unwrap();
    }
    let query = RecordQuery::all().limit(7);
    let sql = list_sql(DIALECT, &query);
    let rows = bind_list(&sql, &query).fetch_all(&store.readers).await.unwrap();
    assert_eq!(rows.len(), 8, "one more than the page, to know that there is a next one");
    let query = InactiveQuery::new(SessionStatus::Active, Timestamp::from_millis(40)).limit(3);
    let sql = inactive_sql(DIALECT, &query);
    assert_eq!(bind_inactive(&sql, &query).fetch_all(&store.readers).await.unwrap().len(), 4);
}
