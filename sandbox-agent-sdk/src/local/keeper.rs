//! The one task that owns a server's processes.

use std::sync::Arc;
use std::time::Duration;

use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::LocalExit;
use super::group::Group;
use super::log::Lines;

/// How long the last words of a server may take to be read after its end. Whoever holds its pipes open beyond that
/// is not waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Ends a server when it is told to, when it is dropped, and when the runtime goes.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Dropping it ends the server.
    stop: Option<oneshot::Sender<()>>,
    exit: watch::Receiver<Option<LocalExit>>,
    pid: u32,
    /// Ends by itself within the grace once `stop` is gone.
    _task: JoinHandle<()>,
}

impl Keeper {
    pub(super) fn start(
        group: Group,
        pipes: (ChildStdout, ChildStderr),
        lines: Arc<Lines>,
        grace: Duration,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (told, exit) = watch::channel(None);
        let pid = group.id();
        let task = tokio::spawn(keep(group, pipes, lines, grace, stopped, told));
        Self { stop: Some(stop), exit, pid, _task: task }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// How the server ended, if it has.
    pub(super) fn exit(&self) -> Option<LocalExit> {
        *self.exit.borrow()
    }

    /// Waits for the end of the server and of everything it started.
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

async fn keep(
    mut group: Group,
    (stdout, stderr): (ChildStdout, ChildStderr),
    lines: Arc<Lines>,
    grace: Duration,
    stopped: oneshot::Receiver<()>,
    told: watch::Sender<Option<LocalExit>>,
) {
    let mut reading = JoinSet::new();
    let copy = Arc::clone(&lines);
    reading.spawn(async move { copy.read(stdout).await });
    reading.spawn(async move { lines.read(stderr).await });
    tokio::select! {
        () = group.ended() => {}
        _ = stopped => {}
    }
    // A server that ended by itself may have left its agents behind.
    let status = group.end(grace).await;
    // What is not read by then is held open by somebody who cannot be found.
    let _ = timeout(LAST_WORDS, async { while reading.join_next().await.is_some() {} }).await;
    told.send_replace(Some(LocalExit::of(status)));
}
