//! One process.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use pty_process::OwnedWritePty;
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::ChildStdin, sync::watch, task::AbortHandle, time::timeout};

use super::{
    log::{Log, Stream},
    registry::Order,
};
use crate::problem::Problem;

/// One process, running or exited.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: String,
    pub(super) order: Order,
    pub(super) created_at_ms: u64,
    pub(super) log: Log,
    /// The process id, which is also the group's, until it was waited for. Guards signals: an id is signalled
    /// only while it belongs to this process.
    pub(super) pid: Mutex<Option<Pid>>,
    /// How it exited.
    pub(super) exit: watch::Sender<Option<Exit>>,
    /// Whether its record was deleted.
    pub(super) deleted: watch::Sender<bool>,
    /// The input. Held while input is written.
    pub(super) input: tokio::sync::Mutex<Option<Input>>,
    /// Its terminal, to resize it.
    pub(super) terminal: Mutex<Option<OwnedFd>>,
    /// The tasks that read its output.
    pub(super) readers: Mutex<Vec<AbortHandle>>,
}

/// How a process exited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exit {
    /// `None` after a signal.
    pub(super) code: Option<i32>,
    pub(super) at_ms: u64,
}

#[derive(Debug)]
pub(super) enum Input {
    Pipe(ChildStdin),
    Pty(OwnedWritePty),
}

impl Process {
    /// Returns the default stream of readers.
    pub(super) fn stream(&self) -> Stream {
        if self.order.tty { Stream::Pty } else { Stream::Combined }
    }

    pub(super) fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    pub(super) fn info(&self) -> Value {
        let mut info = json!({ "id": self.id, "command": self.order.command, "args": self.order.args });
        if let Some(cwd) = &self.order.cwd {
            info["cwd"] = cwd.as_str().into();
        }
        info["tty"] = self.order.tty.into();
        info["interactive"] = self.order.interactive.into();
        info["owner"] = "user".into();
        let exit = *self.exit.borrow();
        match exit {
            None => {
                info["status"] = "running".into();
                if let Some(pid) = *lock(&self.pid) {
                    info["pid"] = pid.as_raw().into();
                }
                info["createdAtMs"] = self.created_at_ms.into();
            }
            Some(exit) => {
                info["status"] = "exited".into();
                if let Some(code) = exit.code {
                    info["exitCode"] = code.into();
                }
                info["createdAtMs"] = self.created_at_ms.into();
                info["exitedAtMs"] = exit.at_ms.into();
            }
        }
        info
    }

    /// Sends a signal and waits for at most `wait` for the exit.
    pub(super) async fn signal(&self, signal: Signal, wait: Duration) {
        if let Some(pid) = *lock(&self.pid) {
            // An error means that it has just exited.
            let _ = kill(pid, signal);
        }
        let mut exit = self.exit.subscribe();
        let _ = timeout(wait, exit.wait_for(Option::is_some)).await;
    }

    /// Kills its process group and stops reading its output.
    pub(super) fn end(&self) {
        if let Some(pid) = *lock(&self.pid) {
            let _ = killpg(pid, Signal::SIGKILL);
        }
        lock(&self.readers).drain(..).for_each(|reader| reader.abort());
        self.deleted.send_replace(true);
    }

    pub(super) async fn write(&self, bytes: &[u8]) -> Result<(), Problem> {
        let mut input = self.input.lock().await;
        let Some(input) = input.as_mut().filter(|_| self.is_running()) else {
            return Err(Problem::conflict("process is not running"));
        };
        let written = match input {
            Input::Pipe(pipe) => pipe.write_all(bytes).await,
            Input::Pty(pty) => pty.write_all(bytes).await,
        };
        written.map_err(|error| Problem::stream_error(format!("failed to write process input: {error}")))
    }

    pub(super) fn resize(&self, cols: u16, rows: u16) -> Result<(), Problem> {
        self.require_terminal()?;
        let terminal = lock(&self.terminal);
        let Some(terminal) = terminal.as_ref().filter(|_| self.is_running()) else {
            return Err(Problem::conflict("PTY resize handle unavailable"));
        };
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(terminal, size)
            .map_err(|error| Problem::stream_error(format!("failed to resize PTY: {error}")))
    }

    pub(super) fn require_terminal(&self) -> Result<(), Problem> {
        if self.order.tty { Ok(()) } else { Err(Problem::conflict("process is not running in tty mode")) }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
