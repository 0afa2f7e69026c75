//! The one task that owns a server's processes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::LocalExit;
use super::group::Group;
use super::log::Lines;
use crate::SandboxAgentClient;
use crate::process_tree::ProcessTree;

/// How long the rest of the output may take after the exit. A process outside of the tree may hold the pipes open.
const DRAIN: Duration = Duration::from_millis(200);

/// Ends a server when it is stopped, when this is dropped, and when the runtime goes.
#[derive(Debug)]
pub(super) struct Supervisor {
    /// Dropping it ends the server.
    stop: Option<oneshot::Sender<()>>,
    exit: watch::Receiver<Option<LocalExit>>,
    tree: Arc<ProcessTree>,
    pid: u32,
    client: ClientSlot,
    /// Ends by itself within the grace period once `stop` is gone.
    _task: JoinHandle<()>,
}

/// The client that ends with the server. Guards an option; held for a move.
type ClientSlot = Arc<Mutex<Option<SandboxAgentClient>>>;

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
        let client = ClientSlot::default();
        let task = tokio::spawn(supervise(group, pipes, lines, grace, stopped, ended, Arc::clone(&client)));
        Self { stop: Some(stop), exit, tree, pid, client, _task: task }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The server's process tree.
    pub(super) fn tree(&self) -> &Arc<ProcessTree> {
        &self.tree
    }

    /// Disconnects this client as soon as the server exits.
    pub(super) fn attach(&self, client: SandboxAgentClient) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
    }

    /// How the server exited, if it has.
    pub(super) fn exit(&self) -> Option<LocalExit> {
        *self.exit.borrow()
    }

    /// Waits for the exit of the server and of its process tree.
    pub(super) async fn ended(&self) -> LocalExit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
            Ok(Some(exit)) => exit,
            // The task goes with its runtime, and kills the server then.
            _ => LocalExit::of(None),
        }
    }

    /// Begins to end the server.
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
    client: ClientSlot,
) {
    let mut reading = JoinSet::new();
    let copy = Arc::clone(&lines);
    reading.spawn(async move { copy.read(stdout).await });
    reading.spawn(async move { lines.read(stderr).await });
    tokio::select! {
        () = group.ended() => {}
        _ = stopped => {}
    }
    let client = client.lock().unwrap_or_else(PoisonError::into_inner).take();
    let disconnect = async {
        if let Some(client) = client
            && let Err(error) = client.disconnect().await
        {
            tracing::debug!(%error, "disconnecting from a server that has ended failed");
        }
    };
    // A server that exited by itself may have left its agents behind.
    let (status, ()) = tokio::join!(group.end(grace), disconnect);
    // What is not read by then is held open by a process that cannot be found.
    let _ = timeout(DRAIN, async { while reading.join_next().await.is_some() {} }).await;
    ended.send_replace(Some(LocalExit::of(status)));
}
