//! One process and its output.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::{Notify, watch};

use super::TerminalExit;
use super::spawner::Spawner;
use super::tail::Tail;
use crate::process_tree::{ProcessTree, run_blocking};
use crate::requests::Admitted;

/// How much one call reads.
const PIECE: usize = 64 << 10;
/// The maximum capacity of a pipe.
const PIPE: usize = 1 << 20;
/// How long a killed process may take to exit before the supervisor stops waiting for it.
const REAPING: Duration = Duration::from_secs(2);

/// A started process, shared by the users of its terminal.
#[derive(Debug)]
pub(super) struct Process {
    /// Guards its output; held for a push or a copy.
    output: Mutex<Output>,
    exit: watch::Sender<Option<TerminalExit>>,
    tree: Arc<ProcessTree>,
    released: Notify,
    gone: watch::Sender<bool>,
}

/// The buffered output of a process.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) tail: Tail,
    /// What it counts in the budget of all terminals.
    admitted: Admitted,
}

impl Output {
    pub(super) fn new(limit: usize, admitted: Admitted) -> Self {
        Self { tail: Tail::new(limit), admitted }
    }

    /// Marks the output as complete. From now on only its size counts.
    fn complete(&mut self) {
        self.tail.complete();
        self.admitted.shrink_to(self.tail.memory());
    }
}

/// The task that reads the output of a process and waits for its exit.
#[derive(Debug)]
pub(super) struct Supervisor {
    process: Arc<Process>,
    child: Child,
    pipe: Option<Receiver>,
    children: SignalStream,
    piece: Vec<u8>,
}

impl Process {
    /// Starts a process as the leader of a process tree. Standard output and standard error share one pipe,
    /// which preserves their order; the command has its standard input. A spawner starts it on its own thread.
    pub(super) fn start(
        mut command: Command,
        output: Output,
        spawner: Option<&Spawner>,
    ) -> io::Result<(Arc<Self>, Supervisor)> {
        // Registered before the start, so that no exit is missed.
        let children = signal(SignalKind::child())?;
        let (reader, writer) = io::pipe()?;
        let pipe = Receiver::from_owned_fd(reader.into())?;
        command.stdout(writer.try_clone()?).stderr(writer);
        // The command holds copies of the pipe's write end. It is dropped after the start.
        let (child, tree) = match spawner {
            Some(spawner) => {
                let runtime = tokio::runtime::Handle::current();
                spawner.run(move || {
                    let _entered = runtime.enter();
                    ProcessTree::start(command)
                })??
            }
            None => ProcessTree::start(command)?,
        };
        let process = Arc::new(Self {
            output: Mutex::new(output),
            exit: watch::Sender::new(None),
            tree,
            released: Notify::new(),
            gone: watch::Sender::new(false),
        });
        let supervisor = Supervisor {
            process: Arc::clone(&process),
            child,
            pipe: Some(pipe),
            children,
            piece: vec![0; PIECE],
        };
        Ok((process, supervisor))
    }

    pub(super) fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exit(&self) -> Option<TerminalExit> {
        self.exit.borrow().clone()
    }

    /// Waits for the exit. Returns `None` if the supervisor ended first.
    pub(super) async fn wait(&self) -> Option<TerminalExit> {
        let (mut exit, mut gone) = (self.exit.subscribe(), self.gone.subscribe());
        tokio::select! {
            biased;
            exit = exit.wait_for(Option::is_some) => exit.ok().and_then(|exit| exit.clone()),
            _ = gone.wait_for(|gone| *gone) => self.exit(),
        }
    }

    /// Kills the process group. Other members of the process tree may survive.
    pub(super) fn kill_group(&self) {
        self.tree.kill_group();
    }

    /// Kills the process tree and waits until it is dead.
    pub(super) async fn kill(&self) {
        self.kill_group();
        run_blocking(&self.tree, ProcessTree::kill).await;
    }

    /// Makes the supervisor kill the process tree, and waits for that. Dropping the future does not stop it.
    pub(super) async fn release(&self) {
        let mut gone = self.gone.subscribe();
        self.kill_group();
        self.released.notify_one();
        // `self` holds the sender, so waiting cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
    }

    /// Kills the process trees of these processes before it returns.
    pub(super) fn end_all(processes: &[Arc<Self>]) {
        ProcessTree::finish_all(processes.iter().map(|process| &*process.tree));
        processes.iter().for_each(|process| process.released.notify_one());
    }
}

impl Supervisor {
    /// Runs until the terminal is released.
    ///
    /// An exited process is not reaped until then, so that its process tree can be found.
    pub(super) async fn run(mut self) {
        let process = Arc::clone(&self.process);
        let released = process.released.notified();
        tokio::pin!(released);
        loop {
            if process.exit.borrow().is_none()
                && let Some(exit) = self.look()
            {
                self.drain();
                process.exit.send_replace(Some(exit));
            }
            let ended = process.exit.borrow().is_some();
            tokio::select! {
                biased;
                () = &mut released => break,
                _ = self.children.recv(), if !ended => {}
                () = readable(self.pipe.as_ref()) => self.read(),
            }
            // A command that prints without pause must not starve other tasks.
            tokio::task::coop::consume_budget().await;
        }
        run_blocking(&process.tree, ProcessTree::finish).await;
        // It was killed. The supervisor does not wait longer for a process that hangs in the kernel.
        if let Ok(Ok(status)) = tokio::time::timeout(REAPING, self.child.wait()).await
            && process.exit.borrow().is_none()
        {
            use std::os::unix::process::ExitStatusExt;
            let exit = TerminalExit::new(status.code(), status.signal());
            process.exit.send_replace(Some(exit));
        }
    }

    /// Returns the exit status, if the process has exited.
    fn look(&self) -> Option<TerminalExit> {
        match self.process.tree.exit() {
            Ok(status) => status.as_ref().map(TerminalExit::from_status),
            Err(error) => {
                tracing::warn!(%error, "failed to read the exit status of a process");
                None
            }
        }
    }

    /// Reads the available output, once.
    fn read(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        match pipe.try_read(&mut self.piece) {
            Ok(0) => self.close(),
            Ok(read) => self.process.output().tail.push(&self.piece[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.close(),
        }
    }

    /// Reads the output from before the exit directly, because the runtime may not have been notified of it
    /// yet. A child that continues to write does not delay this: no pipe holds more than is read here.
    fn drain(&mut self) {
        let mut left = PIPE;
        while left > 0
            && let Some(pipe) = &self.pipe
        {
            match rustix::io::read(pipe, &mut self.piece[..]) {
                Ok(0) => self.close(),
                Ok(read) => {
                    self.process.output().tail.push(&self.piece[..read]);
                    left = left.saturating_sub(read);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.close(),
            }
        }
    }

    /// Marks the output as complete.
    fn close(&mut self) {
        self.pipe = None;
        self.process.output().complete();
    }
}

impl Drop for Supervisor {
    /// The task may be dropped at any time, which kills the process.
    fn drop(&mut self) {
        self.process.tree.finish();
        // The terminal was removed, so no other call can find its output.
        self.process.output().admitted.shrink_to(0);
        self.process.gone.send_replace(true);
    }
}

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        // Fails if the runtime is shutting down; reading fails then too.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
