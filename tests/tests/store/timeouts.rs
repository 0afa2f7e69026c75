//! A database that responds late or never.

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

/// A proxy between a program and its database that can drop everything without closing a connection.
struct Proxy {
    url: String,
    /// Whether a connection that writes events goes silent.
    swallows: Arc<AtomicBool>,
    /// Silences all open connections.
    silence: watch::Sender<()>,
    /// Owns the task that accepts connections, and those that forward data.
    _tasks: JoinSet<()>,
}

impl Proxy {
    async fn start(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let (before, behind) = cluster.url().split_once('@').unwrap();
        let (database, path) = behind.split_once('/').unwrap();
        let (database, url) = (database.to_owned(), format!("{before}@{own}/{path}"));
        let swallows = Arc::new(AtomicBool::new(false));
        let (silence, _) = watch::channel(());
        let (armed, silencing) = (Arc::clone(&swallows), silence.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&database).await.unwrap();
                connections.spawn(forward(client, server, Arc::clone(&armed), silencing.subscribe()));
            }
        });
        Self { url, swallows, silence, _tasks: tasks }
    }
}

/// Forwards in both directions until the connection goes silent, and then holds it open.
async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    swallows: Arc<AtomicBool>,
    mut silence: watch::Receiver<()>,
) {
    let (mut request, mut response) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            count = client.read(&mut request) => {
                let request = &request[..count.unwrap_or_default()];
                if request.is_empty() {
                    return;
                }
                let locks = request.windows(10).any(|part| part == b"FOR UPDATE");
                if locks && swallows.load(Ordering::SeqCst) {
                    break;
                }
                server.write_all(request).await.unwrap();
            }
            count = server.read(&mut response) => {
                let response = &response[..count.unwrap_or_default()];
                if response.is_empty() || client.write_all(response).await.is_err() {
                    return;
                }
            }
            silenced = silence.changed() => {
                silenced.unwrap();
                break;
            }
        }
    }
    // Until the program closes it. What it sends is read, and gets no response.
    while client.read(&mut request).await.is_ok_and(|count| count > 0) {}
}

fn unavailable(error: &StoreError) {
    assert!(matches!(error, StoreError::Unavailable(_)) && error.is_retryable(), "{error:?}");
}

/// The connection that was there is silent: one call may find out, and the next one has another.
async fn heals(store: &PostgresStore) {
    if let Err(error) = within("a response", store.get("s")).await {
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
    let created = create(&store, "s").await;
    let pool = schema.pool().await;
    let mut holder = pool.begin().await.unwrap();
    let hold = "SELECT 1 FROM sandbox_agent_sessions WHERE id = 's' FOR UPDATE";
    sqlx::query(hold).execute(&mut *holder).await.unwrap();
    unavailable(&within("a response", append(&store, "s", [event(1, 1)])).await.unwrap_err());
    unavailable(&within("a response", store.acquire("s", Acquire::by("p"))).await.unwrap_err());
    unavailable(&within("a response", store.delete("s")).await.unwrap_err());
    // Other calls succeed meanwhile, and so does this one later.
    assert_eq!(within("a response", store.get("s")).await.unwrap(), Some(created));
    holder.rollback().await.unwrap();
    assert_eq!(within("a response", append(&store, "s", [event(1, 1)])).await.unwrap(), [1]);
    store.close().await;
    pool.close().await;
    schema.remove().await;
}

#[tokio::test]
async fn a_statement_may_take_thirty_seconds_unless_another_timeout_is_set() {
    let Some(cluster) = Cluster::find().await else { return };
    let schema = cluster.schema().await;
    let default = format!("{:?}", PostgresOptions::new(&schema.url));
    assert!(default.contains("statement_timeout: Some(30s)"), "{default}");
    // More than the database can count, and none at all.
    for timeout in [Some(Duration::MAX), None] {
        let options = PostgresOptions::new(&schema.url).statement_timeout(timeout);
        let store = PostgresStore::open_with(options).await.unwrap();
        store.create(record(&format!("{timeout:?}"), 5), Vec::new()).await.unwrap();
        store.close().await;
    }
    schema.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_silently_dropped_is_a_typed_error_in_time_and_replaced() {
    let Some(cluster) = Cluster::start_with(&[], &[]).await else { return };
    let between = Proxy::start(&cluster).await;
    // With one connection, one that hangs would block every other call.
    let options = PostgresOptions::new(&between.url)
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(3))
        .statement_timeout(Some(Duration::from_millis(200)));
    let store = PostgresStore::open_with(options).await.unwrap();
    create(&store, "s").await;

    // In the middle of a call.
    between.swallows.store(true, Ordering::SeqCst);
    unavailable(&within("a response", append(&store, "s", [event(1, 1)])).await.unwrap_err());
    between.swallows.store(false, Ordering::SeqCst);
    assert_eq!(within("a new connection", append(&store, "s", [event(1, 1)])).await.unwrap(), [1]);

    // In the middle of a call that is given up.
    between.silence.send_replace(());
    heals(&store).await;
    between.swallows.store(true, Ordering::SeqCst);
    let waits = tokio::time::timeout(Duration::from_millis(500), append(&store, "s", [event(2, 2)])).await;
    assert!(waits.is_err(), "it waits");
    between.swallows.store(false, Ordering::SeqCst);
    assert_eq!(within("a new connection", append(&store, "s", [event(2, 2)])).await.unwrap(), [2]);

    // As it goes back to the pool, or while it is there.
    between.silence.send_replace(());
    heals(&store).await;
    assert_eq!(store.get("s").await.unwrap().unwrap().last_index, 2);
    store.close().await;
    tokio::task::spawn_blocking(move || drop(cluster)).await.unwrap();
}
