//! What a store that programs share promises beyond the others.

use std::process::Command;
use std::time::Duration;

use sandbox_agent_sdk::sessions::SessionStatus;
use sandbox_agent_sdk::sessions::store::{
    Acquire, Append, Cursor, PostgresOptions, PostgresStore, RecordPatch, RecordQuery, ScannedTo,
    SessionStore, StoreError, StreamPosition, Suspend,
};
use sdk_tests::{Cluster, within};

use crate::support::{all_events, all_ids, append, assert_gap_free, at, create, event, record};

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
            let printed = String::from_utf8(done.stdout).unwrap();
            printed.lines().map(|line| line.parse::<u64>().unwrap()).collect::<Vec<_>>()
        })
    });
    let indexes = futures::future::try_join_all(writers.collect::<Vec<_>>()).await.unwrap();
    let store = PostgresStore::open(&schema.url).await.unwrap();
    let events = all_events(&store, "s").await;
    assert_eq!(events.len(), 2 * 100 * 7);
    assert_gap_free(&events);
    for batch in events.chunks(7) {
        let same = |member: &str| batch.iter().all(|event| event.payload[member] == batch[0].payload[member]);
        assert!(same("writer") && same("batch"), "two batches interleave: {batch:?}");
    }
    let mut indexes: Vec<u64> = indexes.concat();
    indexes.sort_unstable();
    let expected: Vec<u64> = (1..=200).map(|batch| batch * 7).collect();
    assert_eq!(indexes, expected, "each writer gets its own indexes");
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
    assert_eq!(applied, [(1,), (2,), (3,), (4,)]);
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn times_are_the_same_in_every_time_zone() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let zones = ["UTC", "Asia/Kathmandu", "America/St_Johns"];
    for zone in zones {
        let url = format!("{}%20-cTimeZone%3D{zone}", schema.url);
        let store = PostgresStore::open(&url).await.unwrap();
        store.create(record(zone, 1_794_790_579_671), Vec::new()).await.unwrap();
        for written in zones.into_iter().take_while(|written| *written != zone) {
            let read = store.get(written).await.unwrap().unwrap();
            assert_eq!(
                (read.created_at, read.last_active_at),
                (at(1_794_790_579_671), at(1_794_790_579_671))
            );
        }
        store.close().await;
    }
    schema.remove().await;
}

#[tokio::test]
async fn a_pool_without_a_free_connection_is_a_typed_error_in_time() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let options =
        PostgresOptions::new(&schema.url).max_connections(1).acquire_timeout(Duration::from_millis(300));
    let store = PostgresStore::open_with(options).await.unwrap();
    create(&store, "s").await;
    // Another transaction has locked the session, so that the only connection waits for it.
    let pool = schema.pool().await;
    let mut holder = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM sandbox_agent_sessions WHERE id = 's' FOR UPDATE")
        .execute(&mut *holder)
        .await
        .unwrap();
    let waits = append(&store, "s", [event(1, 1)]);
    let mut waits = std::pin::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut waits).await.is_err(), "it waits");
    let error = within("the pool's timeout", store.get("s")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_retryable(), "{error:?}");
    holder.rollback().await.unwrap();
    assert_eq!(within("the writer continues", waits).await.unwrap(), [1]);
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
    create(&store, "s").await;
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
    let error = within("an answer", append(&store, "s", [event(1, 1)])).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    let error = within("an answer", PostgresStore::open_with(options())).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

