//! A server, a store in a file, and programs that come and go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mock_server::{Fault, MockServer, PROBLEM_JSON, Reply, Rule, Script, Step};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::event::Origin;
use sandbox_agent_sdk::sessions::{
    EventQuery, SessionStore, SqliteStore, StoreOptions, StoredClient, StoredEvent, StoredEventKind,
    StoredSession,
};
use sandbox_agent_sdk::{
    ClientOptions, DropPolicy, Error, Event, Events, PermissionPolicy, SandboxAgentClient, ServerKind,
};
use serde_json::{Value, json};

use crate::support::{self, within};

/// What an agent can do with sessions that it had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ability {
    Resume,
    Load,
    Neither,
    /// It can resume and load.
    Both,
}

impl Ability {
    /// The ways there are. What can do both does the first.
    pub(crate) const ALL: [Self; 3] = [Self::Resume, Self::Load, Self::Neither];

    pub(crate) fn initialize(self) -> Value {
        let (resumes, loads) =
            (matches!(self, Self::Resume | Self::Both), matches!(self, Self::Load | Self::Both));
        let sessions = if resumes { json!({"resume": {}}) } else { json!({}) };
        json!({"protocolVersion": 1, "agentCapabilities": {
            "loadSession": loads, "sessionCapabilities": sessions}})
    }
}

/// An agent that answers each prompt with its last text, crashes on `die`, and replays all its messages on a load.
pub(crate) fn agent(ability: Ability) -> Script {
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let telling = Arc::clone(&said);
    let script = Script::new(move |turn| {
        let last = turn.params["prompt"].as_array().unwrap().last().unwrap();
        let text = last["text"].as_str().unwrap().to_owned();
        let say = |text: String| {
            said.lock().unwrap().push(text.clone());
            Step::Say(text)
        };
        match text.as_str() {
            "die" => vec![say("dying; ".to_owned()), Step::crash(3, ["fatal"])],
            _ => vec![say(format!("re: {text}; ")), Step::Think(format!("about {text}"))],
        }
    });
    script.initialize(ability.initialize()).history(move |_| {
        let said = telling.lock().unwrap();
        let chunk = |text: &String| {
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
        };
        said.iter().map(chunk).collect()
    })
}

/// An agent that counts slowly enough for clients to connect or disconnect in between.
pub(crate) fn counting(ability: Ability, to: usize) -> Script {
    let script = Script::new(move |_| {
        let count = |n| [Step::Say(format!("{n} ")), Step::Wait(Duration::from_millis(3))];
        (1..=to).flat_map(count).collect()
    });
    script.initialize(ability.initialize())
}

/// The server refuses the next prompt, because it does not know its session.
pub(crate) fn unknown_session() -> Rule {
    let body = r#"{"type":"urn:sandbox-agent:error:session_not_found","sessionId":"s"}"#.to_owned();
    let reply = Reply { body, content_type: Some(PROBLEM_JSON.to_owned()), ..Reply::default() };
    let refused = Fault::PostStatus { status: 404, execute: false, reply: Some(reply) };
    refused.on_method("session/prompt").times(1)
}

pub(crate) struct World {
    pub(crate) server: MockServer,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) kind: ServerKind,
}

impl World {
    pub(crate) async fn new(kind: ServerKind, agent: Script) -> Self {
        let mut builder = MockServer::builder().agent("mock", agent).released_quirks(false);
        if kind == ServerKind::ConnectionId {
            builder = builder.connection_ids(Some("x-acp-connection-id"));
        }
        let server = builder.start().await;
        Self { server, directory: tempfile::tempdir().unwrap(), kind }
    }

    pub(crate) async fn store(&self) -> SqliteStore {
        SqliteStore::open(self.directory.path().join("sessions.db")).await.unwrap()
    }

    pub(crate) async fn options(&self) -> ProgramOptions {
        options(&self.server, self.kind).store(self.store().await)
    }

    /// Kills the agent that was spoken to last.
    pub(crate) fn kill_agent(&self) {
        let killed = match self.kind {
            ServerKind::Shared => self.server.kill_agent("mock"),
            _ => {
                let requests = self.server.requests();
                let spoken_to =
                    requests.iter().rev().find_map(|request| request.path.strip_prefix("/v1/acp/"));
                self.server.kill_agent_of(spoken_to.unwrap())
            }
        };
        assert!(killed, "there was an agent");
    }

    /// A program that has just started.
    pub(crate) async fn program(&self) -> (SandboxAgentClient, StoredClient) {
        let program = self.options().await.build().unwrap();
        (program.client().clone(), program)
    }
}

