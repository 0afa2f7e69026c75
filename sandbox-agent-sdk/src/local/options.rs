//! Options of a server on this machine.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;

use super::find::Search;
use super::launch::launch;
use super::{LocalError, LocalLog, LocalServer};
use crate::client::network::check_runtime;
use crate::client::secret::Secret;
use crate::process_tree::{Inherited, Owner};
use crate::{ClientOptions, SandboxAgentClient};

/// The server's data and configuration directories, inherited in addition to the default variables.
const DATA: [&str; 4] = ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"];

type Adjust = Box<dyn FnOnce(ClientOptions) -> ClientOptions + Send + Sync>;

/// Options of a server on this machine. See [`SandboxAgentClient::start_local`].
#[must_use = "options do nothing until the server is started"]
pub struct LocalOptions {
    pub(super) binary: Option<PathBuf>,
    pub(super) node_modules: Option<PathBuf>,
    pub(super) accept_untrusted: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) inherited: Inherited,
    pub(super) environment: Vec<(OsString, OsString)>,
    pub(super) port: Option<u16>,
    /// The process that listens on the port.
    pub(super) owner: Owner,
    pub(super) token: Option<Secret>,
    pub(super) agent: Option<String>,
    pub(super) start_timeout: Duration,
    pub(super) stop_timeout: Duration,
    pub(super) log: LocalLog,
    pub(super) client: Adjust,
}

impl SandboxAgentClient {
    /// Creates options to start a server on this machine, with a client for it.
    ///
    /// The server listens on the loopback interface only. The client connects to it without a proxy, and only
    /// after the listening socket was found in the server's process tree (on Linux; other systems do not
    /// expose the owner of a socket). The client is disconnected when the server exits, and sends its token
    /// to no other process on that port.
    ///
    /// The released server accepts its token on its command line only. On most systems every user can read
    /// the command lines of all processes (`ps`, `/proc`), and the token grants the rights of this program's
    /// user. On a machine with untrusted users, mount `/proc` with `hidepid=2`, or run this program in a
    /// container.
    ///
    /// ```no_run
    /// # use sandbox_agent_sdk::{Error, NewSession, SandboxAgentClient, text::printable};
    /// # async fn run() -> Result<(), Error> {
    /// let options = SandboxAgentClient::start_local().agent("claude").inherit(["ANTHROPIC_API_KEY"]);
    /// let server = options.start().await?;
    /// let session = server.client().new_session(NewSession::in_dir("/work")).await?;
    /// println!("{}", printable(&session.prompt("hello").text().await?));
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
            owner: Owner::Member,
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
    /// Makes this process listen on the port and relay connections to the server.
    #[cfg(feature = "providers")]
    pub(crate) fn relayed(mut self) -> Self {
        self.owner = Owner::ThisProcess;
        self
    }

    /// Whether a program that other users can replace is accepted.
    #[cfg(feature = "providers")]
    pub(crate) fn accepts_untrusted_binary(&self) -> bool {
        self.accept_untrusted
    }

    /// Sets the server's program. The default is `SANDBOX_AGENT_BIN`, or the first `sandbox-agent` in `PATH`.
    ///
    /// The program must be executable; its mode is never changed. Neither the program nor a directory or link in its
    /// path may be owned or writable by another user, unless
    /// [`accept_untrusted_binary`](Self::accept_untrusted_binary) is set.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Also searches for the npm package `@sandbox-agent/cli-…` of this platform.
    ///
    /// The search covers `node_modules` in this directory and in its parents. The author of such a directory
    /// chooses the program: use only directories that you trust. If the package's program is not executable,
    /// the start fails with [`LocalError::NotExecutable`].
    pub fn search_node_modules(mut self, directory: impl Into<PathBuf>) -> Self {
        self.node_modules = Some(directory.into());
        self
    }

    /// Starts the program even if other users of this machine can replace it.
    pub fn accept_untrusted_binary(mut self) -> Self {
        self.accept_untrusted = true;
        self
    }

    /// Sets the working directory of the server and its agents. The default is this program's.
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
    /// By default the server and its agents get `PATH`, `HOME`, the user, the shell, the language, the terminal, the
    /// time zone, `TMPDIR` and the `XDG_…_HOME` directories, and nothing that may be a secret.
    pub fn inherit(mut self, names: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.inherited.add(names);
        self
    }

    /// Passes on the whole environment of this program, including all secrets.
    pub fn inherit_everything(mut self) -> Self {
        self.inherited = Inherited::Everything;
        self
    }

    /// Sets the port to listen on. The default is a free port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Sets the token that the server requires. The default is random.
    ///
    /// Other users of this machine may be able to read it from the server's command line: see
    /// [`start_local`](SandboxAgentClient::start_local). Do not use a token that grants access to anything
    /// else.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into().into());
        self
    }

    /// Sets the agent that the client connects to once the server is healthy. Without an agent it does not
    /// connect.
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

    /// Changes the options of the client, whose URL and token are already set.
    ///
    /// A client with another token or HTTP client loses the protection that
    /// [`start_local`](SandboxAgentClient::start_local) describes.
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
    /// Dropping the future stops the server.
    ///
    /// # Errors
    /// [`LocalError`] describes what is missing, or how the server exited, with the last lines of its output.
    pub fn start(self) -> BoxFuture<'static, Result<LocalServer, LocalError>> {
        Box::pin(async move {
            check_runtime()
                .map_err(|error| LocalError::machine("a tokio runtime", std::io::Error::other(error)))?;
            let search = Search::new(self.binary.clone(), self.node_modules.clone(), self.accept_untrusted);
            let binary = search.find()?;
            launch(self, binary).await
        })
    }
}

/// Hides the token and the values of variables.
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
