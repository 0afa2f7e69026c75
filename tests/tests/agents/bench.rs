//! A model, an agent, a server and a client.

use std::{
    fs,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mock_server::{MockServer, State};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox_agent_sdk::connection::Capabilities;
use sandbox_agent_sdk::{
    ClientOptions, Content, Error, Event, NewSession, OpenSession, PermissionRequest, SandboxAgentClient,
    Session, Turn, TurnOutcome, Update, UpdateKind,
};
use sdk_tests::{
    ReleasedServer, ReleasedSetup,
    agents::{AgentHome, HomeOptions, KEY, Login, RealAgent},
    binary, install_agent_as, is_alive,
    model::ScriptedModel,
};
use tokio::task::JoinHandle;

use crate::{
    apart::{Apart, mock},
    cell::{Cell, Face, folder},
    runner::RELEASED,
};

/// The time limit of every step. Agents take many seconds to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(100);

/// How long an agent may retry before its turn is cancelled.
pub(crate) const RETRIES: Duration = Duration::from_secs(25);

/// Waits for a future, and fails the row if it takes too long.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {LIMIT:?}"),
    }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    in_time(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// The model, the agent and the server of one row. They end with this value.
pub(crate) struct Bench {
    pub(crate) cell: Cell,
    pub(crate) model: ScriptedModel,
    pub(crate) home: AgentHome,
    server: Server,
}

enum Server {
    Mock(Box<MockServer>),
    /// A mock server in a process of its own.
    Apart(Box<Apart>),
    Released(Box<ReleasedServer>),
}

impl Bench {
    /// Starts everything with the right key.
    pub(crate) async fn start(cell: Cell) -> Self {
        Self::with(cell, HomeOptions::default()).await
    }

    pub(crate) async fn with_login(cell: Cell, login: Login) -> Self {
        Self::with(cell, HomeOptions { login, ..HomeOptions::default() }).await
    }

    /// Starts everything, and records the messages of the agent.
    pub(crate) async fn recorded(cell: Cell) -> Self {
        Self::with(cell, HomeOptions { recorded: true, ..HomeOptions::default() }).await
    }

    /// Starts everything, with the server in a process of its own.
    pub(crate) async fn apart(cell: Cell) -> Self {
        let mut bench = Self::start(cell).await;
        if cell.face == Face::Mock {
            bench.server = Server::Apart(Box::new(Apart::start(cell.agent, &bench.home).await));
        }
        bench
    }

    async fn with(cell: Cell, options: HomeOptions) -> Self {
        let model = match options.login {
            Login::WrongKey | Login::Other => ScriptedModel::with_key(KEY).await,
            _ => ScriptedModel::start().await,
        };
        let package = cell.agent.fetch(&folder()).await.expect("the agent was fetched");
        let command = cell.agent.command(&package);
        let home = AgentHome::new(cell.agent, &command, &model.url(), &options);
        let server = match cell.face {
            Face::Mock => {
                Server::Mock(Box::new(mock(cell.agent.name(), home.launcher(), home.project()).await))
            }
            Face::Released => {
                let program = binary(&folder(), RELEASED).await.expect("the server was fetched");
                let agent = vec![home.launcher().display().to_string()];
                let setup = ReleasedSetup { program, agent: agent.clone(), token: None, request_limit: None };
                let released = ReleasedServer::start(setup).await;
                install_agent_as(released.home(), agent_name(cell), &agent);
                Server::Released(Box::new(released))
            }
        };
        Self { cell, model, home, server }
    }

    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Mock(mock) => mock.url(),
            Server::Apart(apart) => apart.url().to_owned(),
            Server::Released(released) => released.url(),
        }
    }

    pub(crate) fn is_released(&self) -> bool {
        self.cell.face == Face::Released
    }

    /// The agent's name on the server.
    pub(crate) fn agent_name(&self) -> &'static str {
        agent_name(self.cell)
    }

    /// The directory that sessions work in.
    pub(crate) fn project(&self) -> String {
        self.home.project().display().to_string()
    }

    pub(crate) fn in_project(&self, name: &str) -> PathBuf {
        self.home.project().join(name)
    }

    pub(crate) fn new_session(&self) -> NewSession {
        NewSession::in_dir(self.project())
    }

    pub(crate) fn open_session(&self) -> OpenSession {
        OpenSession::in_dir(self.project())
    }

    pub(crate) fn options(&self) -> ClientOptions {
        SandboxAgentClient::builder(self.url()).agent(self.agent_name()).auto_connect(false)
    }

    /// A client that is connected.
    pub(crate) async fn client(&self) -> Connected {
        self.connect(self.options()).await
    }

    pub(crate) async fn connect(&self, options: ClientOptions) -> Connected {
        let client = options.build().expect("a client");
        let capabilities = in_time("connecting", client.connect()).await;
        Connected {
            agent: self.cell.agent,
            client,
            capabilities: capabilities.unwrap_or_else(|error| panic!("connecting: {}", chain(&error))),
        }
    }

    /// A session of a new client that allows everything.
    pub(crate) async fn session(&self) -> Session {
        let options = self.options().permissions(sandbox_agent_sdk::PermissionPolicy::BypassPermissions);
        self.connect(options).await.session(self.new_session()).await
    }

    /// Waits until the agent has written this text to its files, and can load the session that it belongs to.
    ///
    /// Agents write a turn to disk after they have responded to its prompt.
    pub(crate) async fn written(&self, text: &str) {
        until("the turn is on disk", || holds(self.home.folder(), text.as_bytes())).await;
        if self.cell.agent == RealAgent::Gemini {
            // It names the file of a session by the minute, and loading a session begins a new file.
            let minute = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs() / 60;
            let created_by = minute();
            until("the minute is over", || minute() > created_by).await;
        }
    }

    /// The processes of the agent, with the first one first.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes_of(self.home.folder())
    }

    /// Kills the agent's first process, and nothing else.
    pub(crate) fn kill_agent(&self) {
        let first = *self.processes().first().expect("the agent runs");
        send(first, Signal::SIGKILL);
    }

    /// Kills the server with its agents, and starts it again on the same port.
    pub(crate) async fn restart_server(&mut self) {
        match &mut self.server {
            Server::Mock(mock) => mock.restart(State::Lost).await,
            Server::Apart(_) => panic!("this server is not restarted"),
            Server::Released(released) => released.restart().await,
        }
    }

    /// Kills the process of the server, and nothing else.
    pub(crate) async fn kill_server(&mut self) {
        match &mut self.server {
            Server::Mock(_) => panic!("this server runs in this process"),
            Server::Apart(apart) => apart.kill().await,
            Server::Released(released) => {
                send(released.pid().expect("it runs"), Signal::SIGKILL);
            }
        }
    }
}

