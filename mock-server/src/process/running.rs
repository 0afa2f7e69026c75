//! A launched process: its pipes, its tasks and its exit.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{ChildStdin, Command},
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};

use super::{
    group::{Group, Pipes},
    lines::{Lines, MAX_STDOUT_LINE_BYTES, pieces},
    stderr::StderrCapture,
};
use crate::agent::{Exit, ExitStatus, Outlet, Running, Undelivered};

/// How many messages may be queued for the input of the process.
const INPUT_QUEUE: usize = 64;

/// How many bytes are read from a pipe at once: the capacity of a Linux pipe.
const READ_BYTES: usize = 64 * 1024;

/// How long the pipes of a dead process are read before its exit is reported.
///
/// The output of an exited process is in the pipes and is read without delay. The limit matters only if a
/// process outside the group holds the pipes open.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// How many of the last stderr lines the server quotes.
const QUOTED_LINES: usize = 16;

/// A process, running or exited.
#[derive(Debug)]
pub(super) struct RunningProcess {
    /// Messages for the writer task, each with a sender for its outcome.
    input: mpsc::Sender<Message>,
    /// The requested end of the process. Dropping it makes the tasks end the process.
    shutdown: watch::Sender<Shutdown>,
    /// Filled by the stderr task and read for quotes; held only for single pushes and copies.
    stderr: Arc<Mutex<StderrCapture>>,
}

/// One line for the process, and a sender to confirm that it was written.
#[derive(Debug)]
struct Message {
    line: Vec<u8>,
    written: oneshot::Sender<()>,
}

/// How the owner wants the process to end. Each value implies the previous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Shutdown {
    /// Keep running.
    Run,
    /// Close the input.
    CloseInput,
    /// Send SIGTERM, and kill after the grace period.
    Terminate,
    /// Kill immediately.
    Kill,
}

impl RunningProcess {
    /// Starts `command` and its tasks. Must be called inside a tokio runtime.
    pub(super) fn start(command: &mut Command, grace: Duration, outlet: Outlet) -> io::Result<Self> {
        let (group, pipes) = Group::spawn(command)?;
        let (input, messages) = mpsc::channel(INPUT_QUEUE);
        let (shutdown, requests) = watch::channel(Shutdown::Run);
        let stderr = Arc::new(Mutex::new(StderrCapture::default()));
        let supervisor = Supervisor { group, requests, grace, outlet, stderr: Arc::clone(&stderr) };
        // The task owns the process. It ends with the process, and ends the process when this handle is
        // dropped.
        tokio::spawn(supervisor.run(pipes, messages));
        Ok(Self { input, shutdown, stderr })
    }

    fn request(&self, shutdown: Shutdown) {
        self.shutdown.send_if_modified(|current| {
            let stronger = shutdown > *current;
            if stronger {
                *current = shutdown;
            }
            stronger
        });
    }
}

impl Running for RunningProcess {
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>> {
        let mut line = message.to_string().into_bytes();
        line.push(b'\n');
        Box::pin(async move {
            let (written, outcome) = oneshot::channel();
            self.input.send(Message { line, written }).await.map_err(|_| Undelivered)?;
            outcome.await.map_err(|_| Undelivered)
        })
    }

    fn stderr_tail(&self) -> Vec<String> {
        lock(&self.stderr).last_lines(QUOTED_LINES)
    }

    fn stderr_lines(&self) -> u64 {
        lock(&self.stderr).total_lines()
    }

    fn close_input(&self) {
        self.request(Shutdown::CloseInput);
    }

    fn terminate(&self) {
        self.request(Shutdown::Terminate);
    }

    fn kill(&self) {
        self.request(Shutdown::Kill);
    }
}

/// The owner of a process: runs its I/O tasks, ends it on request, and reports its exit.
#[derive(Debug)]
struct Supervisor {
    group: Group,
    requests: watch::Receiver<Shutdown>,
    grace: Duration,
    outlet: Outlet,
    stderr: Arc<Mutex<StderrCapture>>,
}

