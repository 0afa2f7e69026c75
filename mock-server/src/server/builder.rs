use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Config, Core, Echo};
use super::mock::MockServer;
use crate::agent::{Agent, Script};
use crate::fault::Rule;

/// How many requests are recorded by default.
const RECORDED: usize = 65_536;

/// Builds a [`MockServer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    config: Config,
    token: Option<String>,
    rules: Vec<Rule>,
    record: usize,
    address: SocketAddr,
}

impl Builder {
    pub(super) fn new() -> Self {
        let config = Config {
            agents: BTreeMap::new(),
            default_agent: None,
            replay_buffer: 1024,
            heartbeat: Duration::from_secs(15),
            request_timeout: Duration::from_secs(120),
            body_limit: None,
            echo: Echo::default(),
            connection_ids: None,
            released_quirks: true,
            sticky_cookie: false,
            strict_session_header: false,
            require_preinstall: false,
            files: None,
            processes: true,
            local_hosts_only: false,
        };
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        Self { config, token: None, rules: Vec::new(), record: RECORDED, address }
    }

    /// Requires this bearer token on every route except `/` and `/health`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Adds an agent. Without any agent, the server has one named `mock` that reacts to words in the prompt.
    pub fn agent(mut self, name: impl Into<String>, agent: impl Agent) -> Self {
        self.config.agents.insert(name.into(), Arc::new(agent));
        self
    }

    /// Sets the agent for `initialize` and `session/new` requests that name no agent. Without it these requests are
    /// rejected.
    pub fn default_agent(mut self, name: impl Into<String>) -> Self {
        self.config.default_agent = Some(name.into());
        self
    }

    /// Sets how many messages each replay buffer holds; `usize::MAX` means no limit. Default 1024.
    pub fn replay_buffer(mut self, messages: usize) -> Self {
        self.config.replay_buffer = messages;
        self
    }

    /// Sets how long a stream may be silent before a heartbeat comment is sent. Default 15 s.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.config.heartbeat = every;
        self
    }

    /// Sets how long a request may wait for its agent. Default 120 s.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.config.request_timeout = limit;
        self
    }

    /// Sets the body limit. Default 2 MiB, and 16 MiB on the official transport.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.config.body_limit = Some(bytes);
        self
    }

    /// Sets where responses go on `/v1/rpc`. Default [`Echo::BodyAndStream`].
    pub fn echo(mut self, echo: Echo) -> Self {
        self.config.echo = echo;
        self
    }

    /// Makes `/v1/rpc` assign a connection id in this header and require it afterwards.
    ///
    /// Each connection has its own replay buffer.
    pub fn connection_ids(mut self, header: Option<&str>) -> Self {
        self.config.connection_ids = header.map(str::to_owned);
        self
    }

    /// Sets whether `/v1/acp` hangs where the released server hangs. On by default.
    pub fn released_quirks(mut self, on: bool) -> Self {
        self.config.released_quirks = on;
        self
    }

    /// Makes `/acp` set a cookie at `initialize` and require it afterwards.
    pub fn sticky_cookie(mut self, on: bool) -> Self {
        self.config.sticky_cookie = on;
        self
    }

    /// Makes `/acp` require `Acp-Session-Id` on responses to session-scoped agent requests.
    pub fn strict_session_header(mut self, on: bool) -> Self {
        self.config.strict_session_header = on;
        self
    }

    /// Makes `/v1/acp` reject agents that were not installed before, with 404.
    pub fn require_preinstall(mut self, on: bool) -> Self {
        self.config.require_preinstall = on;
        self
    }

    /// Serves this directory to clients as `/`. The default is a temporary directory.
    pub fn files(mut self, directory: impl Into<PathBuf>) -> Self {
        self.config.files = Some(directory.into());
        self
    }

    /// Sets whether processes and terminals are served. On by default; if off, their paths are unknown.
    ///
    /// Processes run on this machine with the rights of this program.
    pub fn processes(mut self, on: bool) -> Self {
        self.config.processes = on;
        self
    }

    /// Sets whether requests with a `Host` other than `localhost` or a loopback address get 403. Off by default.
    ///
    /// A web page can make its own host name resolve to this machine (DNS rebinding). Its requests then have that
    /// name as `Host`.
    pub fn local_hosts_only(mut self, on: bool) -> Self {
        self.config.local_hosts_only = on;
        self
    }

    /// Activates a fault before the first request.
    pub fn fault(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// Sets how many requests are recorded; the oldest are dropped first, and 0 records none. Their bodies take at most
    /// 256 MiB in total.
    pub fn record(mut self, requests: usize) -> Self {
        self.record = requests;
        self
    }

    /// Listens on this address. The default is a free port of 127.0.0.1.
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// If the address cannot be bound; [`Builder::try_start`] returns an error instead.
    pub async fn start(self) -> MockServer {
        match self.try_start().await {
            Ok(server) => server,
            Err(error) => panic!("mock server failed to listen: {error}"),
        }
    }

    /// Starts the server.
    ///
    /// # Errors
    /// The operating system's error if the address cannot be bound.
    pub async fn try_start(mut self) -> io::Result<MockServer> {
        if self.config.agents.is_empty() {
            self.config.agents.insert("mock".to_owned(), Arc::new(Script::default()));
        }
        let core = Core::new(self.config, self.token, self.record, self.rules);
        MockServer::listen(Arc::new(core), self.address).await
    }
}
