//! The servers the suite runs against.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use acp_http_adapter::{app::build_router, process::AdapterRuntime, registry::LaunchSpec};
use agent_client_protocol_http::AcpHttpServer;
use mock_server::{MockServer, ProcessAgent, State};
use sdk_tests::{ReleasedServer, ReleasedSetup, Unavailable, binary, say_not_run};
use tempfile::TempDir;

use super::{
    given::Given,
    hosted::Hosted,
    official_agent::{Memory, agent},
    peer::Reply,
};

/// The agent of every server that runs processes.
pub(crate) const STUB: &str = env!("CARGO_BIN_EXE_sdk-stub-agent");

/// One kind of server that users run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The mock server's `/v1/rpc`.
    MockRpc,
    /// The mock server's `/v1/acp/{id}`.
    MockReleased,
    /// The mock server's `/acp`.
    MockOfficial,
    /// The released program of this version.
    Released(&'static str),
    /// The released adapter: `/v1/rpc` in front of one process.
    Adapter,
    /// The official server, over HTTP/1.1.
    OfficialHttp1,
    /// The official server, over HTTP/2.
    OfficialHttp2,
    /// The server at `SANDBOX_AGENT_URL`.
    Given,
}

/// The layout of a server's endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `/v1/rpc`, shared by all clients.
    Shared,
    /// `/v1/acp/{id}`, one agent process for each id.
    PerAgent,
    /// `/acp`, one agent for each connection.
    Official,
}

impl Kind {
    /// Whether the agent runs inside the server and is not a process.
    pub(crate) fn agent_is_no_process(self) -> bool {
        matches!(self, Self::OfficialHttp1 | Self::OfficialHttp2)
    }

    /// Whether the server checks tokens. The others leave that to a proxy.
    pub(crate) fn has_tokens(self) -> bool {
        !matches!(self, Self::Adapter | Self::OfficialHttp1 | Self::OfficialHttp2)
    }

    /// Whether it is a released server or behaves like one.
    pub(crate) fn is_released(self) -> bool {
        matches!(self, Self::MockReleased | Self::Released(_))
    }
}

/// How an agent reopens sessions of an earlier process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reopen {
    /// It resumes them.
    Resume,
    /// It loads them, with their history.
    Load,
    /// It can do neither.
    Neither,
}

impl Reopen {
    pub(crate) const ALL: [Self; 3] = [Self::Resume, Self::Load, Self::Neither];

    fn as_str(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Load => "load",
            Self::Neither => "neither",
        }
    }
}

/// The settings of a server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) token: Option<&'static str>,
    pub(crate) request_limit: Option<Duration>,
    /// How its agent reopens sessions; by default it can resume and load.
    pub(crate) reopen: Option<Reopen>,
    /// Whether the test works with any agent, and not only with one that obeys the directives of the stub agent.
    pub(crate) any_agent: bool,
    /// Whether the test kills the agent.
    pub(crate) kills_agent: bool,
}

impl Setup {
    pub(crate) fn token(token: &'static str) -> Self {
        Self { token: Some(token), ..Self::any_agent() }
    }

    pub(crate) fn any_agent() -> Self {
        Self { any_agent: true, ..Self::default() }
    }

    /// Settings for a test that kills the agent, with a short request timeout.
    pub(crate) fn dying(limit: Duration) -> Self {
        Self { kills_agent: true, ..Self::request_limit(limit) }
    }

    pub(crate) fn reopen(way: Reopen) -> Self {
        Self { reopen: Some(way), ..Self::default() }
    }

    pub(crate) fn request_limit(limit: Duration) -> Self {
        Self { request_limit: Some(limit), ..Self::default() }
    }
}

/// A running server. Dropping this value stops it.
pub(crate) struct Server {
    kind: Kind,
    setup: Setup,
    running: Running,
    /// The memory of its agents, which survives their processes.
    memory: Memories,
}

enum Running {
    Mock(Box<MockServer>),
    Released(ReleasedServer),
    Hosted(Hosted),
    Given(Given),
}

/// The memory of agents: a folder for processes, and a value for the in-process agent.
struct Memories {
    folder: TempDir,
    official: Arc<Memory>,
}

impl Memories {
    /// Returns the arguments of the stub agent.
    fn arguments(&self, setup: &Setup) -> Vec<String> {
        let way = setup.reopen.map_or("both", Reopen::as_str);
        let folder = self.folder.path().display().to_string();
        ["--reopen".to_owned(), way.to_owned(), "--memory".to_owned(), folder].into()
    }
}

