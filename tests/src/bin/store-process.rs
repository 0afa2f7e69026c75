//! A second process that uses a store, for tests that share a store or kill a process.
//!
//! - `store-process STORE open` prints whether the store opens.
//! - `store-process STORE write SESSION BATCHES SIZE` writes batches of events and prints the last index of each.
//! - `store-process STORE repeat SESSION BATCHES SIZE` does the same, with the same events in each run.
//! - `store-process STORE create SESSION` creates a session and prints whether it was the first to do so.
//! - `store-process STORE change SESSION TIMES` changes the record of a session this many times.
//! - `store-process STORE import SESSION EVENTS` prints when it begins to import a session.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::sync::Arc;

use sandbox_agent_sdk::session::Timestamp;
use sandbox_agent_sdk::sessions::store::{
    Append, NewEvent, PostgresStore, RecordPatch, SessionRecord, SessionStore, SqliteStore, StoreError,
};

async fn open(store: &str) -> Result<Arc<dyn SessionStore>, StoreError> {
    Ok(match store.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(path).await?),
        None => Arc::new(PostgresStore::open(store).await?),
    })
}

async fn write(store: &dyn SessionStore, writer: u32, session: &str, batches: usize, size: usize) {
    match store.create(SessionRecord::new(session, "mock", Timestamp::from_millis(1)), Vec::new()).await {
        Ok(_) | Err(StoreError::Exists { .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
    for batch in 0..batches {
        let event = |n| {
            let payload = serde_json::json!({"writer": writer, "batch": batch, "n": n});
            NewEvent::new(format!("{writer}-{batch}-{n}"), Timestamp::from_millis(2), "update", payload)
        };
        let append = Append::to(session).events((0..size).map(event));
        let indexes = store.append(append).await.expect("the batch is written").indexes;
        // Printed only after the store has acknowledged the batch.
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", indexes.last().expect("a batch has events")).and_then(|()| out.flush()).unwrap();
    }
}

async fn create(store: &dyn SessionStore, session: &str) {
    match store.create(SessionRecord::new(session, "mock", Timestamp::from_millis(1)), Vec::new()).await {
        Ok(_) => println!("created"),
        Err(StoreError::Exists { .. }) => println!("exists"),
        Err(error) => panic!("{error:?}"),
    }
}

async fn change(store: &dyn SessionStore, session: &str, times: usize) {
    for n in 0..times {
        let mut patch = RecordPatch::default();
        patch.metadata.insert(format!("{}-{n}", std::process::id()), n.into());
        store.append(Append::to(session).patch(patch)).await.expect("the record is changed");
    }
}

async fn import(store: &dyn SessionStore, session: &str, events: usize) {
    let event = |n| NewEvent::new(format!("e{n}"), Timestamp::from_millis(2), "update", n);
    let record = SessionRecord::new(session, "mock", Timestamp::from_millis(1));
    println!("importing");
    store.create(record, (0..events).map(event).collect()).await.expect("the session is imported");
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
        [store, how @ ("write" | "repeat"), session, batches, size] => {
            let store = open(store).await.expect("the store opens");
            let writer = if how == "write" { std::process::id() } else { 0 };
            write(&*store, writer, session, batches.parse().unwrap(), size.parse().unwrap()).await;
            store.close().await;
        }
        [store, "create", session] => create(&*open(store).await.expect("the store opens"), session).await,
        [store, "change", session, times] => {
            change(&*open(store).await.expect("the store opens"), session, times.parse().unwrap()).await;
        }
        [store, "import", session, events] => {
            import(&*open(store).await.expect("the store opens"), session, events.parse().unwrap()).await;
        }
        _ => panic!("store-process STORE open | write | repeat | create | change | import SESSION ..."),
    }
}
