//! A server's process and its process tree.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::client::deadline::deadline_after;
use crate::process_tree::{ProcessTree, run_blocking};

/// How often the process tree is checked for live members.
const POLL: Duration = Duration::from_millis(20);

/// A server's process and its process tree, which is killed on drop.
#[derive(Debug)]
pub(super) struct Group {
    leader: Child,
    tree: Arc<ProcessTree>,
    children: SignalStream,
}

impl Group {
    /// Starts a command as the leader of a process tree.
    pub(super) fn spawn(mut command: Command) -> io::Result<(Self, ChildStdout, ChildStderr)> {
        // Registered before the start, so that no exit is missed.
        let children = signal(SignalKind::child())?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut leader, tree) = ProcessTree::start(command)?;
        match (leader.stdout.take(), leader.stderr.take()) {
            (Some(stdout), Some(stderr)) => Ok((Self { leader, tree, children }, stdout, stderr)),
            _ => Err(io::Error::other("the process started without its pipes")),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.tree.leader().as_raw_pid().unsigned_abs()
    }

    pub(super) fn tree(&self) -> Arc<ProcessTree> {
        Arc::clone(&self.tree)
    }

    /// Waits until the leader exits. The leader is not reaped, so that its process tree can still be found.
    pub(super) async fn ended(&mut self) {
        while matches!(self.tree.exit(), Ok(None)) {
            // The signal stream ends with the runtime.
            if self.children.recv().await.is_none() {
                std::future::pending().await
            }
        }
    }

    /// Stops the process tree: SIGTERM, then SIGKILL after the grace period. Returns the leader's exit
    /// status.
    pub(super) async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        let deadline = deadline_after(grace);
        run_blocking(&self.tree, ProcessTree::terminate).await;
        while !run_blocking(&self.tree, ProcessTree::is_empty).await && Instant::now() < deadline {
            sleep(POLL).await;
        }
        run_blocking(&self.tree, ProcessTree::finish).await;
        self.leader.wait().await.ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.tree.finish();
    }
}
