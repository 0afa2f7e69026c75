//! What a server on this machine is started with.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;

use super::find::Places;
use super::launch::launch;
use super::{LocalError, LocalLog, LocalServer};
use crate::{ClientOptions, SandboxAgentClient};

type Adjust = Box<dyn FnOnce(ClientOptions) -> ClientOptions + Send + Sync>;

/// How a server on this machine is started: [`SandboxAgentClient::start_local`].
#[must_use = "options do nothing until the server is started"]
pub struct LocalOptions {
    pub(super) binary: Option<PathBuf>,
    pub(super) directory: Option<PathBuf>,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) port: Option<u16>,
    pub(super) token: Option<String>,
    pub(super) agent: Option<String>,
    pub(super) start_timeout: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) log: LocalLog,
    pub(super) client: Adjust,
}

impl SandboxAgentClient {
    /// Starts a server on this machine, with a client of it.
    ///
    /// The released server takes its token on its command line and in no other way, and on most systems every user can
    /// read the command lines of all others (`ps`, `/proc`). Whoever has the token can do whatever this program's user
    /// can. So on a machine with users who are not to be trusted, mount `/proc` with `hidepid=2`, run this program in
    /// a container or under a PID namespace of its own, or start the server yourself behind something that asks for
    /// another secret. The server listens on this machine's loopback interface only.
    ///
    /// ```no_run
    /// # use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
    /// # async fn run() -> Result<(), Error> {
    /// let server = SandboxAgentClient::start_local().agent("claude").start().await?;
    /// let session = server.client().new_session(NewSession::in_dir("/work")).await?;
    /// println!("{}", session.prompt("hello").text().await?);
    /// server.close().await;
    /// # Ok(()) }
    /// ```
    pub fn start_local() -> LocalOptions {
        LocalOptions {
            binary: None,
            directory: None,
            environment: Vec::new(),
            port: None,
            token: None,
            agent: None,
            start_timeout: Duration::from_secs(15),
            stop_timeout: Duration::from_secs(5),
            log: LocalLog::default(),
            client: Box::new(|options| options),
        }
    }
}

impl LocalOptions {
    /// The server's program. Without this it is the one that `SANDBOX_AGENT_BIN` names, or the first
    /// `sandbox-agent` in `PATH`, or that of the npm package `@sandbox-agent/cli-…` for this platform in the
    /// `node_modules` of the working directory or a directory above it.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// The directory in which the server, and every agent of it, runs. By default it is this program's.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// A variable for the environment of the server and its agents, which they get besides this program's own.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The port to listen on. By default it is one that is free.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The token that the server requires. By default it is a random one. It is handed to the server on its command
    /// line, where other users of the machine may see it: [`start_local`](SandboxAgentClient::start_local) says what
    /// to do about that. Do not use one that opens anything else.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The agent that the client connects to, as soon as the server is up. Without one it does not connect by itself.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// How long the server may take to be healthy. Default 15 s.
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.start_timeout = time;
        self
    }

    /// How long the server and its agents may take to end before they are killed. Default 5 s.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.stop_timeout = time;
        self
    }

    /// What is done with what the server prints.
    pub fn log(mut self, log: LocalLog) -> Self {
        self.log = log;
        self
    }

    /// Changes the options of the client; its URL and its token are set already.
    pub fn client_options(
        mut self,
        change: impl FnOnce(ClientOptions) -> ClientOptions + Send + Sync + 'static,
    ) -> Self {
        self.client = Box::new(change);
        self
    }

    /// Starts the server and waits until it is healthy. A start that is given up, by dropping the future, leaves
    /// nothing behind.
    ///
    /// # Errors
    /// [`LocalError`] says what is missing, or how the server ended and what it printed last.
    pub fn start(self) -> BoxFuture<'static, Result<LocalServer, LocalError>> {
        Box::pin(async move {
            let binary = Places::here(self.binary.clone()).find()?;
            launch(self, binary).await
        })
    }
}

/// Secrets may be in the token and in the environment.
impl fmt::Debug for LocalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalOptions")
            .field("binary", &self.binary)
            .field("directory", &self.directory)
            .field("environment", &self.environment.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("port", &self.port)
            .field("agent", &self.agent)
            .field("start_timeout", &self.start_timeout)
            .field("stop_timeout", &self.stop_timeout)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::SandboxAgentClient;

    #[test]
    fn secrets_do_not_show() {
        let options = SandboxAgentClient::start_local().token("secret").env("API_KEY", "secret");
        let shown = format!("{options:?}");
        assert!(shown.contains("API_KEY") && !shown.contains("secret"));
    }
}
