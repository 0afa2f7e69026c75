//! The task that owns a server's processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::LocalExit;
use super::access::Clients;
use super::group::Group;
use super::log::Lines;
use crate::process_tree::ProcessTree;

/// How long reading the rest of the output may take after the exit. A process outside the tree may hold the
/// pipes open.
const DRAIN: Duration = Duration::from_millis(200);

/// Stops a server on request, on drop, and when the runtime shuts down.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Dropping it stops the server.
    stop: Option<oneshot::Sender<()>>,
    exit: watch::Receiver<Option<LocalExit>>,
    tree: Arc<ProcessTree>,
    pid: u32,
    clients: Clients,
    /// Ends within the grace period after `stop` was dropped.
    _task: JoinHandle<()>,
}

impl Supervisor {
    pub(super) fn start(
        group: Group,
        pipes: (ChildStdout, ChildStderr),
        lines: Arc<Lines>,
        grace: Duration,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ended, exit) = watch::channel(None);
        let (pid, tree) = (group.id(), group.tree());
        let clients = Clients::new();
        let task = tokio::spawn(supervise(group, pipes, lines, grace, stopped, ended, clients.clone()));
        Self { stop: Some(stop), exit, tree, pid, clients, _task: task }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the server's process tree.
    pub(super) fn tree(&self) -> &Arc<ProcessTree> {
        &self.tree
    }

    /// Returns the clients that are disconnected when the server exits.
    pub(super) fn clients(&self) -> Clients {
        self.clients.clone()
    }

    /// Returns the server's exit status, if it has exited.
    pub(super) fn exit(&self) -> Option<LocalExit> {
        *self.exit.borrow()
    }

    /// Waits until the server and its process tree have exited.
    pub(super) async fn ended(&self) -> LocalExit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
            Ok(Some(exit)) => exit,
            // The task was dropped with its runtime, which killed the server.
            _ => LocalExit::of(None),
        }
    }

    /// Like [`ended`](Self::ended), but does not borrow this value.
    #[cfg(feature = "providers")]
    pub(super) fn end(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut exit = self.exit.clone();
        // An error means that the task was dropped with its runtime, which killed the server.
        async move { drop(exit.wait_for(Option::is_some).await) }
    }

    /// Begins to stop the server.
    pub(super) fn stop(&mut self) {
        self.stop = None;
    }
}

async fn supervise(
    mut group: Group,
    (stdout, stderr): (ChildStdout, ChildStderr),
    lines: Arc<Lines>,
    grace: Duration,
    stopped: oneshot::Receiver<()>,
    ended: watch::Sender<Option<LocalExit>>,
    clients: Clients,
) {
    let mut reading = JoinSet::new();
    let copy = Arc::clone(&lines);
    reading.spawn(async move { copy.read(stdout).await });
    reading.spawn(async move { lines.read(stderr).await });
    tokio::select! {
        () = group.ended() => {}
        _ = stopped => {}
    }
    let end = async {
        // A server that exited on its own may have left its agents running.
        let status = group.end(grace).await;
        // If the pipes are still open afterwards, a process outside the tree holds them.
        let _ = timeout(DRAIN, async { while reading.join_next().await.is_some() {} }).await;
        ended.send_replace(Some(LocalExit::of(status)));
    };
    // A store that hangs during the disconnect does not delay the exit.
    tokio::join!(clients.disconnect(), end);
}