impl Server {
    /// Starts a server. `None`, with a note on standard error, if this machine cannot run it.
    pub(crate) async fn start(kind: Kind, setup: Setup) -> Option<Self> {
        let limit = setup.request_limit.unwrap_or(Duration::from_secs(120));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let memory = Memories { folder, official: Arc::default() };
        let arguments = memory.arguments(&setup);
        let running = match kind {
            Kind::MockRpc | Kind::MockReleased | Kind::MockOfficial => {
                let agent = ProcessAgent::new(STUB).args(arguments);
                let mut builder = MockServer::builder().agent("mock", agent).default_agent("mock");
                if let Some(token) = setup.token {
                    builder = builder.token(token);
                }
                Running::Mock(Box::new(builder.request_timeout(limit).start().await))
            }
            Kind::Released(version) => {
                let program = released(version).await?;
                let token = setup.token.map(str::to_owned);
                let agent = [vec![STUB.to_owned()], arguments].concat();
                let setup = ReleasedSetup { program, agent, token, request_limit: setup.request_limit };
                Running::Released(ReleasedServer::start(setup).await)
            }
            Kind::Adapter => Running::Hosted(Hosted::start(|listener| adapter(listener, arguments, limit))),
            Kind::OfficialHttp1 | Kind::OfficialHttp2 => {
                let memory = Arc::clone(&memory.official);
                Running::Hosted(Hosted::start(|listener| official(listener, memory)))
            }
            Kind::Given => Running::Given(Given::find(&setup).await?),
        };
        Some(Self { kind, setup, running, memory })
    }

    pub(crate) fn layout(&self) -> Layout {
        match (self.kind, &self.running) {
            (_, Running::Given(given)) => given.layout(),
            (Kind::MockRpc | Kind::Adapter, _) => Layout::Shared,
            (Kind::MockOfficial | Kind::OfficialHttp1 | Kind::OfficialHttp2, _) => Layout::Official,
            _ => Layout::PerAgent,
        }
    }

    /// Returns the body limit of a POST.
    pub(crate) fn body_limit(&self) -> usize {
        if self.layout() == Layout::Official { 16 << 20 } else { 2 << 20 }
    }

    /// Whether the stream may contain events of clients outside the test.
    pub(crate) fn has_other_clients(&self) -> bool {
        self.kind == Kind::Given && self.layout() == Layout::Shared
    }

    /// Whether its agent obeys the directives of the stub agent.
    pub(crate) fn obeys(&self) -> bool {
        match &self.running {
            Running::Given(given) => given.obeys(),
            _ => true,
        }
    }

    /// Checks that the turn succeeded with these texts. The texts of an agent that ignores directives are not checked.
    pub(crate) fn said(&self, reply: &Reply, texts: &[&str]) {
        reply.ended("end_turn");
        // Events of other clients may push ours out of a shared replay buffer, which is reported as missing.
        let pushed_out = self.has_other_clients() && !reply.missed.is_empty();
        assert!(reply.missed.is_empty() || pushed_out, "{reply:?}");
        if self.obeys() && !pushed_out {
            assert_eq!(reply.texts, texts);
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn url(&self) -> String {
        match &self.running {
            Running::Mock(mock) => mock.url(),
            Running::Released(released) => released.url(),
            Running::Hosted(hosted) => hosted.url(),
            Running::Given(given) => given.url().to_owned(),
        }
    }

    pub(crate) fn token(&self) -> Option<String> {
        match &self.running {
            Running::Given(given) => given.token().map(str::to_owned),
            _ => self.setup.token.map(str::to_owned),
        }
    }

    /// Returns the name of the agent to request.
    pub(crate) fn agent(&self) -> String {
        match &self.running {
            Running::Given(given) => given.agent().to_owned(),
            _ => "mock".to_owned(),
        }
    }

    /// Kills the server and restarts it on the same port without its state. The memory of its agents is preserved.
    pub(crate) async fn kill_and_restart(&mut self) {
        let limit = self.setup.request_limit.unwrap_or(Duration::from_secs(120));
        let (arguments, memory) = (self.memory.arguments(&self.setup), Arc::clone(&self.memory.official));
        match &mut self.running {
            Running::Mock(mock) => mock.restart(State::Lost).await,
            Running::Released(released) => released.restart().await,
            Running::Hosted(hosted) if self.kind == Kind::Adapter => {
                hosted.restart(|listener| adapter(listener, arguments, limit)).await;
            }
            Running::Hosted(hosted) => hosted.restart(|listener| official(listener, memory)).await,
            Running::Given(_) => panic!("an external server must not be killed"),
        }
    }
}

/// Returns the released program of this version. If it is unavailable, prints a note; in CI it fails.
pub(crate) async fn released(version: &str) -> Option<PathBuf> {
    let kept = || Path::new(env!("CARGO_TARGET_TMPDIR")).join("released");
    let folder = std::env::var_os("SDK_TESTS_RELEASED").map_or_else(kept, PathBuf::from);
    match binary(&folder, version).await {
        Ok(program) => Some(program),
        Err(Unavailable(why)) => {
            assert!(std::env::var_os("CI").is_none(), "the released server {version} cannot be run: {why}");
            say_not_run(&format!("the released server {version} cannot be run: {why}"));
            None
        }
    }
}

async fn adapter(listener: TcpListener, args: Vec<String>, limit: Duration) {
    let spec = LaunchSpec { program: STUB.into(), args, env: Default::default() };
    let runtime = AdapterRuntime::start(spec, limit).await.expect("the adapter starts its agent");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket of this runtime");
    axum07::serve(listener, build_router(Arc::new(runtime))).await.expect("the adapter serves");
}

async fn official(listener: TcpListener, memory: Arc<Memory>) {
    let router = AcpHttpServer::new(move || agent(Arc::clone(&memory))).into_router();
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket of this runtime");
    axum::serve(listener, router).await.expect("the official server serves");
}