impl Supervisor {
    async fn run(mut self, pipes: Pipes, messages: mpsc::Receiver<Message>) {
        let mut writer = JoinSet::new();
        writer.spawn(write_input(pipes.stdin, messages, self.requests.clone()));
        let mut readers = JoinSet::new();
        readers.spawn(read_output(pipes.stdout, self.outlet.clone()));
        readers.spawn(read_errors(pipes.stderr, Arc::clone(&self.stderr)));

        let status = self.ended().await;
        writer.shutdown().await;
        let drained =
            tokio::time::timeout(DRAIN_LIMIT, async { while readers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::debug!("the agent has exited, but another process holds its pipes open");
            readers.shutdown().await;
        }
        let stderr = lock(&self.stderr).summary();
        tracing::debug!(?status, stderr_lines = stderr.total_lines, "agent process exited");
        self.outlet.exited(Exit { status, stderr });
    }

    /// Waits until the process has exited. Ends it if its owner requests that or is dropped.
    async fn ended(&mut self) -> ExitStatus {
        let mut watching = true;
        let mut deadline: Option<Instant> = None;
        loop {
            let last_call = deadline.unwrap_or_else(Instant::now);
            tokio::select! {
                status = self.group.wait() => return status,
                changed = self.requests.changed(), if watching => {
                    watching = changed.is_ok();
                    // Dropping the handle terminates the process.
                    let request =
                        if watching { *self.requests.borrow_and_update() } else { Shutdown::Terminate };
                    match request {
                        Shutdown::Run | Shutdown::CloseInput => {}
                        Shutdown::Terminate => {
                            self.group.terminate();
                            deadline = deadline.or_else(|| Some(Instant::now() + self.grace));
                        }
                        Shutdown::Kill => self.group.kill(),
                    }
                }
                () = tokio::time::sleep_until(last_call), if deadline.is_some() => {
                    deadline = None;
                    self.group.kill();
                }
            }
        }
    }
}

/// Writes messages until the input is closed, the process stops reading, or all senders are dropped.
///
/// The task owns the pipe, so a caller that is dropped in the middle of a message cannot truncate it.
async fn write_input(
    mut stdin: ChildStdin,
    mut messages: mpsc::Receiver<Message>,
    mut requests: watch::Receiver<Shutdown>,
) {
    let work = async {
        while let Some(message) = messages.recv().await {
            if stdin.write_all(&message.line).await.is_err() {
                return;
            }
            // An error means that the sender was dropped.
            let _ = message.written.send(());
        }
    };
    tokio::select! {
        () = work => {}
        _ = requests.wait_for(|shutdown| *shutdown >= Shutdown::CloseInput) => {}
    }
}

/// Forwards every line of standard output. A message behind text on the same line becomes a separate line.
async fn read_output(stdout: impl AsyncRead + Unpin, outlet: Outlet) {
    let mut lines = Lines::new(MAX_STDOUT_LINE_BYTES);
    let pass = |line: Vec<u8>| {
        let pieces = pieces(&line);
        match pieces.len() {
            1 => outlet.line(line),
            _ => pieces.into_iter().for_each(|piece| outlet.line(piece.to_vec())),
        }
    };
    pump(stdout, |bytes| lines.push(bytes, pass)).await;
    lines.finish(pass);
}

/// Captures standard error.
async fn read_errors(stderr: impl AsyncRead + Unpin, capture: Arc<Mutex<StderrCapture>>) {
    pump(stderr, |bytes| lock(&capture).push(bytes)).await;
}

/// Reads to the end. A read error counts as the end.
async fn pump(mut pipe: impl AsyncRead + Unpin, mut sink: impl FnMut(&[u8])) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        sink(&buffer[..length]);
    }
}

/// A capture is consistent between any two pushes, so a poisoned lock is safe to use.
fn lock(capture: &Mutex<StderrCapture>) -> std::sync::MutexGuard<'_, StderrCapture> {
    capture.lock().unwrap_or_else(PoisonError::into_inner)
}