/// How often the tables were read from one end to the other, and how often along an index. Connections report it when they
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
        let mut record = record(&format!("s{n}"), n).owned_by("p");
        record.endpoint = Some("e".to_owned());
        store.create(record, vec![event(1, 1)]).await.unwrap();
    }
    let position = StreamPosition { incarnation: 1, offset: 1, fingerprint: Default::default() };
    let mut patch = RecordPatch::default();
    patch.caught_up = Some(true);
    for _ in 0..2 {
        let scanned_to = ScannedTo { owner: "p".to_owned(), endpoint: "e".to_owned(), position };
        let ended = event(2, 1).turn_id("t").rpc_id("r");
        let append = Append::to("s1").events([event(1, 1), ended]).patch(patch.clone());
        store.append(append.scanned_to(scanned_to)).await.unwrap();
    }
    let acquired = store.acquire("s1", Acquire::by("q")).await.unwrap();
    store.release("s1", acquired.fence()).await.unwrap();
    store.raise_incarnation("e", 1).await.unwrap();
    store.open("s1").await.unwrap();
    all_events(&store, "s1").await;
    let all = RecordQuery::all();
    for query in [
        all.clone(),
        RecordQuery::counted(),
        all.clone().agent("mock"),
        all.clone().user_key("u"),
        all.owner("p"),
    ] {
        all_ids(&store, query.clone().limit(3)).await;
        store.count(&query).await.unwrap();
    }
    let inactive = RecordQuery::all().inactive_before(at(9)).limit(2);
    store.list(&inactive).await.unwrap();
    store.list(&inactive.after(Cursor::after(at(2), "s2"))).await.unwrap();
    store.suspend(Suspend::Own("p".to_owned()), at(30)).await.unwrap();
    store.suspend(Suspend::All, at(30)).await.unwrap();
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
    let fill = "INSERT INTO sandbox_agent_sessions (id, agent, status, created_at, last_active_at, last_index, revision, document) \
                SELECT 'session-' || n, 'agent-' || (n % 2), \
                CASE n % 4 WHEN 0 THEN 'suspended' WHEN 1 THEN 'archived' ELSE 'active' END, n / 3, n, 0, 1, '{}' \
                FROM generate_series(1, 100000) AS n; ANALYZE sandbox_agent_sessions";
    sqlx::raw_sql(fill).execute(&pool).await.unwrap();
    let before = stable(async || sessions_read(&pool).await).await;

    let store = PostgresStore::open(&schema.url).await.unwrap();
    let (mut pages, limit) = (0, 25);
    // From the newest on, and from the middle of all.
    let middle = Cursor::after(at(16_666), "session-50000");
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
    let inactive =
        RecordQuery::all().statuses([SessionStatus::Active]).inactive_before(at(99_999)).limit(limit);
    let middle = Cursor::after(at(50_000), "session-50000");
    for query in [inactive.clone(), inactive.after(middle)] {
        let page = store.list(&query).await.unwrap();
        store.list(&query.after(page.next.unwrap())).await.unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_a_process_do_not_wait_for_each_other_to_store_its_read_position() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let store = PostgresStore::open(&schema.url).await.unwrap();
    create(&store, "s").await;
    let append = |n: u64| {
        let position = StreamPosition { incarnation: 1, offset: n, fingerprint: Default::default() };
        let scanned_to = ScannedTo { owner: "p".to_owned(), endpoint: "e".to_owned(), position };
        store.append(Append::to("s").events([event(n, n)]).scanned_to(scanned_to))
    };
    let scanned_to = async || store.scanned_to("p", "e").await.unwrap().unwrap().offset;
    append(1).await.unwrap();
    // The append of another session stores it, and is not committed yet.
    let pool = schema.pool().await;
    let mut other = pool.begin().await.unwrap();
    let update = "UPDATE sandbox_agent_scanned SET stream_offset = 2 WHERE owner = 'p' AND endpoint = 'e'";
    sqlx::query(update).execute(&mut *other).await.unwrap();
    within("the append", append(3)).await.unwrap();
    assert_eq!(scanned_to().await, 1);
    other.commit().await.unwrap();
    assert_eq!(scanned_to().await, 2);
    append(4).await.unwrap();
    assert_eq!(scanned_to().await, 4);
    store.close().await;
    pool.close().await;
    schema.remove().await;
}
