//! What a store that programs share promises beyond the others.

use std::process::Command;
use std::time::Duration;

use sandbox_agent_sdk::sessions::{
    Cursor, InactiveQuery, PostgresOptions, PostgresStore, RecordQuery, SessionStatus, SessionStore,
    StoreError, StoredEventKind,
};
use sdk_tests::{Cluster, within};

use crate::support::{
    all_events, all_ids, assert_gap_free, assert_repeats_have_ids_of_their_own, at, event, record,
};
use crate::suspending::{assert_suspended_documents, hard_to_change};

const PROCESS: &str = env!("CARGO_BIN_EXE_store-process");

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_that_write_one_session_never_interleave_or_lose_an_index() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let writers = (0..2).map(|_| {
        let url = schema.url.clone();
        tokio::task::spawn_blocking(move || {
            let done = Command::new(PROCESS).args([&url, "write", "s", "100", "7"]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            let told = String::from_utf8(done.stdout).unwrap();
            told.lines().map(|line| line.parse::<u64>().unwrap()).collect::<Vec<_>>()
        })
    });
    let told = futures::future::try_join_all(writers.collect::<Vec<_>>()).await.unwrap();
    let store = PostgresStore::open(&schema.url).await.unwrap();
    let events = all_events(&store, "s").await;
    assert_eq!(events.len(), 2 * 100 * 7);
    assert_gap_free(&events);
    for batch in events.chunks(7) {
        let same = |member: &str| batch.iter().all(|event| event.payload[member] == batch[0].payload[member]);
        assert!(same("writer") && same("batch"), "two batches interleave: {batch:?}");
    }
    let mut told: Vec<u64> = told.concat();
    told.sort_unstable();
    let expected: Vec<u64> = (1..=200).map(|batch| batch * 7).collect();
    assert_eq!(told, expected, "each writer was told its own indexes");
    store.close().await;
    schema.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_run_once_however_many_open_the_store_at_once() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let processes = (0..4).map(|_| {
        let url = schema.url.clone();
        tokio::task::spawn_blocking(move || {
            let done = Command::new(PROCESS).args([&url, "open"]).output().unwrap();
            assert_eq!(String::from_utf8(done.stdout).unwrap().trim(), "opened");
        })
    });
    let tasks = (0..8).map(|_| {
        let url = schema.url.clone();
        tokio::spawn(async move { PostgresStore::open(&url).await.unwrap().close().await })
    });
    let processes = futures::future::try_join_all(processes.collect::<Vec<_>>());
    let tasks = futures::future::try_join_all(tasks.collect::<Vec<_>>());
    let (processes, tasks) = tokio::join!(processes, tasks);
    processes.unwrap();
    tasks.unwrap();
    let pool = schema.pool().await;
    let applied: Vec<(i64,)> = sqlx::query_as("SELECT version FROM sandbox_agent_schema ORDER BY version")
        .fetch_all(&pool)
        .await
        .unwrap();
    assert_eq!(applied, [(1,), (2,), (3,)]);
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_five_states_become_four() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let store = PostgresStore::open(&schema.url).await.unwrap();
    for id in ["completed", "cancelled", "suspended"] {
        store.put(record(id, 5)).await.unwrap();
    }
    store.close().await;
    let pool = schema.pool().await;
    let old = "UPDATE sandbox_agent_sessions SET status = id; DROP INDEX sandbox_agent_events_by_id; \
               DELETE FROM sandbox_agent_schema WHERE version > 1";
    sqlx::raw_sql(old).execute(&pool).await.unwrap();
    let store = PostgresStore::open(&schema.url).await.unwrap();
    for (status, id) in [
        (SessionStatus::Active, "completed"),
        (SessionStatus::Archived, "cancelled"),
        (SessionStatus::Suspended, "suspended"),
    ] {
        assert_eq!(all_ids(&store, RecordQuery::all().statuses([status])).await, [id]);
    }
    store.close().await;
    sqlx::raw_sql("INSERT INTO sandbox_agent_schema (version) VALUES (9)").execute(&pool).await.unwrap();
    let error = PostgresStore::open(&schema.url).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 9, known: 3 }), "{error:?}");
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn old_tables_with_repeated_events_keep_them_all_at_their_places() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let store = PostgresStore::open(&schema.url).await.unwrap();
    store.put(record("s", 5)).await.unwrap();
    store.append((1..=6).map(|n| event("s", n, n)).collect()).await.unwrap();
    store.close().await;
    let pool = schema.pool().await;
    let old = "DROP INDEX sandbox_agent_events_by_id; UPDATE sandbox_agent_events SET id = position % 2; \
               DELETE FROM sandbox_agent_schema WHERE version > 2";
    sqlx::raw_sql(old).execute(&pool).await.unwrap();
    let store = PostgresStore::open(&schema.url).await.unwrap();
    assert_repeats_have_ids_of_their_own(&store).await;
    // What somebody else spoilt hides nothing else.
    store.put(record("bad", 6)).await.unwrap();
    let spoil = "UPDATE sandbox_agent_events SET payload = '{' WHERE position = 2; \
                 UPDATE sandbox_agent_sessions SET document = '{' WHERE id = 'bad'";
    sqlx::raw_sql(spoil).execute(&pool).await.unwrap();
    let events = all_events(&store, "s").await;
    assert_eq!((events.len(), &events[1].kind), (7, &StoredEventKind::Unreadable));
    let page = store.list(&RecordQuery::all()).await.unwrap();
    assert_eq!((page.records.len(), page.unreadable), (1, vec!["bad".to_owned()]));
    store.close().await;
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn a_document_says_that_its_session_is_suspended_and_is_otherwise_as_it_was() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let store = PostgresStore::open(&schema.url).await.unwrap();
    for id in ["\"\\", "plain", "spoilt"] {
        store.put(hard_to_change(id, SessionStatus::Active)).await.unwrap();
    }
    let pool = schema.pool().await;
    // One was migrated from the time when there were five states.
    let spoil = "UPDATE sandbox_agent_sessions SET document = '{' WHERE id = 'spoilt'; UPDATE sandbox_agent_sessions \
                 SET document = replace(document, ',\"status\":\"active\",', ',\"status\":\"completed\",') \
                 WHERE id = 'plain'";
    sqlx::raw_sql(spoil).execute(&pool).await.unwrap();
    let documents = async || -> Vec<(String, String, i64, String)> {
        let select = "SELECT id, status, last_active, document FROM sandbox_agent_sessions ORDER BY id";
        sqlx::query_as(select).fetch_all(&pool).await.unwrap()
    };
    let before = documents().await;
    assert_eq!(store.suspend_active(at(150)).await.unwrap(), 3, "what is spoilt stops nothing");
    assert_suspended_documents(&before, &documents().await);
    store.close().await;
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn moments_are_the_same_in_every_time_zone() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let zones = ["UTC", "Asia/Kathmandu", "America/St_Johns"];
    for zone in zones {
        let url = format!("{}%20-cTimeZone%3D{zone}", schema.url);
        let store = PostgresStore::open(&url).await.unwrap();
        store.put(record(zone, 1_794_790_579_671)).await.unwrap();
        for written in zones.into_iter().take_while(|written| *written != zone) {
            let read = store.get(written).await.unwrap().unwrap();
            assert_eq!((read.created_at, read.last_active), (at(1_794_790_579_671), at(1_794_790_579_671)));
        }
        store.close().await;
    }
    schema.remove().await;
}

