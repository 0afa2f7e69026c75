//! What a server on this machine is started with.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;

use super::find::Search;
use super::launch::launch;
use super::{LocalError, LocalLog, LocalServer};
use crate::client::secret::Secret;
use crate::process_tree::Inherited;
use crate::{ClientOptions, SandboxAgentClient};

/// Where a server keeps its data and its configuration: inherited beside the harmless variables.
const DATA: [&str; 4] = ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];

type Adjust = Box<dyn FnOnce(ClientOptions) -> ClientOptions + Send + Sync>;

/// How a server on this machine is started: [`SandboxAgentClient::start_local`].
#[must_use = "options do nothing until the server is started"]
pub struct LocalOptions {
    pub(super) binary: Option<PathBuf>,
    pub(super) node_modules: Option<PathBuf>,
    pub(super) accept_untrusted: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) inherited: Inherited,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) port: Option<u16>,
    /// Whether this process listens for the server and relays to it.
    #[cfg(feature = "providers")]
    pub(super) relayed: bool,
    pub(super) token: Option<Secret>,
    pub(super) agent: Option<String>,
    pub(super) start_timeout: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) log: LocalLog,
    pub(super) client: Adjust,
}

impl SandboxAgentClient {
    /// Starts a server on this machine, with a client for it.
    ///
    /// The server listens on the loopback interface only. The client connects to it without a proxy, and only after the
    /// listening socket was found in the server's process tree (on Linux; other systems do not show who listens). The
    /// client is disconnected when the server exits, and sends its token to no other process on that port.
    ///
    /// The released server takes its token on its command line only, and on most systems every user can read the command
    /// lines of all processes (`ps`, `/proc`). The token gives the rights of this program's user. On a machine with users
    /// that you do not trust, mount `/proc` with `hidepid=2`, or run this program in a container.
    ///
    /// ```no_run
    /// # use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient};
    /// # async fn run() -> Result<(), Error> {
    /// let options = SandboxAgentClient::start_local().agent("claude").inherit(["ANTHROPIC_API_KEY"]);
    /// let server = options.start().await?;
    /// let session = server.client().new_session(NewSession::in_dir("/work")).await?;
    /// println!("{}", session.prompt("hello").text().await?);
    /// server.close().await;
    /// # Ok(()) }
    /// ```
    pub fn start_local() -> LocalOptions {
        LocalOptions {
            binary: None,
            node_modules: None,
            accept_untrusted: false,
            directory: None,
            inherited: Inherited::with(&DATA),
            environment: Vec::new(),
            port: None,
            #[cfg(feature = "providers")]
            relayed: false,
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
    /// This process listens on the port itself and relays to the server.
    #[cfg(feature = "providers")]
    pub(crate) fn relayed(mut self) -> Self {
        self.relayed = true;
        self
    }

    /// Sets the server's program. By default it is the one that `SANDBOX_AGENT_BIN` names, or the first
    /// `sandbox-agent` in `PATH`.
    ///
    /// The program must be executable; its mode is never changed. Neither it nor a directory or link on the way to it
    /// may belong to, or be writable by, another user: [`accept_untrusted_binary`](Self::accept_untrusted_binary).
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Also looks for the npm package `@sandbox-agent/cli-…` of this platform, in the `node_modules` of this directory
    /// and of those above it.
    ///
    /// The author of such a directory chooses the program: name only directories that you trust. A package that was
    /// installed without the permission to run it is [`LocalError::NotExecutable`].
    pub fn search_node_modules(mut self, directory: impl Into<PathBuf>) -> Self {
        self.node_modules = Some(directory.into());
        self
    }

    /// Starts the program even if other users of this machine can change it.
    pub fn accept_untrusted_binary(mut self) -> Self {
        self.accept_untrusted = true;
        self
    }

    /// Sets the working directory of the server and its agents. By default it is this program's.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Sets an environment variable of the server and its agents.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Passes on these variables of this program's environment, such as `ANTHROPIC_API_KEY` or `HTTPS_PROXY`.
    ///
    /// By default the server and its agents get `PATH`, `HOME`, the user, the language, the terminal, the time zone and
    /// the `XDG_…_HOME` directories, and nothing that may be a secret.
    pub fn inherit(mut self, names: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.inherited.add(names);
        self
    }

    /// Passes on the whole environment of this program, with every secret in it.
    pub fn inherit_everything(mut self) -> Self {
        self.inherited = Inherited::Everything;
        self
    }

    /// Sets the port to listen on. By default it is a free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the token that the server requires. By default it is random.
    ///
    /// Other users of this machine may be able to read it from the server's command line:
    /// [`start_local`](SandboxAgentClient::start_local). Do not use one that gives access to anything else.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().into());
        self
    }

    /// Sets the agent that the client connects to once the server is healthy. Without one it does not connect.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Sets how long the server may take to become healthy. Default 15 s.
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.start_timeout = time;
        self
    }

    /// Sets how long the server and its agents may take to exit before they are killed. Default 5 s.
    pub fn stop_timeout(mut self, time: Duration) -> Self {
        self.stop_timeout = time;
        self
    }

    /// Sets where the output of the server goes.
    pub fn log(mut self, log: LocalLog) -> Self {
        self.log = log;
        self
    }

    /// Changes the options of the client. Its URL and its token are set already; a client with another token or HTTP
    /// client loses the protection that [`start_local`](SandboxAgentClient::start_local) describes.
    pub fn client_options(
        mut self,
        change: impl FnOnce(ClientOptions) -> ClientOptions + Send + Sync + 'static,
    ) -> Self {
        self.client = Box::new(change);
        self
    }

    /// Starts the server and waits until it is healthy.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    ///
    /// # Errors
    /// [`LocalError`] says what is missing, or how the server exited and what it printed last.
    pub fn start(self) -> BoxFuture<'static, Result<LocalServer, LocalError>> {
        Box::pin(async move {
            let search = Search::new(self.binary.clone(), self.node_modules.clone(), self.accept_untrusted);
            let binary = search.find()?;
            launch(self, binary).await
        })
    }
}

/// Leaves out the token and the values of variables.
impl fmt::Debug for LocalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalOptions")
            .field("binary", &self.binary)
            .field("node_modules", &self.node_modules)
            .field("directory", &self.directory)
            .field("inherited", &self.inherited)
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