/// How a program is set up.
pub(crate) struct ProgramOptions {
    options: ClientOptions,
    store: Option<Arc<dyn SessionStore>>,
    stored: StoreOptions,
}

/// A program that uses this server, without a store yet.
pub(crate) fn options(server: &MockServer, kind: ServerKind) -> ProgramOptions {
    ProgramOptions { options: support::options(server, kind), store: None, stored: StoreOptions::default() }
}

impl ProgramOptions {
    pub(crate) fn store(self, store: impl SessionStore) -> Self {
        self.shared_store(Arc::new(store))
    }

    pub(crate) fn shared_store(mut self, store: Arc<dyn SessionStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// How the sessions are stored.
    pub(crate) fn stored(mut self, change: impl FnOnce(StoreOptions) -> StoreOptions) -> Self {
        self.stored = change(self.stored);
        self
    }

    pub(crate) fn on_turn_drop(mut self, policy: DropPolicy) -> Self {
        self.options = self.options.on_turn_drop(policy);
        self
    }

    pub(crate) fn permissions(mut self, policy: PermissionPolicy) -> Self {
        self.options = self.options.permissions(policy);
        self
    }

    pub(crate) fn limits(mut self, limits: sandbox_agent_sdk::limits::Limits) -> Self {
        self.options = self.options.limits(limits);
        self
    }

    pub(crate) fn reload_incomplete_turns(mut self, reload: bool) -> Self {
        self.options = self.options.reload_incomplete_turns(reload);
        self
    }

    /// How long a cancelled turn may take to stop.
    pub(crate) fn cancel_timeout(mut self, time: Duration) -> Self {
        self.options = self.options.timeouts(support::timeouts().cancel(time));
        self
    }

    pub(crate) fn reconnect(mut self, policy: ReconnectPolicy) -> Self {
        self.options = self.options.reconnect(policy);
        self
    }

    pub(crate) fn build(self) -> Result<StoredClient, Error> {
        let client = self.options.build()?;
        Ok(client.with_store_options(self.store.unwrap(), self.stored))
    }
}

/// Everything that is stored of a session, which must be without holes and repeats.
pub(crate) async fn stored(store: &dyn SessionStore, id: &str) -> Vec<StoredEvent> {
    let mut all = Vec::new();
    let mut query = EventQuery::of(id);
    loop {
        let page = store.events(&query).await.unwrap();
        all.extend(page.events);
        match page.next {
            Some(next) => query = query.after(next),
            None => break,
        }
    }
    for (index, event) in (1..).zip(&all) {
        assert_eq!(event.index, index, "the index has no holes");
    }
    let keys: std::collections::HashSet<_> = all.iter().map(|event| &event.key).collect();
    assert_eq!(keys.len(), all.len(), "an event is stored twice");
    all
}

/// The kinds of events.
pub(crate) fn kinds(events: &[StoredEvent]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

/// The ends of turns.
pub(crate) fn ends(events: &[StoredEvent]) -> Vec<&StoredEvent> {
    events.iter().filter(|event| event.kind == StoredEventKind::TurnEnded).collect()
}

/// What the agent said, as it is stored.
pub(crate) fn said(events: &[StoredEvent]) -> Vec<&str> {
    let updates = events.iter().filter(|event| event.kind == StoredEventKind::Update);
    let messages = updates.filter(|event| event.payload["sessionUpdate"] == "agent_message_chunk");
    messages.map(|event| event.payload["content"]["text"].as_str().unwrap()).collect()
}

/// Has an agent that answers with its last text answer.
pub(crate) async fn ask(session: &StoredSession, text: &str) {
    let answer = within(async { session.prompt(text).await?.text().await }).await;
    assert_eq!(answer.unwrap(), format!("re: {text}; "));
}

/// What the agent has said so far that was new.
pub(crate) fn delivered(events: &mut Events) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Update(update) = event
            && update.origin() == Origin::Live
        {
            texts.extend(update.message_text().map(str::to_owned));
        }
    }
    texts
}

/// Waits until the session `mine` holds this number, and gives all it holds in their order.
pub(crate) async fn counted(sessions: &StoredClient, last: usize) -> Vec<usize> {
    let text = format!("{last} ");
    within(async {
        loop {
            sessions.flush().await.unwrap();
            let kept = stored(&**sessions.store(), "mine").await;
            if said(&kept).contains(&text.as_str()) {
                return said(&kept).iter().map(|text| text.trim().parse().unwrap()).collect();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}
