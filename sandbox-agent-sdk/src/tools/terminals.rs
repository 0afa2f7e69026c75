//! Terminals for the agent: processes on this machine.

mod allowed;
mod command;
mod error;
mod exit;
mod hidden;
mod options;
mod process;
mod reservation;
mod sandbox;
mod spawner;
mod tail;
mod visible;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use tokio::task::JoinSet;

use crate::client::network::check_runtime;
use crate::requests::Admission;

pub use self::command::TerminalCommand;
pub use self::error::TerminalError;
pub use self::exit::TerminalExit;
pub use self::options::TerminalOptions;
use self::process::Process;
pub(crate) use self::reservation::Reservation;
pub use self::sandbox::{Sandbox, SandboxError};
#[cfg(feature = "fuzzing")]
pub(crate) use self::tail::Tail;

/// Runs commands on this machine and buffers their output.
///
/// Each terminal belongs to a session, and no other session can use it. Clones share their terminals.
/// Dropping the last clone kills every command and its process tree. All methods need a Tokio runtime with
/// its drivers enabled.
///
/// # What ends with a terminal
/// In a [`Sandbox`]: every process that the command started.
///
/// On Linux without a sandbox: every process that still has the session, the parent, an environment variable
/// or a resource limit (`RLIMIT_RTTIME`) of the command. This includes daemons, stopped processes, and
/// processes without a parent, an environment or an output. Three kinds of processes survive: those that
/// deliberately change all four, those that another program starts on their behalf (a service manager, a
/// container engine), and those that run as another user (`sudo`). To make this search possible, each command runs
/// in its own session, without a controlling terminal.
///
/// On other Unix systems: the process group. A process that has left the group survives.
///
/// If this program is killed by SIGKILL, commands without a sandbox continue until they write to their closed
/// output.
#[derive(Clone)]
pub struct Terminals {
    inner: Arc<Inner>,
}

struct Inner {
    options: TerminalOptions,
    /// The memory of all buffered output.
    output: Arc<Admission>,
    /// Guards the terminals and their tasks; held for a look-up.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    terminals: HashMap<String, Terminal>,
    tasks: JoinSet<()>,
    /// Reservations for terminals that are starting: number to session. A terminal whose reservation was
    /// removed must not start.
    starting: HashMap<u64, String>,
    /// The number of reservations made.
    reservations: u64,
    /// Whether new terminals are rejected.
    closed: bool,
}

struct Terminal {
    session: String,
    process: Arc<Process>,
}

/// The output of a command, and its exit status.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TerminalOutput {
    /// The end of the output of both streams, in the order of writing.
    pub text: String,
    /// Whether earlier output was dropped.
    pub truncated: bool,
    /// The exit status; `None` while the command is running.
    pub exit: Option<TerminalExit>,
}

impl Terminals {
    /// Creates an empty set of terminals for one connection.
    #[must_use]
    pub fn new(options: TerminalOptions) -> Self {
        let output = Arc::new(Admission::new(options.total_output_limit));
        Self { inner: Arc::new(Inner { options, output, state: Mutex::default() }) }
    }

    /// Starts a command and returns the id of its terminal. The id cannot be guessed.
    ///
    /// # Errors
    /// [`TerminalError`] if the command is not allowed or fails to start.
    pub fn create(&self, session: &str, wanted: &TerminalCommand) -> Result<String, TerminalError> {
        if let Err(error) = check_runtime() {
            let source = Arc::new(io::Error::other(error));
            return Err(TerminalError::Io { command: wanted.command.clone(), source });
        }
        self.reserve(session)?.start(wanted)
    }

    /// Reserves a terminal that is about to start. The end of the session cancels the reservation.
    pub(crate) fn reserve(&self, session: &str) -> Result<Reservation, TerminalError> {
        Reservation::take(&self.inner, session)
    }

    /// Returns the end of a command's output, at most `limit` bytes.
    ///
    /// It never returns more than the buffered output.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub fn output(
        &self,
        session: &str,
        id: &str,
        limit: Option<u64>,
    ) -> Result<TerminalOutput, TerminalError> {
        let process = self.find(session, id)?;
        // The exit status is read first, so that the output read afterwards is complete.
        let exit = process.exit();
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let tail = process.output().tail.text(limit);
        Ok(TerminalOutput { text: tail.text, truncated: tail.truncated, exit })
    }

    /// Waits until a command exits. Does not wait for its children.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn wait_for_exit(&self, session: &str, id: &str) -> Result<TerminalExit, TerminalError> {
        let process = self.find(session, id)?;
        process.wait().await.ok_or_else(|| TerminalError::Unknown(id.to_owned()))
    }

    /// Kills a command and its process tree, even if the command itself has exited.
    ///
    /// The terminal and its output remain.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn kill(&self, session: &str, id: &str) -> Result<(), TerminalError> {
        self.find(session, id)?.kill().await;
        Ok(())
    }

    /// Kills a command and its process tree, and removes its terminal.
    ///
    /// Pending calls of [`wait_for_exit`](Self::wait_for_exit) return its exit status.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the release.
    pub async fn release(&self, session: &str, id: &str) -> Result<(), TerminalError> {
        let process = self.find(session, id)?;
        self.inner.lock().terminals.remove(id);
        process.release().await;
        Ok(())
    }

    /// Releases every terminal of a session.
    pub async fn release_session(&self, session: &str) {
        self.release_where(|of| of == session).await;
    }

    /// Releases every terminal.
    pub async fn release_all(&self) {
        self.release_where(|_| true).await;
    }

    /// Kills every command and its process tree, and rejects new ones.
    ///
    /// This scans the process table, which blocks for some milliseconds. [`release_all`](Self::release_all)
    /// does not block.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Rejects new commands and releases every terminal.
    pub(crate) async fn shut(&self) {
        self.inner.lock().closed = true;
        self.release_all().await;
    }

    /// Returns the number of terminals, whether their commands are running or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().terminals.len()
    }

    async fn release_where(&self, fits: impl Fn(&str) -> bool) {
        let processes: Vec<_> = {
            let mut state = self.inner.lock();
            state.starting.retain(|_, session| !fits(session));
            let gone = state.terminals.extract_if(|_, terminal| fits(&terminal.session));
            gone.map(|(_, terminal)| terminal.process).collect()
        };
        if processes.is_empty() {
            return;
        }
        // One scan for all of them. It completes even if the caller drops the future.
        processes.iter().for_each(|process| process.kill_group());
        let processes = Arc::new(processes);
        let copy = Arc::clone(&processes);
        // If the runtime is shutting down, it drops the supervisors, which kill the processes.
        match check_runtime() {
            Ok(()) => drop(tokio::task::spawn_blocking(move || Process::end_all(&copy)).await),
            Err(_) => Process::end_all(&copy),
        }
        join_all(processes.iter().map(|process| process.release())).await;
    }

    fn find(&self, session: &str, id: &str) -> Result<Arc<Process>, TerminalError> {
        let state = self.inner.lock();
        let terminal = state.terminals.get(id).filter(|terminal| terminal.session == session);
        terminal
            .map(|terminal| Arc::clone(&terminal.process))
            .ok_or_else(|| TerminalError::Unknown(id.to_owned()))
    }
}

impl Inner {
    fn close(&self) {
        let processes: Vec<_> = {
            let mut state = self.lock();
            state.closed = true;
            state.starting.clear();
            state.terminals.drain().map(|(_, terminal)| terminal.process).collect()
        };
        Process::end_all(&processes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Terminals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminals")
            .field("options", &self.inner.options)
            .field("count", &self.count())
            .finish()
    }
}