#[tokio::test]
async fn a_pool_that_is_used_up_says_so_in_time() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let options =
        PostgresOptions::new(&schema.url).max_connections(1).acquire_timeout(Duration::from_millis(300));
    let store = PostgresStore::open_with(options).await.unwrap();
    store.put(record("s", 5)).await.unwrap();
    // Somebody else holds the session, so that the only connection waits for it.
    let pool = schema.pool().await;
    let mut holder = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM sandbox_agent_sessions WHERE id = 's' FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let waits = store.append(vec![event("s", 1, 1)]);
    let mut waits = std::pin::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err(), "it waits");
    let error = within("the pool's timeout", store.get("s")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_retryable(), "{error:?}");
    holder.rollback().await.unwrap();
    assert_eq!(within("the writer goes on", waits).await.unwrap(), [1]);
    store.close().await;
    pool.close().await;
    schema.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_is_a_typed_error_in_time() {
    let Some(cluster) = Cluster::start_with(&[], &[]).await else { return };
    let url = cluster.url().to_owned();
    let options = || PostgresOptions::new(&url).acquire_timeout(Duration::from_secs(2));
    let store = PostgresStore::open_with(options()).await.unwrap();
    store.put(record("s", 5)).await.unwrap();
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
    let error = within("an answer", store.append(vec![event("s", 1, 1)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let error = within("an answer", PostgresStore::open_with(options())).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

/// How often the tables were read from one end to the other, and how often along an index. Connections tell when they
/// are closed at the latest.
async fn scans(pool: &sqlx::PgPool) -> (i64, i64) {
    let sums = "SELECT SUM(seq_scan)::bigint, SUM(idx_scan)::bigint FROM pg_stat_user_tables \
                WHERE schemaname = current_schema() AND relname IN ('sandbox_agent_sessions', 'sandbox_agent_events')";
    sqlx::query_as(sums).fetch_one(pool).await.unwrap()
}

/// With reading whole tables made expensive, a query that still does has no index to use.
#[tokio::test]
async fn every_query_has_an_index_to_use() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    PostgresStore::open(&schema.url).await.unwrap().close().await;
    let pool = schema.pool().await;
    // Making the tables and their indexes reads them once.
    let before = stable(async || scans(&pool).await).await;

    let url = format!("{}%20-cenable_seqscan%3Doff", schema.url);
    let store = PostgresStore::open_with(PostgresOptions::new(url).max_connections(1)).await.unwrap();
    for n in 0..20 {
        store.put(record(&format!("s{n}"), n)).await.unwrap();
    }
    let kept = store.get("s3").await.unwrap().unwrap();
    store.put(kept).await.unwrap();
    for _ in 0..2 {
        store.append(vec![event("s1", 1, 1), event("s2", 1, 1)]).await.unwrap();
    }
    store.import(record("i", 5), vec![event("i", 1, 1)]).await.unwrap();
    all_events(&store, "s1").await;
    for query in [RecordQuery::all(), RecordQuery::counted(), RecordQuery::all().agent("mock")] {
        all_ids(&store, query.clone().limit(3)).await;
        store.count(&query).await.unwrap();
    }
    let inactive = InactiveQuery::new(SessionStatus::Active, at(9)).limit(2);
    let page = store.inactive(&inactive).await.unwrap();
    store.inactive(&inactive.after(page.next.unwrap())).await.unwrap();
    store.suspend_active(at(30)).await.unwrap();
    store.delete("s1").await.unwrap();
    store.close().await;

    let after = within("the counts of all scans", async {
        while scans(&pool).await.1 - before.1 < 20 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stable(async || scans(&pool).await).await
    })
    .await;
    assert_eq!(after.0, before.0, "a table was read from one end to the other");
    pool.close().await;
    schema.remove().await;
}

/// Reads counts until they are the same twice.
async fn stable<T: PartialEq>(read: impl AsyncFn() -> T) -> T {
    let mut counts = read().await;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = read().await;
        if now == counts {
            return now;
        }
        counts = now;
    }
}

/// How many sessions were read, whichever way.
async fn sessions_read(pool: &sqlx::PgPool) -> i64 {
    let sum = "SELECT (seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_user_tables \
               WHERE schemaname = current_schema() AND relname = 'sandbox_agent_sessions'";
    let (sum,): (i64,) = sqlx::query_as(sum).fetch_one(pool).await.unwrap();
    sum
}

#[tokio::test]
async fn a_page_of_a_hundred_thousand_sessions_reads_no_more_than_it_gives() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    PostgresStore::open(&schema.url).await.unwrap().close().await;
    let pool = schema.pool().await;
    let fill = "INSERT INTO sandbox_agent_sessions SELECT 'session-' || n, 'agent-' || (n % 2), \
                CASE n % 4 WHEN 0 THEN 'suspended' WHEN 1 THEN 'archived' ELSE 'active' END, n / 3, n, 0, 1, \
                '{\"id\":\"x\",\"agent\":\"x\",\"status\":\"active\",\"createdAt\":0,\"lastActive\":0}' \
                FROM generate_series(1, 100000) AS n; ANALYZE sandbox_agent_sessions";
    sqlx::raw_sql(fill).execute(&pool).await.unwrap();
    let before = stable(async || sessions_read(&pool).await).await;

    let store = PostgresStore::open(&schema.url).await.unwrap();
    let (mut pages, limit) = (0, 25);
    // From the newest on, and from the middle of all.
    let middle = Cursor::behind(at(16_666), "session-50000");
    for query in [RecordQuery::default(), RecordQuery::all(), RecordQuery::all().agent("agent-1")] {
        for query in [query.clone(), query.after(middle.clone())] {
            let mut query = query.limit(limit);
            for _ in 0..3 {
                let page = store.list(&query).await.unwrap();
                assert_eq!(page.records.len(), limit);
                query = query.after(page.next.unwrap());
                pages += 1;
            }
        }
    }
    let inactive = InactiveQuery::new(SessionStatus::Active, at(99_999)).limit(limit);
    let middle = Cursor::behind(at(50_000), "session-50000");
    for query in [inactive.clone(), inactive.after(middle)] {
        let page = store.inactive(&query).await.unwrap();
        store.inactive(&query.after(page.next.unwrap())).await.unwrap();
        pages += 2;
    }
    store.close().await;

    let read = within("the counts of what was read", async {
        while sessions_read(&pool).await == before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        stable(async || sessions_read(&pool).await).await - before
    })
    .await;
    // A page is put together from those of each status.
    let most = pages * 4 * (limit as i64 + 1);
    assert!(read <= most, "{read} sessions were read for {pages} pages");
    pool.close().await;
    schema.remove().await;
}
