//! The program that is killed, and the one that settles everything in the end.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandbox_agent_sdk::error::RpcError;
use sandbox_agent_sdk::requests::{AgentRequest, Registration};
use sandbox_agent_sdk::sessions::store::{PostgresStore, SessionStore, SqliteStore, StoreError};
use sandbox_agent_sdk::sessions::{StoreOptions, StoredClient, StoredSession};
use sandbox_agent_sdk::{
    ClientTimeouts, Error, NewSession, PermissionPolicy, SandboxAgentClient, ServerKind, StopReason,
};
use serde_json::json;
use tokio::task::JoinSet;

use super::agent::WRITE;
use super::words::{prompt_text, session_name};

/// Names the file in which the programs of a world write down what they execute.
pub(super) const WRITES: &str = "SURVIVE_WRITES";

/// Between two attempts of what failed.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a turn of an earlier program may run before it is cancelled.
const OPEN_TURN: Duration = Duration::from_secs(5);
/// How long everything may take to settle.
const SETTLE: Duration = Duration::from_secs(90);

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Resumes all sessions, and prompts each again and again until it is killed.
    Prompt,
    /// Resumes all sessions, has each answer once more, and ends.
    Settle,
}

/// What a program needs to know.
#[derive(Debug, Clone)]
pub struct Drive {
    /// The server.
    pub url: String,
    /// A URL of a database, or `sqlite:` and a file.
    pub store: String,
    /// How many sessions there are.
    pub sessions: usize,
    /// Which run of the program it is, for the texts of its prompts.
    pub run: u64,
    /// What it does.
    pub task: Task,
}

pub(super) async fn open_store(store: &str) -> Result<Arc<dyn SessionStore>, StoreError> {
    Ok(match store.strip_prefix("sqlite:") {
        Some(file) => Arc::new(SqliteStore::open(file).await?),
        None => Arc::new(PostgresStore::open(store).await?),
    })
}

/// Runs the program. Prints a line when it begins, and another one when every session has begun a turn.
///
/// # Panics
/// If what has to settle does not.
pub async fn drive(drive: Drive) {
    let store = open_store(&drive.store).await.expect("the store opens");
    let timeouts = ClientTimeouts::default().cancel(Duration::from_secs(1));
    let client = SandboxAgentClient::builder(&drive.url)
        .agent("mock")
        .server(ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .timeouts(timeouts)
        .build()
        .expect("the options are valid");
    let _writing = write_down(&client);
    let client = client.with_store_options(store, StoreOptions::new().open_turn_timeout(OPEN_TURN));
    let drive = Arc::new(drive);
    let busy = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for number in 0..drive.sessions {
        let (client, drive, busy) = (client.clone(), Arc::clone(&drive), Arc::clone(&busy));
        tasks.spawn(async move {
            let session = resume(&client, &session_name(number)).await;
            match drive.task {
                Task::Prompt => {
                    let begun = || {
                        if busy.fetch_add(1, Ordering::SeqCst) + 1 == drive.sessions {
                            say("busy");
                        }
                    };
                    prompt_forever(&session, drive.run, begun).await;
                }
                Task::Settle => answer_once(&session, drive.run).await,
            }
        });
    }
    say("begun");
    let settling = async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics");
        }
        client.disconnect().await.expect("everything is stored");
        client.store().close().await;
    };
    match drive.task {
        Task::Prompt => settling.await,
        Task::Settle => {
            tokio::time::timeout(SETTLE, settling).await.expect("everything settles in time");
        }
    }
}

/// Executes the writes of the agent: each adds a line to a file that all programs share.
fn write_down(client: &SandboxAgentClient) -> Option<Registration> {
    let file = std::env::var_os(WRITES)?;
    let file = std::fs::File::options().create(true).append(true).open(file).expect("a file");
    let handler = move |request: AgentRequest| {
        let line = format!("{}\n", request.params()["path"].as_str().unwrap_or_default());
        // One call, so that lines of several programs do not mix.
        let written = (&file).write_all(line.as_bytes());
        async move { written.map(|()| json!({})).map_err(|error| RpcError::new(-32603, error.to_string())) }
    };
    Some(client.requests().register(|request| request.method() == WRITE, handler))
}

/// Resumes a session, or creates it, as soon as server and store let it.
async fn resume(client: &StoredClient, id: &str) -> StoredSession {
    loop {
        match client.resume_or_create(id, NewSession::in_dir("/")).await {
            Ok(session) => return session,
            Err(error) => report(id, "resume", &error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn prompt_forever(session: &StoredSession, run: u64, begun: impl FnOnce()) {
    let mut begun = Some(begun);
    for number in 0.. {
        let turn = session.prompt(prompt_text(session.id(), run, number)).await;
        if let Some(begun) = begun.take_if(|_| turn.is_ok()) {
            begun();
        }
        let ended = async { turn?.outcome().await };
        if let Err(error) = ended.await {
            report(session.id(), "prompt", &error);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Nothing is killed any more: the session has to answer.
async fn answer_once(session: &StoredSession, run: u64) {
    let ended = async { session.prompt(prompt_text(session.id(), run, 0)).await?.outcome().await };
    let outcome = ended.await.unwrap_or_else(|error| panic!("{}: {}", session.id(), chain(&error)));
    assert_eq!(outcome.stop_reason, StopReason::EndTurn, "{}", session.id());
}

/// Prints a line for the process that started this one.
fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// What a program of a killed server or database sees explains a failure.
fn report(id: &str, what: &str, error: &Error) {
    eprintln!("{id}: {what}: {}", chain(error));
}

fn chain(error: &Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |error| error.source());
    sources.fold(error.to_string(), |text, source| format!("{text}: {source}"))
}