/// The released server knows some agents by name; the others are its agent `mock`.
fn agent_name(cell: Cell) -> &'static str {
    match (cell.face, cell.agent) {
        (Face::Released, RealAgent::Gemini | RealAgent::Qwen) => "mock",
        (_, agent) => agent.name(),
    }
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).expect("a process id");
    kill(Pid::from_raw(pid), signal).expect("a process that can be signalled");
}

/// Whether a file below a folder contains these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds(&entry.path(), bytes),
        Ok(kind) if kind.is_file() => {
            fs::read(entry.path()).is_ok_and(|text| text.windows(bytes.len()).any(|part| part == bytes))
        }
        _ => false,
    })
}

/// The live processes whose environment names this folder, parents before their children.
fn processes_of(folder: &Path) -> Vec<u32> {
    let folder = folder.canonicalize().expect("a folder").display().to_string();
    let mine = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&folder) && is_alive(*pid)
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = pids.filter(mine).collect();
    pids.sort_unstable();
    pids
}

/// A client with its connection.
pub(crate) struct Connected {
    pub(crate) agent: RealAgent,
    pub(crate) client: SandboxAgentClient,
    pub(crate) capabilities: Arc<Capabilities>,
}

impl Connected {
    pub(crate) async fn session(&self, new: NewSession) -> Session {
        let made = in_time("a session", self.client.new_session(new)).await;
        made.unwrap_or_else(|error| panic!("session/new: {}", chain(&error)))
    }
}

