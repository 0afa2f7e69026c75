//! Starts a process.

use std::{
    io,
    os::{fd::AsFd, unix::process::ExitStatusExt},
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use nix::unistd::Pid;
use pty_process::Size;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};

use super::{
    log::{Log, Stream, now_ms},
    process::{Exit, Input, Process, lock},
    registry::Order,
};

/// How much is read at once.
const CHUNK_BYTES: usize = 8192;

/// How long output may arrive after the exit before the exit is reported.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

/// The size of a new terminal.
const SIZE: (u16, u16) = (24, 80);

/// A started process.
struct Started {
    child: Child,
    input: Option<Input>,
    terminal: Option<std::os::fd::OwnedFd>,
    readers: Vec<JoinHandle<()>>,
}

/// Starts a process and the tasks that read its output and wait for its exit.
pub(super) fn spawn(
    id: String,
    order: Order,
    directory: &Path,
    home: &Path,
    log_limit: usize,
) -> io::Result<Arc<Process>> {
    let log = Log::new(log_limit);
    let Started { child, input, terminal, readers } = if order.tty {
        with_terminal(&order, directory, home, &log)?
    } else {
        with_pipes(&order, directory, home, &log)?
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    let process = Arc::new(Process {
        id,
        order,
        created_at_ms: now_ms(),
        log,
        pid: Mutex::new(pid),
        exit: watch::Sender::new(None),
        deleted: watch::Sender::new(false),
        input: tokio::sync::Mutex::new(input),
        terminal: Mutex::new(terminal),
        readers: Mutex::new(readers.iter().map(JoinHandle::abort_handle).collect()),
    });
    // The task ends with the process, which the registry kills on drop.
    tokio::spawn(wait(Arc::clone(&process), child, readers));
    Ok(process)
}

/// Builds the command without its streams.
pub(super) fn command(order: &Order, directory: &Path, home: &Path) -> Command {
    let mut command = Command::new(&order.command);
    command.args(&order.args).current_dir(directory).env("HOME", home).env("PWD", directory);
    command.env("TERM", "xterm-256color").envs(&order.env);
    command
}

fn with_pipes(order: &Order, directory: &Path, home: &Path, log: &Log) -> io::Result<Started> {
    let mut command = command(order, directory, home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let mut readers = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        readers.push(tokio::spawn(read(stdout, Stream::Stdout, log.clone())));
    }
    if let Some(stderr) = child.stderr.take() {
        readers.push(tokio::spawn(read(stderr, Stream::Stderr, log.clone())));
    }
    let input = child.stdin.take().map(Input::Pipe);
    Ok(Started { child, input, terminal: None, readers })
}

fn with_terminal(order: &Order, directory: &Path, home: &Path, log: &Log) -> io::Result<Started> {
    let (pty, pts) = pty_process::open().map_err(io::Error::other)?;
    pty.resize(Size::new(SIZE.0, SIZE.1)).map_err(io::Error::other)?;
    let terminal = pty.as_fd().try_clone_to_owned()?;
    let mut command = pty_process::Command::new(&order.command);
    command = command.args(&order.args).current_dir(directory).env("HOME", home).env("PWD", directory);
    command = command.env("TERM", "xterm-256color").envs(&order.env).kill_on_drop(true);
    let child = command.spawn(pts).map_err(|error| match error {
        pty_process::Error::Io(error) => error,
        other => io::Error::other(other),
    })?;
    let (output, input) = pty.into_split();
    let readers = vec![tokio::spawn(read(output, Stream::Pty, log.clone()))];
    Ok(Started { child, input: Some(Input::Pty(input)), terminal: Some(terminal), readers })
}

/// Reads a stream to its end. A terminal ends with an error after its process has exited.
async fn read(mut stream: impl AsyncRead + Unpin, kind: Stream, log: Log) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        log.push(kind, Bytes::copy_from_slice(&buffer[..length]));
    }
}

/// Waits for the exit, and for the output before it.
async fn wait(process: Arc<Process>, mut child: Child, readers: Vec<JoinHandle<()>>) {
    let status = child.wait().await;
    lock(&process.pid).take();
    let at_ms = now_ms();
    let drained = async {
        for reader in readers {
            // An aborted reader counts as finished.
            let _ = reader.await;
        }
    };
    // Later output of child processes is still added to the log.
    let _ = timeout(DRAIN_LIMIT, drained).await;
    let code = status.ok().filter(|status: &ExitStatus| status.signal().is_none()).and_then(|it| it.code());
    process.exit.send_replace(Some(Exit { code, at_ms }));
    lock(&process.terminal).take();
}
