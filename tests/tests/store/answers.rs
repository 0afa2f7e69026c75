//! A database that takes its time, or does not answer at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbox_agent_sdk::sessions::store::{Acquire, PostgresOptions, PostgresStore, SessionStore, StoreError};
use sdk_tests::{Cluster, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{append, create, event, record};

/// What stands between a program and its database, and can swallow what passes without closing anything.
struct Between {
    url: String,
    /// Whether a connection that writes events goes silent.
    swallows: Arc<AtomicBool>,
    /// Told to have all connections there are go silent.
    hush: watch::Sender<()>,
    /// Owns the task that accepts connections, and those that pass things on.
    _tasks: JoinSet<()>,
}

impl Between {
    async fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let (before, behind) = cluster.url().split_once('@').unwrap();
        let (database, path) = behind.split_once('/').unwrap();
        let (database, url) = (database.to_owned(), format!("{before}@{own}/{path}"));
        let swallows = Arc::new(AtomicBool::new(false));
        let (hush, _) = watch::channel(());
        let (armed, hushing) = (Arc::clone(&swallows), hush.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&database).await.unwrap();
                connections.spawn(pass_on(client, server, Arc::clone(&armed), hushing.subscribe()));
            }
        });
        Self { url, swallows, hush, _tasks: tasks }
    }
}

/// Passes on both ways until the connection goes silent, and holds it open then.
async fn pass_on(
    mut client: TcpStream,
    mut server: TcpStream,
    swallows: Arc<AtomicBool>,
    mut hush: watch::Receiver<()>,
) {
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            count = client.read(&mut asked) => {
                let asked = &asked[..count.unwrap_or_default()];
                if asked.is_empty() {
                    return;
                }
                let locks = asked.windows(10).any(|part| part == b"FOR UPDATE");
                if locks && swallows.load(Ordering::SeqCst) {
                    break;
                }
                server.write_all(asked).await.unwrap();
            }
            count = server.read(&mut answered) => {
                let answered = &answered[..count.unwrap_or_default()];
                if answered.is_empty() || client.write_all(answered).await.is_err() {
                    return;
                }
            }
            told = hush.changed() => {
                told.unwrap();
                break;
            }
        }
    }
    // Until the program gives it up. What it sends meanwhile is taken, and nothing comes back.
    while client.read(&mut asked).await.is_ok_and(|count| count > 0) {}
}

fn unavailable(error: &StoreError) {
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_retryable(), "{error:?}");
}

/// The connection that was there is silent: one call may find out, and the next one has another.
async fn heals(store: &PostgresStore) {
    if let Err(error) = within("an answer", store.get("s")).await {
        unavailable(&error);
    }
    within("a new connection", store.get("s")).await.unwrap();
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_given_up_by_the_database() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let options = PostgresOptions::new(&schema.url).max_connections(1);
    let store = PostgresStore::open_with(options.statement_timeout(Some(Duration::from_millis(100)))).await;
    let store = store.unwrap();
    let kept = create(&store, "s").await;
    let pool = schema.pool().await;
    let mut holder = pool.begin().await.unwrap();
    let hold = "SELECT 1 FROM sandbox_agent_sessions WHERE id = 's' FOR UPDATE";
    sqlx::query(hold).execute(&mut *holder).await.unwrap();
    unavailable(&within("an answer", append(&store, "s", [event(1, 1)])).await.unwrap_err());
    unavailable(&within("an answer", store.acquire("s", Acquire::by("p"))).await.unwrap_err());
    unavailable(&within("an answer", store.delete("s")).await.unwrap_err());
    // Everything else goes on, and so does this in its time.
    assert_eq!(within("an answer", store.get("s")).await.unwrap(), Some(kept));
    holder.rollback().await.unwrap();
    assert_eq!(within("an answer", append(&store, "s", [event(1, 1)])).await.unwrap(), [1]);
    store.close().await;
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn a_statement_may_take_thirty_seconds_unless_another_time_is_asked_for() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let default = format!("{:?}", PostgresOptions::new(&schema.url));
    assert!(default.contains("statement_timeout: Some(30s)"), "{default}");
    // More than the database can count, and none at all.
    for asked in [Some(Duration::MAX), None] {
        let options = PostgresOptions::new(&schema.url).statement_timeout(asked);
        let store = PostgresStore::open_with(options).await.unwrap();
        store.create(record(&format!("{asked:?}"), 5), Vec::new()).await.unwrap();
        store.close().await;
    }
    schema.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_silently_dropped_is_a_typed_error_in_time_and_replaced() {
    let Some(cluster) = Cluster::start_with(&[], &[]).await else { return };
    let between = Between::start(&cluster).await;
    // With one connection, one that hangs would leave nothing for anybody else.
    let options = PostgresOptions::new(&between.url)
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(3))
        .statement_timeout(Some(Duration::from_millis(200)));
    let store = PostgresStore::open_with(options).await.unwrap();
    create(&store, "s").await;

    // In the middle of a call.
    between.swallows.store(true, Ordering::SeqCst);
    unavailable(&within("an answer", append(&store, "s", [event(1, 1)])).await.unwrap_err());
    between.swallows.store(false, Ordering::SeqCst);
    assert_eq!(within("a new connection", append(&store, "s", [event(1, 1)])).await.unwrap(), [1]);

    // In the middle of a call that is given up.
    between.hush.send_replace(());
    heals(&store).await;
    between.swallows.store(true, Ordering::SeqCst);
    let waits = tokio::time::timeout(Duration::from_millis(500), append(&store, "s", [event(2, 2)])).await;
    assert!(waits.is_err(), "it waits");
    between.swallows.store(false, Ordering::SeqCst);
    assert_eq!(within("a new connection", append(&store, "s", [event(2, 2)])).await.unwrap(), [2]);

    // As it goes back to the pool, or while it is there.
    between.hush.send_replace(());
    heals(&store).await;
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, 2);
    store.close().await;
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
