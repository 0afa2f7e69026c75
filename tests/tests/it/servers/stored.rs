//! Stored sessions continue after restarts and crashes, with every store and every kind of agent.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sandbox_agent_sdk::connection::Capabilities;
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::sessions::{
    EventQuery, MemoryStore, PostgresStore, SessionStatus, SessionStore, SqliteStore, StoreOptions,
    StoredClient, StoredEvent, StoredEventKind, StoredSession,
};
use sandbox_agent_sdk::{ConnectionState, Error, Event, Events, NewSession, SandboxAgentClient, ServerKind};
use sdk_tests::{Cluster, Schema, within};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    Row,
    peer::{Knobs, options},
    server::{Kind, Layout, Reopen, Server, Setup},
};

/// What fails between two prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    ProgramRestarts,
    ServerIsKilled,
    AgentCrashes,
}

/// The store of the sessions.
enum Store {
    Memory(Arc<dyn SessionStore>),
    /// Each program opens the file itself.
    Sqlite(TempDir),
    /// Each program has its own connections.
    Postgres(Schema),
}

impl Store {
    /// Returns all stores. Without a database server, PostgreSQL is omitted.
    async fn all() -> Vec<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut all = vec![Self::Memory(Arc::new(MemoryStore::new())), Self::Sqlite(folder)];
        if let Some(cluster) = Cluster::find().await {
            all.push(Self::Postgres(cluster.schema().await));
        }
        all
    }

    async fn open(&self) -> Arc<dyn SessionStore> {
        match self {
            Self::Memory(store) => Arc::clone(store),
            Self::Sqlite(folder) => {
                let path = folder.path().join("sessions.db");
                Arc::new(SqliteStore::open(path).await.expect("a store in a file"))
            }
            Self::Postgres(schema) => {
                Arc::new(PostgresStore::open(&schema.url).await.expect("a store in a database"))
            }
        }
    }

    async fn remove(self) {
        if let Self::Postgres(schema) = self {
            schema.remove().await;
        }
    }
}

pub(super) async fn a_stored_session_continues_after_its_program_restarted(row: Row) {
    survives(row, Failure::ProgramRestarts).await;
}

pub(super) async fn a_stored_session_continues_after_its_server_was_killed(row: Row) {
    survives(row, Failure::ServerIsKilled).await;
}

/// The adapter never restarts its agent. There every prompt fails, and the error reports how the agent ended.
pub(super) async fn a_stored_session_continues_after_its_agent_crashed(row: Row) {
    survives(row, Failure::AgentCrashes).await;
}

const URL: &str = "IT_KILLED_PROGRAM_SERVER_URL";
const FILE: &str = "IT_KILLED_PROGRAM_STORE_FILE";
const PER_AGENT: &str = "IT_KILLED_PROGRAM_PER_AGENT";

/// The program that is killed: it is this test, started again.
#[tokio::test]
async fn a_program_that_asks_for_a_permission() {
    let (Ok(url), Ok(file)) = (std::env::var(URL), std::env::var(FILE)) else { return };
    let mut options = SandboxAgentClient::builder(url).agent("mock");
    if std::env::var(PER_AGENT).is_ok() {
        options = options.server(ServerKind::PerAgent);
    }
    let store = SqliteStore::open(file).await.expect("a store in a file");
    let client = options.build().expect("options that can be used").with_store(store);
    let _undecided = client.events().deciding();
    let session = client.new_session_as("mine", NewSession::in_dir("/")).await.expect("a session");
    let mut turn = session.prompt("say one; permission; say two").await.expect("a turn");
    turn.outcome().await.expect("it is killed before");
}

