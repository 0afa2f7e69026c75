//! Another process that uses a store, for tests that need one: to share it with, or to kill.
//!
//! `store-process STORE open` tells whether the store opens.
//! `store-process STORE write SESSION BATCHES SIZE` writes batches of events and tells the last index of each.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write as _;
use std::sync::Arc;

use sandbox_agent_sdk::{
    NewEvent, PostgresStore, SessionRecord, SessionStore, SqliteStore, StoreError, Timestamp,
};

async fn open(store: &str) -> Result<Arc<dyn SessionStore>, StoreError> {
    Ok(match store.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(path).await?),
        None => Arc::new(PostgresStore::open(store).await?),
    })
}

async fn write(store: &dyn SessionStore, session: &str, batches: usize, size: usize) {
    match store.put(SessionRecord::new(session, "mock", Timestamp::from_millis(1))).await {
        Ok(_) | Err(StoreError::Exists { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
    let writer = std::process::id();
    for batch in 0..batches {
        let event = |n| {
            let payload = serde_json::json!({"writer": writer, "batch": batch, "n": n});
            NewEvent::new(
                format!("{writer}-{batch}-{n}"),
                session,
                Timestamp::from_millis(2),
                "update",
                payload,
            )
        };
        let indexes = store.append((0..size).map(event).collect()).await.expect("the batch is written");
        // What is told here was acknowledged by the store.
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", indexes.last().expect("a batch has events")).and_then(|()| out.flush()).unwrap();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [store, "open"] => match open(store).await {
            Ok(_) => println!("opened"),
            Err(error) => println!("{error:?}"),
        },
        [store, "write", session, batches, size] => {
            let store = open(store).await.expect("the store opens");
            write(&*store, session, batches.parse().unwrap(), size.parse().unwrap()).await;
            store.close().await;
        }
        _ => panic!("store-process STORE open | write SESSION BATCHES SIZE"),
    }
}
