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
use sdk_tests::{ReleasedServer, ReleasedSetup, Unavailable, binary};

use super::{
    hosted::Hosted,
    official_agent::{Memory, agent},
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
    /// Whatever `SANDBOX_AGENT_URL` points at.
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
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::MockRpc | Self::Adapter => Layout::Shared,
            Self::MockReleased | Self::Released(_) | Self::Given => Layout::PerAgent,
            Self::MockOfficial | Self::OfficialHttp1 | Self::OfficialHttp2 => Layout::Official,
        }
    }

    /// Whether the agent lives in the server's own process and is no process.
    pub(crate) fn agent_is_no_process(self) -> bool {
        matches!(self, Self::OfficialHttp1 | Self::OfficialHttp2)
    }

    /// Whether it knows tokens at all; the others leave that to whatever stands before them.
    pub(crate) fn has_tokens(self) -> bool {
        !matches!(self, Self::Adapter | Self::OfficialHttp1 | Self::OfficialHttp2)
    }

    /// The largest POST it takes.
    pub(crate) fn body_limit(self) -> usize {
        if self.layout() == Layout::Official { 16 << 20 } else { 2 << 20 }
    }
}

/// What a server is started with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setup {
    pub(crate) token: Option<&'static str>,
    pub(crate) request_limit: Option<Duration>,
}

impl Setup {
    pub(crate) fn token(token: &'static str) -> Self {
        Self { token: Some(token), ..Self::default() }
    }

    pub(crate) fn request_limit(limit: Duration) -> Self {
        Self { request_limit: Some(limit), ..Self::default() }
    }
}

/// A running server. It ends with this value.
pub(crate) struct Server {
    kind: Kind,
    setup: Setup,
    running: Running,
}

enum Running {
    Mock(Box<MockServer>),
    Released(ReleasedServer),
    Hosted(Hosted),
    Given(String),
}

impl Server {
    /// Starts one; `None`, with a word about it, where this machine cannot.
    pub(crate) async fn start(kind: Kind, setup: Setup) -> Option<Self> {
        let limit = setup.request_limit.unwrap_or(Duration::from_secs(120));
        let running = match kind {
            Kind::MockRpc | Kind::MockReleased | Kind::MockOfficial => {
                let agent = ProcessAgent::new(STUB);
                let mut builder = MockServer::builder().agent("mock", agent).default_agent("mock");
                if let Some(token) = setup.token {
                    builder = builder.token(token);
                }
                Running::Mock(Box::new(builder.request_timeout(limit).start().await))
            }
            Kind::Released(version) => {
                let program = released(version).await?;
                let token = setup.token.map(str::to_owned);
                let agent = vec![STUB.to_owned()];
                let setup = ReleasedSetup { program, agent, token, request_limit: setup.request_limit };
                Running::Released(ReleasedServer::start(setup).await)
            }
            Kind::Adapter => Running::Hosted(Hosted::start(|listener| adapter(listener, limit))),
            Kind::OfficialHttp1 | Kind::OfficialHttp2 => Running::Hosted(Hosted::start(official)),
            Kind::Given => match std::env::var("SANDBOX_AGENT_URL") {
                Ok(url) if !url.is_empty() => Running::Given(url),
                _ => {
                    eprintln!("NOT RUN: SANDBOX_AGENT_URL points at no server");
                    return None;
                }
            },
        };
        Some(Self { kind, setup, running })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn url(&self) -> String {
        match &self.running {
            Running::Mock(mock) => mock.url(),
            Running::Released(released) => released.url(),
            Running::Hosted(hosted) => hosted.url(),
            Running::Given(url) => url.clone(),
        }
    }

    pub(crate) fn token(&self) -> Option<String> {
        match self.kind {
            Kind::Given => std::env::var("SANDBOX_AGENT_TOKEN").ok(),
            _ => self.setup.token.map(str::to_owned),
        }
    }

    /// The agent to ask for.
    pub(crate) fn agent(&self) -> String {
        match self.kind {
            Kind::Given => std::env::var("SANDBOX_AGENT_AGENT").unwrap_or_else(|_| "mock".to_owned()),
            _ => "mock".to_owned(),
        }
    }

    /// Kills the server and starts it again on the same port, without anything it knew.
    pub(crate) async fn kill_and_restart(&mut self) {
        let limit = self.setup.request_limit.unwrap_or(Duration::from_secs(120));
        match &mut self.running {
            Running::Mock(mock) => mock.restart(State::Lost).await,
            Running::Released(released) => released.restart().await,
            Running::Hosted(hosted) if self.kind == Kind::Adapter => {
                hosted.restart(|listener| adapter(listener, limit)).await;
            }
            Running::Hosted(hosted) => hosted.restart(official).await,
            Running::Given(_) => panic!("a server that is not ours is not killed"),
        }
    }
}

/// The released program of this version. Where it cannot be had, that is said; in CI it is a failure.
pub(crate) async fn released(version: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("released");
    match binary(&folder, version).await {
        Ok(program) => Some(program),
        Err(Unavailable(why)) => {
            assert!(std::env::var_os("CI").is_none(), "the released server {version} cannot be run: {why}");
            eprintln!("NOT RUN: the released server {version} cannot be run: {why}");
            None
        }
    }
}

async fn adapter(listener: TcpListener, limit: Duration) {
    let spec = LaunchSpec { program: STUB.into(), args: Vec::new(), env: Default::default() };
    let runtime = AdapterRuntime::start(spec, limit).await.expect("the adapter starts its agent");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket of this runtime");
    axum07::serve(listener, build_router(Arc::new(runtime))).await.expect("the adapter serves");
}

async fn official(listener: TcpListener) {
    let memory = Arc::new(Memory::default());
    let router = AcpHttpServer::new(move || agent(Arc::clone(&memory))).into_router();
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket of this runtime");
    axum::serve(listener, router).await.expect("the official server serves");
}
