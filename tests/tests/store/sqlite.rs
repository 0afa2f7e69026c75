//! What a store in a file promises beyond the others.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use sandbox_agent_sdk::sessions::store::{
    Acquire, RecordQuery, SessionStore, SqliteOptions, SqliteStore, StoreError, StoredEventKind, Suspend,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::sync::Barrier;

use crate::support::{all_events, append, assert_gap_free, at, create, event, record};

const PROCESS: &str = env!("CARGO_BIN_EXE_store-process");

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

async fn execute(path: &Path, sql: &str) {
    let mut connection = raw(path).await;
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn pragma(path: &Path, name: &str) -> String {
    use sqlx::Row as _;
    let mut connection = raw(path).await;
    let row = sqlx::query(&format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}"))
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    row.get(0)
}

/// The last connection that closes a file, and the first one that opens it, lock it for a moment without waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_opens_while_others_open_and_close_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let barrier = Arc::new(Barrier::new(8));
    let opening = (0..8).map(|_| {
        let (directory, barrier) = (directory.path().to_owned(), Arc::clone(&barrier));
        tokio::spawn(async move {
            for round in 0..200 {
                // Half of the rounds begin with a new file.
                barrier.wait().await;
                let store = SqliteStore::open(directory.join(format!("{}.db", round / 2))).await;
                let store = store.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
                store.get("s").await.unwrap();
                store.close().await;
            }
        })
    });
    futures::future::try_join_all(opening).await.unwrap();
}

#[tokio::test]
async fn a_writer_that_is_killed_at_any_time_loses_nothing_that_was_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let mut acknowledged = 0;
    for round in 0..12u64 {
        let path = path.clone();
        // Blocking, so that the kill follows the line without anything in between.
        let last = tokio::task::spawn_blocking(move || {
            let mut writer = Command::new(PROCESS)
                .arg(format!("sqlite:{}", path.display()))
                .args(["write", "s", "1000000", "5"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
            let mut last = 0;
            for _ in 0..1 + round * 3 {
                last = lines.next().expect("the writer writes").unwrap().parse::<u64>().unwrap();
            }
            writer.kill().unwrap();
            writer.wait().unwrap();
            // What it acknowledged before it was killed counts as well.
            lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).fold(last, u64::max)
        });
        let last = last.await.unwrap();
        assert!(last > acknowledged, "the writer continues where the one before was killed");
        acknowledged = last;
    }
    let store = SqliteStore::open(&path).await.unwrap();
    let events = all_events(&store, "s").await;
    assert_gap_free(&events);
    assert!(
        events.len() as u64 >= acknowledged,
        "{} events are stored, and {acknowledged} were acknowledged",
        events.len()
    );
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, events.len() as u64);
    // A batch is there whole or not at all.
    assert_eq!(events.len() % 5, 0);
    store.close().await;
    assert_eq!(pragma(&path, "integrity_check").await, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_and_tasks_that_open_and_write_at_once_share_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let writers = (0..4).map(|_| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || {
            let store = format!("sqlite:{}", path.display());
            let done = Command::new(PROCESS).args([&store, "write", "s", "20", "3"]).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        })
    });
    let openers = (0..4).map(|_| {
        let path = path.clone();
        tokio::spawn(async move { SqliteStore::open(&path).await.unwrap().close().await })
    });
    let writers = futures::future::try_join_all(writers.collect::<Vec<_>>());
    let openers = futures::future::try_join_all(openers.collect::<Vec<_>>());
    let (writers, openers) = tokio::join!(writers, openers);
    writers.unwrap();
    openers.unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    let events = all_events(&store, "s").await;
    assert_eq!(events.len(), 4 * 20 * 3);
    assert_gap_free(&events);
    // The events of a batch follow one another.
    for batch in events.chunks(3) {
        assert!(batch.iter().all(|event| event.payload["batch"] == batch[0].payload["batch"]));
        assert!(batch.iter().all(|event| event.payload["writer"] == batch[0].payload["writer"]));
    }
    store.close().await;
    assert_eq!(pragma(&path, "journal_mode").await, "wal");
    assert_eq!(pragma(&path, "user_version").await, "4");
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let store = SqliteStore::open(&path).await.unwrap();
    create(&store, "s").await;
    store.close().await;
    execute(&path, "PRAGMA user_version = 41; ALTER TABLE sandbox_agent_sessions ADD COLUMN future TEXT")
        .await;
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { found: 41, known: 4 }), "{error:?}");
    assert_eq!(pragma(&path, "user_version").await, "41");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_a_typed_error() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    let set = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // Root may write everywhere, so a process of another user tries.
    let program = directory.path().join("store-process");
    std::fs::copy(PROCESS, &program).unwrap();
    set(&program, 0o755);
    let open = |path: &Path| {
        let store = format!("sqlite:{}", path.display());
        let output = Command::new("setpriv")
            .args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"])
            .arg(&program)
            .args([&store, "open"])
            .output();
        let output = match output {
            Ok(output) if output.status.success() => output,
            // Without the right to change users, the tests run as a user who may not write.
            _ => Command::new(&program).args([&store, "open"]).output().unwrap(),
        };
        String::from_utf8(output.stdout).unwrap()
    };
    // A file, in a directory, that are read-only.
    set(&path, 0o444);
    set(directory.path(), 0o555);
    let printed = open(&path);
    assert!(printed.starts_with("ReadOnly"), "{printed}");
    // No file, in a directory that is read-only.
    let printed = open(&directory.path().join("new.db"));
    assert!(printed.starts_with("ReadOnly"), "{printed}");
    set(directory.path(), 0o755);
    let printed = open(&directory.path().join("missing/new.db"));
    assert!(printed.starts_with("Unavailable"), "{printed}");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_a_typed_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter.txt");
    std::fs::write(&path, "Dear reader, ".repeat(1000)).unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let error = SqliteStore::open(directory.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn a_damaged_record_or_event_hides_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    let store = SqliteStore::open(&path).await.unwrap();
    for (n, id) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        store.create(record(id, n as u64), Vec::new()).await.unwrap();
    }
    append(&store, "a", (1..=5).map(|n| event(n, n))).await.unwrap();
    let deep = "[".repeat(100_000);
    execute(
        &path,
        &format!(
            "UPDATE sandbox_agent_sessions SET document = '{{\"id\":' WHERE id = 'b'; \
             UPDATE sandbox_agent_sessions SET document = CAST(x'ff7b' AS TEXT) WHERE id = 'd'; \
             UPDATE sandbox_agent_events SET payload = '{{\"half' WHERE position = 2; \
             UPDATE sandbox_agent_events SET payload = x'22ff22' WHERE position = 3; \
             UPDATE sandbox_agent_events SET payload = '{deep}', kind = 'prompt' WHERE position = 4"
        ),
    )
    .await;
    for id in ["b", "d"] {
        let error = store.get(id).await.unwrap_err();
        assert!(matches!(&error, StoreError::Unreadable { id: which, .. } if which == id), "{error:?}");
    }
    for limit in 1..=6 {
        let (mut found, mut spoilt) = (Vec::new(), Vec::new());
        let mut query = RecordQuery::all().limit(limit);
        loop {
            let page = store.list(&query).await.unwrap();
            found.extend(page.records.into_iter().map(|record| record.id));
            spoilt.extend(page.unreadable);
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        assert_eq!((found.concat().as_str(), spoilt.concat().as_str()), ("eca", "db"), "limit {limit}");
    }
    let page = store.list(&RecordQuery::all().inactive_before(at(3))).await.unwrap();
    assert_eq!((page.records[0].id.as_str(), page.unreadable), ("c", vec!["b".to_owned()]));
    let events = all_events(&store, "a").await;
    assert_gap_free(&events);
    assert_eq!((&events[0].payload, &events[4].payload), (&1.into(), &5.into()));
    let texts = ["{\"half", "\"\u{FFFD}\"", &deep];
    for ((event, text), kind) in events[1..4].iter().zip(texts).zip(["update", "update", "prompt"]) {
        assert_eq!(event.kind, StoredEventKind::Unreadable);
        assert_eq!(event.payload, serde_json::json!({"kind": kind, "text": text}));
    }
    // A damaged record can be deleted, and later events are stored.
    assert!(store.delete("b").await.unwrap());
    assert_eq!(append(&store, "a", [event(6, 6)]).await.unwrap(), [6]);
    let error = store.acquire("d", Acquire::by("p")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error:?}");
    assert_eq!(
        store.suspend(Suspend::All, at(9)).await.unwrap(),
        4,
        "a damaged record is suspended like any other"
    );
    execute(&path, "UPDATE sandbox_agent_sessions SET status = 'elsewhere' WHERE id = 'a'").await;
    assert!(matches!(store.get("a").await, Err(StoreError::Unreadable { .. })));
}

