//! A running server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;

use super::LocalExit;
use super::keeper::Keeper;
use super::log::Lines;
use crate::SandboxAgentClient;

/// A server on this machine that belongs to this program: [`SandboxAgentClient::start_local`].
///
/// It ends with this value, and so does everything that it started: it is asked to (SIGTERM), and what is left of it
/// after the [stop timeout](super::LocalOptions::stop_timeout) is killed. A drop does not wait for that;
/// [`close`](Self::close) does. When the runtime goes first, everything is killed at once.
///
/// On Linux that is everything this program may end, also agents and tools of theirs that have a process group or a session of their
/// own, have lost their parent or have cleared their environment: they are looked for in `/proc` until nothing more is
/// found. What somebody else has started for them is not theirs: a container of an engine that runs already, say. On
/// other Unix systems the process group of the server ends, and what has left it does not.
///
/// A program that is itself killed (SIGKILL) leaves its server behind: the next one can find it by its port or by the
/// name of its program, and should not start a second one in the same data folder.
#[must_use = "the server ends when this is dropped"]
pub struct LocalServer {
    client: SandboxAgentClient,
    keeper: Keeper,
    lines: Arc<Lines>,
    url: String,
    token: String,
    binary: PathBuf,
}

impl LocalServer {
    pub(super) fn new(
        client: SandboxAgentClient,
        keeper: Keeper,
        lines: Arc<Lines>,
        url: String,
        token: String,
        binary: PathBuf,
    ) -> Self {
        Self { client, keeper, lines, url, token, binary }
    }

    /// A client of it.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// Where it listens.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The token it requires. Whoever has it can do whatever this program's user can.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The program that runs.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.keeper.pid()
    }

    /// The last lines that it printed, oldest first: 256 at most.
    #[must_use]
    pub fn output(&self) -> Vec<String> {
        self.lines.last()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn exit(&self) -> Option<LocalExit> {
        self.keeper.exit()
    }

    /// Waits until it has ended by itself, with everything that it started.
    pub async fn ended(&self) -> LocalExit {
        self.keeper.ended().await
    }

    /// Disconnects the client, ends the server with everything that it started, and waits for that: no longer than
    /// the [stop timeout](super::LocalOptions::stop_timeout) and the time to kill what is left.
    pub fn close(mut self) -> BoxFuture<'static, LocalExit> {
        Box::pin(async move {
            self.keeper.stop();
            let (exit, outcome) = tokio::join!(self.keeper.ended(), self.client.disconnect());
            if let Err(error) = outcome {
                tracing::debug!(%error, "the client of a server that is being ended was not disconnected");
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
