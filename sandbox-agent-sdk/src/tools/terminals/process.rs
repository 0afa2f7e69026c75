//! One process and what it writes.

use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::sync::{Notify, watch};

use super::TerminalExit;
use super::tail::Tail;

/// How much is read at once.
const PIECE: usize = 64 << 10;
/// How much a pipe can hold, at most, of what a process wrote before it ended.
const PIPE: usize = 1 << 20;

/// A process that was started, as everybody sees it who uses its terminal.
#[derive(Debug)]
pub(super) struct Process {
    /// Guards what it wrote; held for a push or a copy.
    output: Mutex<Tail>,
    exit: watch::Sender<Option<TerminalExit>>,
    /// Guards the right to signal the process group; held for a signal. It is gone before the process is taken off the
    /// system's list: from then on the number may be that of somebody else.
    group: Mutex<Option<Pid>>,
    released: Notify,
    gone: watch::Sender<bool>,
}

/// The task that reads what a process writes and sees how it ends.
#[derive(Debug)]
pub(super) struct Supervisor {
    process: Arc<Process>,
    child: Child,
    pipe: Option<Receiver>,
    children: SignalStream,
    id: Pid,
    piece: Vec<u8>,
}

impl Process {
    /// Starts a process, in a group of its own. Standard output and standard error are one pipe, so that what they say
    /// comes in the order in which it was written.
    pub(super) fn start(mut command: Command, limit: usize) -> io::Result<(Arc<Self>, Supervisor)> {
        // Before the start, so that no end is missed.
        let children = signal(SignalKind::child())?;
        let (reader, writer) = io::pipe()?;
        let pipe = Receiver::from_owned_fd(reader.into())?;
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = command.process_group(0).kill_on_drop(true).spawn()?;
        // The command holds copies of the end that the process writes to.
        drop(command);
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // A process that was not waited for has an id.
        let id = id.ok_or_else(|| io::Error::other("a process without an id"))?;
        let process = Arc::new(Self {
            output: Mutex::new(Tail::new(limit)),
            exit: watch::Sender::new(None),
            group: Mutex::new(Some(id)),
            released: Notify::new(),
            gone: watch::Sender::new(false),
        });
        let supervisor = Supervisor {
            process: Arc::clone(&process),
            child,
            pipe: Some(pipe),
            children,
            id,
            piece: vec![0; PIECE],
        };
        Ok((process, supervisor))
    }

    pub(super) fn output(&self) -> MutexGuard<'_, Tail> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn exit(&self) -> Option<TerminalExit> {
        self.exit.borrow().clone()
    }

    /// Waits for the end. `None` if it was given up, and nobody will ever know.
    pub(super) async fn wait(&self) -> Option<TerminalExit> {
        let (mut exit, mut gone) = (self.exit.subscribe(), self.gone.subscribe());
        tokio::select! {
            biased;
            exit = exit.wait_for(Option::is_some) => exit.ok().and_then(|exit| exit.clone()),
            _ = gone.wait_for(|gone| *gone) => self.exit(),
        }
    }

    /// Kills the process and everything in its group.
    pub(super) fn kill(&self) {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        kill(*group);
    }

    /// Kills the process and everything in its group, for the last time, and lets go of it.
    pub(super) fn end(&self) {
        self.released.notify_one();
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        kill(group.take());
    }

    /// Ends it, and waits until the process is gone.
    pub(super) async fn release(&self) {
        let mut gone = self.gone.subscribe();
        self.end();
        // The sender is `self`, so waiting cannot fail.
        let _ = gone.wait_for(|gone| *gone).await;
    }
}

fn kill(group: Option<Pid>) {
    // A group without a living process is as it should be.
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

impl Supervisor {
    /// Runs until the terminal is released.
    ///
    /// A process that has ended stays on the system's list till then: as long as it does, its number is that of its group,
    /// and whatever else is in the group can be ended too.
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
        }
        process.end();
        // It was killed, so that this takes no longer than the system does.
        if let Ok(status) = self.child.wait().await
            && process.exit.borrow().is_none()
        {
            use std::os::unix::process::ExitStatusExt;
            let exit = TerminalExit::new(status.code(), status.signal());
            process.exit.send_replace(Some(exit));
        }
    }

    /// How the process ended, if it has. It stays on the list.
    fn look(&self) -> Option<TerminalExit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(self.id), options) {
            Ok(Some(status)) => Some(TerminalExit::from_status(&status)),
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "the end of a process cannot be seen");
                None
            }
        }
    }

    /// Reads what there is, once.
    fn read(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        match pipe.try_read(&mut self.piece) {
            Ok(0) => self.close(),
            Ok(read) => self.process.output().push(&self.piece[..read]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.close(),
        }
    }

    /// Reads what the process wrote before it ended, past the runtime, which may not have heard of it yet. A child of it that goes on writing does not hold this up: no pipe
    /// holds more than is read here.
    fn drain(&mut self) {
        let mut left = PIPE;
        while left > 0
            && let Some(pipe) = &self.pipe
        {
            match rustix::io::read(pipe, &mut self.piece[..]) {
                Ok(0) => self.close(),
                Ok(read) => {
                    self.process.output().push(&self.piece[..read]);
                    left = left.saturating_sub(read);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.close(),
            }
        }
    }

    /// Nobody can write any more.
    fn close(&mut self) {
        self.pipe = None;
        self.process.output().complete();
    }
}

impl Drop for Supervisor {
    /// The task may be given up at any time, and with it the process.
    fn drop(&mut self) {
        self.process.end();
        self.process.gone.send_replace(true);
    }
}

async fn readable(pipe: Option<&Receiver>) {
    match pipe {
        // It fails when the runtime is shutting down, and so does reading then.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}
