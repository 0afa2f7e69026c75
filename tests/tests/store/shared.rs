//! Programs that share a store: in one file, or in one database.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use sandbox_agent_sdk::sessions::store::{PostgresStore, SessionStore, SqliteStore};
use sdk_tests::Cluster;

use crate::support::{all_events, assert_gap_free};

const PROCESS: &str = env!("CARGO_BIN_EXE_store-process");

/// The standard output of a program that uses the store.
async fn run(store: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(PROCESS);
    command.arg(store).args(arguments);
    let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Two programs make and change the same records.
async fn no_change_is_lost(url: &str, store: &dyn SessionStore) {
    let create: &[&str] = &["create", "s"];
    let printed = futures::future::join_all((0..3).map(|_| run(url, create))).await;
    let count = |wanted: &str| printed.iter().filter(|printed| *printed == wanted).count();
    assert_eq!((count("created"), count("exists")), (1, 2), "{printed:?}");
    let change: &[&str] = &["change", "s", "40"];
    futures::future::join_all((0..2).map(|_| run(url, change))).await;
    let record = store.get("s").await.unwrap().unwrap();
    assert_eq!((record.details.metadata.len(), record.revision), (80, 81));
}

/// A program is killed at any time during an import.
async fn an_import_is_there_whole_or_not_at_all(url: &str, store: &dyn SessionStore) {
    let mut seen = [false, false];
    for round in 0..10u64 {
        let mut program =
            Command::new(PROCESS).args([url, "import", "i", "4000"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let begun = tokio::task::spawn_blocking(move || lines.next().expect("the store opens").unwrap());
        assert_eq!(begun.await.unwrap(), "importing");
        if round < 9 {
            // After another delay each time.
            tokio::time::sleep(Duration::from_millis(round * 7)).await;
            program.kill().unwrap();
        }
        tokio::task::spawn_blocking(move || program.wait().unwrap()).await.unwrap();
        let record = store.get("i").await.unwrap();
        let events = all_events(store, "i").await;
        assert!(
            matches!((&record, events.len()), (None, 0) | (Some(_), 4000)),
            "{record:?} {}",
            events.len()
        );
        assert!(record.as_ref().is_none_or(|record| record.last_index == 4000));
        seen[usize::from(record.is_some())] = true;
        store.delete("i").await.unwrap();
    }
    assert_eq!(seen, [true, true], "one was killed in time, and the last one was not killed");
}

/// A program that is killed while it writes is started again, and writes the same from the beginning.
async fn nothing_is_there_twice(url: &str, store: &dyn SessionStore) {
    for round in 0..8usize {
        let url = url.to_owned();
        let killed = tokio::task::spawn_blocking(move || {
            let mut program = Command::new(PROCESS)
                .args([&url, "repeat", "r", "60", "7"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(program.stdout.take().unwrap()).lines();
            let indexes: Vec<u64> =
                lines.take(1 + round * 6).map(|line| line.unwrap().parse().unwrap()).collect();
            program.kill().unwrap();
            program.wait().unwrap();
            indexes
        });
        let expected: Vec<u64> = (1..=1 + round as u64 * 6).map(|batch| batch * 7).collect();
        assert_eq!(killed.await.unwrap(), expected, "an event that is stored keeps its index");
    }
    run(url, &["repeat", "r", "60", "7"]).await;
    let events = all_events(store, "r").await;
    assert_gap_free(&events);
    let places = events.iter().map(|event| (event.payload["batch"].as_u64(), event.payload["n"].as_u64()));
    let expected = (0..60u64).flat_map(|batch| (0..7u64).map(move |n| (Some(batch), Some(n))));
    assert_eq!(places.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_share_a_file_lose_no_change_repeat_no_event_and_cut_no_import() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let url = format!("sqlite:{}", path.display());
    no_change_is_lost(&url, &store).await;
    nothing_is_there_twice(&url, &store).await;
    an_import_is_there_whole_or_not_at_all(&url, &store).await;
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_share_a_database_lose_no_change_repeat_no_event_and_cut_no_import() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let store = PostgresStore::open(&schema.url).await.unwrap();
    no_change_is_lost(&schema.url, &store).await;
    nothing_is_there_twice(&schema.url, &store).await;
    an_import_is_there_whole_or_not_at_all(&schema.url, &store).await;
    store.close().await;
    schema.remove().await;
}