/// The updates of a turn and its outcome.
#[derive(Debug)]
pub(crate) struct TurnLog {
    pub(crate) updates: Vec<Update>,
    pub(crate) outcome: Result<TurnOutcome, Error>,
}

impl TurnLog {
    /// The agent's message, as one text.
    pub(crate) fn text(&self) -> String {
        self.updates.iter().filter_map(Update::message_text).collect()
    }

    pub(crate) fn thoughts(&self) -> String {
        let thoughts = self.updates.iter().filter_map(|update| match update.kind() {
            UpdateKind::Thought(chunk) => chunk.text(),
            _ => None,
        });
        thoughts.collect()
    }

    /// The contents of the turn's tool calls.
    pub(crate) fn tool_contents(&self) -> impl Iterator<Item = &Content> {
        let calls = self.updates.iter().filter_map(|update| match update.kind() {
            UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => Some(call),
            _ => None,
        });
        calls.flat_map(|call| &call.content)
    }

    /// Whether the agent reported something for the user beside the conversation.
    pub(crate) fn has_notices(&self) -> bool {
        self.updates.iter().any(|update| matches!(update.kind(), UpdateKind::Notice(_)))
    }

    /// Fails the row unless the turn ended by itself.
    pub(crate) fn ended(&self) -> &Self {
        match &self.outcome {
            Ok(outcome) => assert_eq!(outcome.stop_reason.as_str(), "end_turn", "{outcome:?}"),
            Err(error) => panic!("the turn failed: {}", chain(error)),
        }
        self
    }

    /// Fails the row unless the turn was cancelled.
    pub(crate) fn cancelled(&self) -> &Self {
        match &self.outcome {
            Ok(outcome) => assert_eq!(outcome.stop_reason.as_str(), "cancelled", "{outcome:?}"),
            Err(error) => panic!("the cancelled turn failed: {}", chain(error)),
        }
        self
    }
}

/// Reads a turn to its end.
pub(crate) async fn read(mut turn: Turn) -> TurnLog {
    let mut updates = Vec::new();
    let reading = async {
        while let Some(update) = turn.next().await {
            updates.push(update);
        }
        turn.outcome().await
    };
    match tokio::time::timeout(LIMIT, reading).await {
        Ok(outcome) => TurnLog { updates, outcome },
        Err(_) => {
            let last = updates.last().map(|update| update.raw().to_string()).unwrap_or_default();
            panic!("the turn did not end within {LIMIT:?}: {} updates, the last is {last}", updates.len());
        }
    }
}

/// Prompts, and reads the turn to its end.
pub(crate) async fn ask(session: &Session, prompt: &str) -> TurnLog {
    read(session.prompt(prompt)).await
}

/// Reads a turn until the agent has said something.
pub(crate) async fn first_text(turn: &mut Turn) {
    in_time("the first text", async {
        while let Some(update) = turn.next().await {
            if update.message_text().is_some_and(|text| !text.trim().is_empty()) {
                return;
            }
        }
        panic!("the turn ended before its first text: {:?}", turn.outcome().await);
    })
    .await;
}

/// An error with its causes.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    match error.rpc_error().and_then(|rpc| rpc.data.clone()) {
        Some(data) => format!("{text} {data}"),
        None => text,
    }
}

/// Answers the permission requests of a client by a function, and records them.
pub(crate) struct Answering {
    seen: Arc<Mutex<Vec<PermissionRequest>>>,
    task: JoinHandle<()>,
}

impl Answering {
    pub(crate) fn start(
        client: &SandboxAgentClient,
        answer: impl Fn(&PermissionRequest) + Send + 'static,
    ) -> Self {
        let mut events = client.events().deciding();
        let seen: Arc<Mutex<Vec<PermissionRequest>>> = Arc::default();
        let list = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if let Event::Permission(request) = event {
                    list.lock().unwrap().push(request.clone());
                    answer(&request);
                }
            }
        });
        Self { seen, task }
    }

    pub(crate) fn requests(&self) -> Vec<PermissionRequest> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.task.abort();
    }
}
