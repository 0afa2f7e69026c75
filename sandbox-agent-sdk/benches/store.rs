//! How quickly sessions are kept and found, in a real SQLite file.
//!
//! There are two promises, and a run that does not keep them fails: 50,000 events a second in batches, and that listing
//! 100,000 sessions by page is as quick as listing 100.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a benchmark that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use divan::Bencher;
use divan::counter::ItemsCount;
use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::{
    NewEvent, RecordQuery, Recorder, RecorderOptions, SessionRecord, SessionStore, SqliteOptions,
    SqliteStore, SqliteSync, StoredEventKind,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

fn main() {
    promises();
    divan::main();
}

const BATCH: usize = 512;
/// How many events a second are promised.
const PROMISED: f64 = 50_000.0;
/// How much longer a page of very many sessions may take than one of a few. Reading all of them would take hundreds of
/// times as long; a deeper tree, and pages that are not in the cache, take a little.
const LONGER: f64 = 2.0;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

fn store(runtime: &Runtime, sync: SqliteSync) -> (TempDir, SqliteStore) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let store = runtime.block_on(SqliteStore::open_with(path, SqliteOptions::default().sync(sync))).unwrap();
    (directory, store)
}

fn payload(n: usize) -> serde_json::Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": format!("some words, number {n}")}})
}

fn batch(first: usize) -> Vec<NewEvent> {
    let event = |n| {
        let session = format!("session-{}", n % 4);
        NewEvent::new(format!("event-{n}"), session, Timestamp::from_millis(n as u64), "update", payload(n))
    };
    (first..first + BATCH).map(event).collect()
}

async fn make_sessions(store: &SqliteStore, count: u64) {
    for n in 0..count {
        let record = SessionRecord::new(format!("session-{n}"), "mock", Timestamp::from_millis(n));
        store.put(record).await.unwrap();
    }
}

/// The best of several: what else goes on on a machine only ever makes things slower.
const RUNS: usize = 5;

fn promises() {
    let runtime = runtime();
    for sync in [SqliteSync::Full, SqliteSync::Normal] {
        let rate = best(|| appended(&runtime, sync));
        println!("{sync:?}: {rate:.0} events/s in batches of {BATCH} (promised: {PROMISED})");
        assert!(rate >= PROMISED, "{sync:?}: only {rate:.0} events/s");
    }
    let rate = best(|| recorded(&runtime));
    println!("through a recorder: {rate:.0} events/s (promised: {PROMISED})");
    assert!(rate >= PROMISED, "through a recorder: only {rate:.0} events/s");

    let [few, many] = [100, 100_000].map(|count| {
        let (_directory, store) = filled(&runtime, count);
        1.0 / best(|| 1.0 / page_time(&runtime, &store))
    });
    println!("a page of 50: {few:.1} us of 100 sessions, {many:.1} us of 100000 (ratio {:.2})", many / few);
    assert!(many <= few * LONGER, "a page of very many sessions takes longer than one of a few");
}

fn best(run: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(run).take(RUNS).fold(0.0, f64::max)
}

/// How many events a second are written in batches.
fn appended(runtime: &Runtime, sync: SqliteSync) -> f64 {
    const BATCHES: usize = 100;
    let (_directory, store) = store(runtime, sync);
    runtime.block_on(make_sessions(&store, 4));
    let batches: Vec<_> = (0..BATCHES).map(|n| batch(n * BATCH)).collect();
    let start = Instant::now();
    runtime.block_on(async {
        for batch in batches {
            store.append(batch).await.unwrap();
        }
    });
    (BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64()
}

/// How many events a second go through a recorder.
fn recorded(runtime: &Runtime) -> f64 {
    const COUNT: usize = 50_000;
    let (_directory, store) = store(runtime, SqliteSync::Full);
    runtime.block_on(make_sessions(&store, 4));
    let store: Arc<dyn SessionStore> = Arc::new(store);
    let payloads: Vec<_> = (0..COUNT).map(payload).collect();
    let start = Instant::now();
    runtime.block_on(async {
        let options = RecorderOptions::default().capacity(2 * COUNT).bytes(1 << 30);
        let recorder = Recorder::start(Arc::clone(&store), options);
        for (n, payload) in payloads.into_iter().enumerate() {
            recorder.record(&format!("session-{}", n % 4), StoredEventKind::Update, payload);
        }
        recorder.flush().await.unwrap();
    });
    COUNT as f64 / start.elapsed().as_secs_f64()
}

/// The mean time of a page, over all pages of a list of which many are hidden.
fn page_time(runtime: &Runtime, store: &SqliteStore) -> f64 {
    let mut pages = 0;
    let start = Instant::now();
    runtime.block_on(async {
        while pages < 1000 {
            let mut query = RecordQuery::default().limit(50);
            loop {
                let page = store.list(&query).await.unwrap();
                pages += 1;
                match page.next {
                    Some(next) if pages < 1000 => query = query.after(next),
                    _ => break,
                }
            }
        }
    });
    start.elapsed().as_secs_f64() * 1e6 / f64::from(pages)
}

fn filled(runtime: &Runtime, count: u64) -> (TempDir, SqliteStore) {
    let (directory, store) = store(runtime, SqliteSync::Normal);
    // By the back door: a hundred thousand transactions would take longer than what is measured.
    let insert = format!(
        "WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < {count}) \
         INSERT INTO sessions SELECT 'session-' || n, 'agent-' || (n % 3), \
         CASE n % 4 WHEN 0 THEN 'active' WHEN 1 THEN 'suspended' WHEN 2 THEN 'archived' ELSE 'active' END, n, n, 0, 1, \
         '{{\"id\":\"x\",\"agent\":\"mock\",\"status\":\"active\",\"createdAt\":0,\"lastActive\":0}}' FROM n"
    );
    runtime.block_on(async {
        use sqlx::Connection as _;
        let path = format!("sqlite:{}", store.path().display());
        let mut connection = sqlx::SqliteConnection::connect(&path).await.unwrap();
        sqlx::raw_sql(&insert).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
    (directory, store)
}

#[divan::bench(args = [1, 64, 512])]
fn append(bencher: Bencher<'_, '_>, size: usize) {
    let runtime = runtime();
    let (_directory, store) = store(&runtime, SqliteSync::Full);
    runtime.block_on(make_sessions(&store, 4));
    // Events that are there already would not be written.
    let first = AtomicUsize::new(0);
    bencher
        .counter(ItemsCount::new(size))
        .with_inputs(|| batch(first.fetch_add(size, Ordering::Relaxed))[..size].to_vec())
        .bench_values(|events| runtime.block_on(store.append(events)).unwrap());
}

#[divan::bench(args = [100, 100_000])]
fn list_a_page(bencher: Bencher<'_, '_>, sessions: u64) {
    let runtime = runtime();
    let (_directory, store) = filled(&runtime, sessions);
    let query = RecordQuery::default().limit(50);
    bencher.bench(|| runtime.block_on(store.list(&query)).unwrap());
}

#[divan::bench(args = [100, 100_000])]
fn count_the_badge(bencher: Bencher<'_, '_>, sessions: u64) {
    let runtime = runtime();
    let (_directory, store) = filled(&runtime, sessions);
    bencher.bench(|| runtime.block_on(store.count(&RecordQuery::counted())).unwrap());
}
