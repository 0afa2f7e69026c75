//! The three stores: the conformance suite for each of them, and what each has to do besides.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

mod kill;
mod migrations;
mod postgres;
mod shared;
mod sqlite;
mod support;
mod timeouts;
mod tls;

use std::sync::Arc;

use sandbox_agent_sdk::sessions::store::{
    MemoryStore, PostgresStore, SessionStore, SqliteStore, conformance,
};
use sdk_tests::Cluster;

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_store_conforms() {
    conformance::run(async || Arc::new(MemoryStore::with_bounds(10_000, 100_000)) as Arc<dyn SessionStore>)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sqlite_store_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let opened = std::sync::atomic::AtomicU64::new(0);
    conformance::run(async || {
        let n = opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let store = SqliteStore::open(directory.path().join(format!("{n}.db"))).await.unwrap();
        Arc::new(store) as Arc<dyn SessionStore>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_store_conforms() {
    let Some(cluster) = Cluster::find().await else { return };
    for (name, check) in conformance::checks() {
        println!("conformance: {name}");
        let schema = cluster.schema().await;
        let store = Arc::new(PostgresStore::open(&schema.url).await.unwrap());
        check(store.clone()).await;
        store.close().await;
        schema.remove().await;
    }
}
