//! A running server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;

use super::LocalExit;
use super::access::Access;
use super::log::Lines;
use super::supervisor::Supervisor;
use crate::SandboxAgentClient;
use crate::convert::text::OneLine;

/// A server that this program started. See [`SandboxAgentClient::start_local`].
///
/// Dropping this value stops the server and its process tree: every process gets SIGTERM, and SIGKILL after
/// the [stop timeout](super::LocalOptions::stop_timeout). A drop does not wait for that;
/// [`close`](Self::close) does. If the runtime shuts down first, every process is killed immediately.
///
/// On Linux the members of the process tree are found in `/proc`, including agents and tools with their own
/// process group or session, without a parent, or with a cleared environment. Three kinds of processes are
/// not found: those that another program started on their behalf (a container engine, a service manager),
/// those of other users, and those that deliberately changed their session, parent, environment and resource
/// limits. On other Unix systems only the process group is stopped.
///
/// The client is disconnected when the server exits.
///
/// If this program is killed by SIGKILL, its server keeps running.
#[must_use = "the server is stopped when this is dropped"]
pub struct LocalServer {
    client: SandboxAgentClient,
    supervisor: Supervisor,
    lines: Arc<Lines>,
    url: String,
    access: Access,
    binary: PathBuf,
}

impl LocalServer {
    pub(super) fn new(
        client: SandboxAgentClient,
        supervisor: Supervisor,
        lines: Arc<Lines>,
        url: String,
        access: Access,
        binary: PathBuf,
    ) -> Self {
        Self { client, supervisor, lines, url, access, binary }
    }

    /// Returns the client of the server.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// Returns the URL on which the server listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the token that the server requires.
    ///
    /// The token grants the rights of this program's user. Do not send it after the server has
    /// [ended](Self::ended): another process may listen on its port.
    #[must_use]
    pub fn token(&self) -> &str {
        self.access.token()
    }

    /// Returns the path of the server's program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Returns the server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// Returns the last lines of the server's output, oldest first: at most 256.
    #[must_use]
    pub fn output(&self) -> Vec<String> {
        self.lines.last()
    }

    /// Returns the server's exit status, if it has exited.
    #[must_use]
    pub fn exit(&self) -> Option<LocalExit> {
        self.supervisor.exit()
    }

    /// Waits until the server and its process tree have exited.
    pub async fn ended(&self) -> LocalExit {
        self.supervisor.ended().await
    }

    /// Returns what other clients of the server need.
    #[cfg(feature = "providers")]
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// Like [`ended`](Self::ended), but does not borrow this value.
    #[cfg(feature = "providers")]
    pub(crate) fn end(&self) -> impl Future<Output = ()> + Send + 'static {
        self.supervisor.end()
    }

    /// Disconnects the client, stops the server and its process tree, and waits for their exit.
    ///
    /// This takes at most the [stop timeout](super::LocalOptions::stop_timeout) plus the time to kill
    /// remaining processes.
    pub fn close(mut self) -> BoxFuture<'static, LocalExit> {
        Box::pin(async move {
            self.supervisor.stop();
            let (exit, outcome) = tokio::join!(self.supervisor.ended(), self.client.disconnect());
            if let Err(error) = outcome {
                tracing::debug!(error = %OneLine(&error), "failed to disconnect from a server that is stopping");
            }
            exit
        })
    }
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalServer")
            .field("url", &self.url)
            .field("binary", &self.binary)
            .field("pid", &self.pid())
            .field("exit", &self.exit())
            .finish_non_exhaustive()
    }
}