/// The permissions of a file or directory.
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode() & 0o777
}

fn beside(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[tokio::test]
async fn other_users_cannot_read_what_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/deep/sessions.db");
    let store = SqliteStore::open(&path).await.unwrap();
    create(&store, "s").await;
    for suffix in ["", "-wal", "-shm"] {
        assert_eq!(mode(&beside(&path, suffix)), 0o600, "sessions.db{suffix}");
    }
    for created in ["new", "new/deep"] {
        assert_eq!(mode(&directory.path().join(created)), 0o700, "{created}");
    }
    store.close().await;
}

#[tokio::test]
async fn other_users_cannot_read_a_store_behind_a_link() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
    std::os::unix::fs::symlink("real.db", &link).unwrap();
    // At first the link leads to nothing.
    for existing in [false, true] {
        if existing {
            std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o664)).unwrap();
        }
        let store = SqliteStore::open(&link).await.unwrap();
        create(&store, if existing { "s" } else { "t" }).await;
        for suffix in ["", "-wal", "-shm"] {
            assert_eq!(mode(&beside(&real, suffix)), 0o600, "real.db{suffix}, {existing}");
        }
        store.close().await;
    }
}

#[tokio::test]
async fn a_store_that_other_users_could_read_is_made_private_unless_it_is_shared_on_purpose() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sessions.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let shared = SqliteStore::open_with(&path, SqliteOptions::default().keep_permissions()).await.unwrap();
    create(&shared, "s").await;
    for suffix in ["", "-wal", "-shm"] {
        assert_eq!(mode(&beside(&path, suffix)), 0o664, "sessions.db{suffix}");
    }
    // While the other one has it open, with its log and its index.
    let store = SqliteStore::open(&path).await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        assert_eq!(mode(&beside(&path, suffix)), 0o600, "sessions.db{suffix}");
    }
    assert!(store.get("s").await.unwrap().is_some());
    store.close().await;
    shared.close().await;
    // A file that is not a store is left alone.
    let letter = directory.path().join("letter.txt");
    std::fs::write(&letter, "Dear reader, ".repeat(1000)).unwrap();
    std::fs::set_permissions(&letter, std::fs::Permissions::from_mode(0o644)).unwrap();
    SqliteStore::open(&letter).await.unwrap_err();
    assert_eq!(mode(&letter), 0o644);
}