/// Its text is complete, its permission is decided by the next program, and it gets its end. On a released server that
/// program reads the endpoint of the one before, and ends it when it does not need it any more.
pub(super) async fn a_turn_of_a_killed_program_gets_its_permission_and_its_end(row: Row) {
    let Some(server) = Server::start(row.kind, Setup::reopen(Reopen::Load)).await else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("sessions.db");
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "servers::stored::a_program_that_asks_for_a_permission", "--nocapture"])
        .env(URL, server.url())
        .env(FILE, &file)
        .stdout(Stdio::null());
    if server.layout() == Layout::PerAgent {
        command.env(PER_AGENT, "");
    }
    let mut program = command.spawn().expect("this binary can be run");
    let store = SqliteStore::open(&file).await.expect("a store in a file");
    within("the permission", async {
        while !stored(&store).await.iter().any(|event| event.kind == StoredEventKind::Permission) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    program.kill().expect("it can be killed");
    program.wait().expect("it has ended");

    let client = options(&server, &Knobs::default()).build().expect("options that can be used");
    let client = client.with_store(store);
    within("connect", client.client().connect()).await.expect("the handshake succeeds");
    let session = client.session("mine");
    within("acquiring", session.resume()).await.expect("it is acquired");
    within("the turn", session.open_turn_ended()).await;
    assert_eq!(replies(&session, "say three").await.expect("a turn"), ["three"]);
    within("storing", client.flush()).await.expect("everything is stored");
    let stored = stored(&**client.store()).await;
    let texts: Vec<&str> = stored.iter().filter_map(text_of).collect();
    assert_eq!(texts.len(), 4, "{texts:?}");
    assert_eq!((texts[0], &texts[2..]), ("one", &["two", "three"][..]));
    assert!(texts[1].contains("allow"), "{texts:?}");
    let count = |kind: StoredEventKind| stored.iter().filter(|event| event.kind == kind).count();
    assert_eq!((count(StoredEventKind::Permission), count(StoredEventKind::Answered)), (1, 1));
    assert_eq!((count(StoredEventKind::Gap), count(StoredEventKind::TurnEnded)), (0, 2), "{stored:#?}");
    if server.layout() == Layout::PerAgent {
        let list =
            reqwest::Client::new().get(format!("{}/v1/acp", server.url())).send().await.expect("a list");
        let list: Value = serde_json::from_str(&list.text().await.expect("a list")).expect("a list");
        assert_eq!(list["servers"].as_array().map(Vec::len), Some(1), "the old endpoint is ended: {list}");
    }
    within("disconnecting", client.disconnect()).await.expect("disconnecting does not fail");
}

async fn survives(row: Row, failure: Failure) {
    // The test cannot choose what the agent of an external server supports.
    let ways = if row.kind == Kind::Given { &Reopen::ALL[..1] } else { &Reopen::ALL[..] };
    // One server of each layout runs all combinations. The others run each kind of agent and each store at least once.
    let all = matches!(row.kind, Kind::MockRpc | Kind::Released("0.4.2"));
    for (number, way) in ways.iter().enumerate() {
        for (place, store) in Store::all().await.into_iter().enumerate() {
            if !all && number % 2 != place {
                store.remove().await;
                continue;
            }
            let setup = Setup { kills_agent: failure == Failure::AgentCrashes, ..Setup::reopen(*way) };
            let Some(server) = Server::start(row.kind, setup).await else { return store.remove().await };
            let conversation = Conversation { row, server, store, failure, received: Vec::new() };
            if row.kind == Kind::Given {
                return conversation.run(None).await.remove().await;
            }
            conversation.run(Some(*way)).await.remove().await;
        }
    }
}

/// A session that survives one failure.
struct Conversation {
    row: Row,
    server: Server,
    store: Store,
    failure: Failure,
    /// The live texts that subscribers received.
    received: Vec<String>,
}

impl Conversation {
    async fn run(mut self, way: Option<Reopen>) -> Store {
        let (mut client, mut events) = self.program().await;
        let mut session = within("a session", client.new_session_as("mine", NewSession::in_dir("/")))
            .await
            .expect("a session");
        let known = client.client().capabilities().expect("it is connected");
        if let Some(way) = way {
            let able = (known.resume_session, known.load_session);
            assert_eq!(
                able,
                (way == Reopen::Resume, way == Reopen::Load),
                "the agent supports what the test configured"
            );
        }
        assert_eq!(replies(&session, "say one").await.expect("a turn"), ["one"]);
        match self.failure {
            Failure::ProgramRestarts => {
                within("storing", client.flush()).await.expect("everything is stored");
                self.receive(&mut events);
                drop((client, session, events));
                (client, events) = self.program().await;
                session = client.session("mine");
            }
            Failure::ServerIsKilled => {
                self.receive(&mut events);
                self.server.kill_and_restart().await;
                // A prompt that is sent before may have reached either server.
                within("the lost connection", noticed(&mut events)).await;
            }
            Failure::AgentCrashes => {
                let error = replies(&session, "say partial; exit 3").await.expect_err("the agent dies");
                assert_eq!(error.termination().and_then(|info| info.exit_code), Some(3), "{error:?}");
                let record = within("the record", session.record()).await.expect("a record");
                assert_eq!(record.status, SessionStatus::Active, "an exit does not change the status");
            }
        }
        if self.failure == Failure::AgentCrashes && self.row.kind == Kind::Adapter {
            fails_for_good(&session).await;
            return self.store;
        }
        let texts = replies(&session, "say two")
            .await
            .expect("no prompt was open: the next one restores the session");
        let replays_transcript = way == Some(Reopen::Neither);
        assert_eq!(texts.last().map(String::as_str), Some("two"), "{texts:?}");
        assert_eq!(history_of(&texts), usize::from(replays_transcript), "{texts:?}");
        assert_eq!(
            replies(&session, "say three").await.expect("a turn"),
            ["three"],
            "the transcript is sent once"
        );
        if way.is_some() && !replays_transcript {
            let recalled = replies(&session, "recall").await.expect("a turn");
            let partial = if self.failure == Failure::AgentCrashes { "partial, " } else { "" };
            assert_eq!(
                recalled,
                [format!("recall: one, {partial}two, three")],
                "it is the same conversation"
            );
        }
        within("storing", client.flush()).await.expect("everything is stored");
        self.receive(&mut events);
        self.check(&client, &known, way.is_some()).await;
        within("disconnecting", client.disconnect()).await.expect("disconnecting does not fail");
        self.store
    }

    /// Starts a program: a client with its events.
    async fn program(&self) -> (StoredClient, Events) {
        let client = options(&self.server, &Knobs::default()).build().expect("options that can be used");
        let client = client.with_store_options(self.store.open().await, StoreOptions::default());
        let events = client.events();
        within("connect", client.client().connect()).await.expect("the handshake succeeds");
        (client, events)
    }

    fn receive(&mut self, events: &mut Events) {
        while let Some(event) = events.try_next() {
            if let Event::Update(update) = event
                && update.origin() == Origin::Live
            {
                self.received.extend(update.message_text().map(str::to_owned));
            }
        }
    }

    /// Checks that everything is stored once and delivered once, in order.
    async fn check(&self, client: &StoredClient, known: &Capabilities, ours: bool) {
        let stored = stored(&**client.store()).await;
        let kinds =
            |kind: &str| stored.iter().filter(|event| event.kind.as_str() == kind).collect::<Vec<_>>();
        // The agent echoes a transcript.
        let own = |text: &&str| !text.starts_with("stub: ") && !text.starts_with("recall: ");
        let said: Vec<&str> = kinds("update").into_iter().filter_map(text_of).filter(own).collect();
        let mut expected = vec!["one", "two", "three"];
        if self.failure == Failure::AgentCrashes {
            expected.insert(1, "partial");
        }
        assert_eq!(said, expected, "{stored:#?}");
        let received: Vec<&str> = self.received.iter().map(String::as_str).filter(own).collect();
        assert_eq!(received, expected, "texts of subscribers");
        let prompts = kinds("prompt").len();
        let recalled = usize::from(ours && (known.resume_session || known.load_session));
        assert_eq!(prompts, expected.len() + recalled, "{stored:#?}");
        let by = match known {
            known if known.resume_session => "resume",
            known if known.load_session => "load",
            _ => "replay",
        };
        let restored: Vec<_> = kinds("restored").into_iter().map(|event| &event.payload["by"]).collect();
        assert_eq!(restored, [by]);
        let ended: Vec<_> =
            kinds("ended").into_iter().map(|event| event.payload["reason"].as_str()).collect();
        match (self.failure, self.server.layout()) {
            (Failure::AgentCrashes, _) => assert_eq!(ended, [Some("error")]),
            // The agents ended with their server, without details.
            (Failure::ServerIsKilled, Layout::PerAgent) => assert_eq!(ended, [Some("unknown")]),
            _ => assert_eq!(ended, [None; 0]),
        }
        assert_eq!(kinds("gap").len() + kinds("lost").len(), 0, "{stored:#?}");
    }
}

/// Checks that every prompt fails, because the server does not restart its agent.
async fn fails_for_good(session: &StoredSession) {
    for _ in 0..2 {
        let error = replies(session, "say two").await.expect_err("there is no agent");
        assert!(!error.maybe_executed(), "{error:?}");
        assert!(matches!(error, Error::AgentEnded(_)) || error.http().is_some(), "{error:?}");
    }
    let record = within("the record", session.record()).await.expect("a record");
    assert_eq!(record.status, SessionStatus::Active, "another server may restore the session");
}

/// Waits until the client has noticed that its connection was lost.
async fn noticed(events: &mut Events) {
    while let Some(event) = events.next().await {
        match event {
            Event::Connection(ConnectionState::Connecting | ConnectionState::Connected) => {}
            Event::Connection(_) | Event::Reconnected { .. } | Event::ServerRestarted => return,
            _ => {}
        }
    }
}

/// Returns the agent's texts in response to a prompt.
async fn replies(session: &StoredSession, text: &str) -> Result<Vec<String>, Error> {
    within(text, async {
        let mut turn = session.prompt(text).await?;
        let mut texts = Vec::new();
        while let Some(update) = turn.next().await {
            texts.extend(update.message_text().map(str::to_owned));
        }
        turn.outcome().await?;
        Ok(texts)
    })
    .await
}

/// Returns how often the stub agent echoed a transcript. It echoes text that is not a directive.
fn history_of(texts: &[String]) -> usize {
    texts.iter().filter(|text| text.starts_with("stub: ") && text.contains("\"agent\":\"one\"")).count()
}

fn text_of(event: &StoredEvent) -> Option<&str> {
    let chunk = Value::from("agent_message_chunk");
    let update = Some(&event.payload).filter(|update| update["sessionUpdate"] == chunk)?;
    update["content"]["text"].as_str()
}

/// Returns all stored events, and checks that they have neither gaps nor duplicates.
async fn stored(store: &dyn SessionStore) -> Vec<StoredEvent> {
    let page = within("the stored events", store.events(&EventQuery::of("mine").limit(1000))).await;
    let page = page.expect("stored events");
    assert_eq!(page.next, None, "one page holds all events");
    for (index, event) in (1..).zip(&page.events) {
        assert_eq!(event.index, index, "indexes are contiguous");
    }
    let keys: std::collections::HashSet<_> = page.events.iter().map(|event| &event.key).collect();
    assert_eq!(keys.len(), page.events.len(), "an event is stored twice");
    page.events
}
