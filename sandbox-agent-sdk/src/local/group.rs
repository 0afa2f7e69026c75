//! A server's process and everything that came of it.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::family::{Family, off_the_runtime};

/// How often it is looked whether anybody is left.
const LOOK: Duration = Duration::from_millis(20);

/// A server's process and whatever it started. All of it is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    leader: Child,
    family: Arc<Family>,
    children: SignalStream,
}

impl Group {
    /// Starts a command at the head of a family of its own.
    pub(super) fn spawn(mut command: Command) -> io::Result<(Self, ChildStdout, ChildStderr)> {
        // Before the start, so that no end is missed.
        let children = signal(SignalKind::child())?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (mut leader, family) = Family::start(command)?;
        match (leader.stdout.take(), leader.stderr.take()) {
            (Some(stdout), Some(stderr)) => Ok((Self { leader, family, children }, stdout, stderr)),
            _ => Err(io::Error::other("the process started without its pipes")),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.family.leader().as_raw_pid().unsigned_abs()
    }

    /// Waits for the end of the leader, which stays on the system's list: what came of it can still be found.
    pub(super) async fn ended(&mut self) {
        while matches!(self.family.exit(), Ok(None)) {
            // The stream ends with the runtime, and everything does then.
            if self.children.recv().await.is_none() {
                std::future::pending().await
            }
        }
    }

    /// Ends everything: asks first, and kills what is left after the grace. Gives how the leader ended.
    pub(super) async fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + grace;
        off_the_runtime(&self.family, Family::ask).await;
        while !off_the_runtime(&self.family, Family::is_empty).await && Instant::now() < deadline {
            sleep(LOOK).await;
        }
        off_the_runtime(&self.family, Family::finish).await;
        self.leader.wait().await.ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.family.finish();
    }
}
