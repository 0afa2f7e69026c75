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

/// How many requests are recorded unless told otherwise.
const RECORDED: usize = 65_536;

/// How a [`MockServer`] is set up.
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
            ring: 1024,
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
        };
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        Self { config, token: None, rules: Vec::new(), record: RECORDED, address }
    }

    /// Requires this bearer token on every route.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Adds an agent. Without any there is one named `mock` that obeys words in the prompt.
    pub fn agent(mut self, name: impl Into<String>, agent: impl Agent) -> Self {
        self.config.agents.insert(name.into(), Arc::new(agent));
        self
    }

    /// The agent of an `initialize` or `session/new` that names none. Without it these are refused.
    pub fn default_agent(mut self, name: impl Into<String>) -> Self {
        self.config.default_agent = Some(name.into());
        self
    }

    /// How many messages each ring keeps; `usize::MAX` keeps all. 1024 by default.
    pub fn ring(mut self, messages: usize) -> Self {
        self.config.ring = messages;
        self
    }

    /// How long a stream may be silent before a comment is sent; 15 s by default.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.config.heartbeat = every;
        self
    }

    /// How long a request may wait for its agent; 120 s by default.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.config.request_timeout = limit;
        self
    }

    /// The largest body; 2 MiB by default, and 16 MiB on the official transport.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.config.body_limit = Some(bytes);
        self
    }

    /// Where responses go on `/v1/rpc`; body and stream by default.
    pub fn echo(mut self, echo: Echo) -> Self {
        self.config.echo = echo;
        self
    }

    /// Makes `/v1/rpc` hand out a connection id under this header and require it afterwards, with a ring
    /// for each connection.
    pub fn connection_ids(mut self, header: Option<&str>) -> Self {
        self.config.connection_ids = header.map(str::to_owned);
        self
    }

    /// Whether `/v1/acp` hangs where the released server hangs; it does by default.
    pub fn released_quirks(mut self, on: bool) -> Self {
        self.config.released_quirks = on;
        self
    }

    /// Makes `/acp` set a cookie at `initialize` and require it afterwards.
    pub fn sticky_cookie(mut self, on: bool) -> Self {
        self.config.sticky_cookie = on;
        self
    }

    /// Makes `/acp` require `Acp-Session-Id` on answers to requests about a session.
    pub fn strict_session_header(mut self, on: bool) -> Self {
        self.config.strict_session_header = on;
        self
    }

    /// Makes `/v1/acp` refuse agents that were not installed before, with 404.
    pub fn require_preinstall(mut self, on: bool) -> Self {
        self.config.require_preinstall = on;
        self
    }

    /// Shows this directory to clients as `/`. Without it there is a temporary one.
    pub fn files(mut self, directory: impl Into<PathBuf>) -> Self {
        self.config.files = Some(directory.into());
        self
    }

    /// Whether processes and terminals are served, which run on this machine with the rights of this program. They
    /// are by default; without them their paths are unknown.
    pub fn processes(mut self, on: bool) -> Self {
        self.config.processes = on;
        self
    }

    /// Puts a fault in force before the first request.
    pub fn fault(mut self, rule: impl Into<Rule>) -> Self {
        self.rules.push(rule.into());
        self
    }

    /// How many requests are recorded; the oldest go first, and 0 records none.
    pub fn record(mut self, requests: usize) -> Self {
        self.record = requests;
        self
    }

    /// Listens on this address instead of a free port of 127.0.0.1.
    pub fn bind(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Starts the server.
    ///
    /// # Panics
    /// When the address cannot be bound; [`Builder::try_start`] says why instead.
    pub async fn start(self) -> MockServer {
        match self.try_start().await {
            Ok(server) => server,
            Err(error) => panic!("the mock server cannot listen: {error}"),
        }
    }

    /// Starts the server, or says why its address cannot be bound.
    ///
    /// # Errors
    /// Whatever the operating system says about the address.
    pub async fn try_start(mut self) -> io::Result<MockServer> {
        if self.config.agents.is_empty() {
            self.config.agents.insert("mock".to_owned(), Arc::new(Script::default()));
        }
        let core = Core::new(self.config, self.token, self.record, self.rules);
        MockServer::listen(Arc::new(core), self.address).await
    }
}
