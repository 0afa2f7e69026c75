//! A running server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;

use super::LocalExit;
use super::log::Lines;
use super::supervisor::Supervisor;
use crate::SandboxAgentClient;
use crate::client::secret::Secret;

/// A server on this machine that this program started: [`SandboxAgentClient::start_local`].
///
/// It ends with this value, and so does its process tree: every process gets SIGTERM, and SIGKILL after the
/// [stop timeout](super::LocalOptions::stop_timeout). A drop does not wait for that; [`close`](Self::close) does. When
/// the runtime goes first, everything is killed at once.
///
/// On Linux the process tree is found in `/proc`: also agents and tools with a process group or a session of their own,
/// without a parent, or with a cleared environment. Not found are processes that another program started on their behalf
/// (a container engine, a service manager), processes of other users, and a process that gives up its session, its
/// parent, its environment and its resource limits on purpose. On other Unix systems the process group ends.
///
/// The client is disconnected when the server exits.
///
/// A program that is killed by SIGKILL leaves its server behind.
#[must_use = "the server ends when this is dropped"]
pub struct LocalServer {
    client: SandboxAgentClient,
    supervisor: Supervisor,
    lines: Arc<Lines>,
    url: String,
    token: Secret,
    binary: PathBuf,
}

impl LocalServer {
    pub(super) fn new(
        client: SandboxAgentClient,
        supervisor: Supervisor,
        lines: Arc<Lines>,
        url: String,
        token: Secret,
        binary: PathBuf,
    ) -> Self {
        Self { client, supervisor, lines, url, token, binary }
    }

    /// The client for it.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// The URL on which it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The token that it requires. It gives the rights of this program's user. Do not send it once the server has
    /// [ended](Self::ended): another process may listen on its port.
    #[must_use]
    pub fn token(&self) -> &str {
        self.token.expose()
    }

    /// The path of its program.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.supervisor.pid()
    }

    /// The last lines that it printed, oldest first: 256 at most.
    #[must_use]
    pub fn output(&self) -> Vec<String> {
        self.lines.last()
    }

    /// How it exited, if it has.
    #[must_use]
    pub fn exit(&self) -> Option<LocalExit> {
        self.supervisor.exit()
    }

    /// Waits until it and its process tree have exited.
    pub async fn ended(&self) -> LocalExit {
        self.supervisor.ended().await
    }

    /// Disconnects the client, ends the server and its process tree, and waits for that: no longer than the
    /// [stop timeout](super::LocalOptions::stop_timeout) and the time to kill the rest.
    pub fn close(mut self) -> BoxFuture<'static, LocalExit> {
        Box::pin(async move {
            self.supervisor.stop();
            let (exit, outcome) = tokio::join!(self.supervisor.ended(), self.client.disconnect());
            if let Err(error) = outcome {
                tracing::debug!(%error, "disconnecting from a server that is being ended failed");
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
