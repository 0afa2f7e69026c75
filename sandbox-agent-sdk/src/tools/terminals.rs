//! Terminals for the agent: real processes on this machine.

mod allowed;
mod command;
mod error;
mod exit;
mod options;
mod place;
mod process;
mod sandbox;
mod spawner;
mod tail;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use tokio::task::JoinSet;

pub use self::command::TerminalCommand;
pub use self::error::TerminalError;
pub use self::exit::TerminalExit;
pub use self::options::TerminalOptions;
pub(crate) use self::place::Place;
use self::process::Process;
pub use self::sandbox::{Sandbox, SandboxError};
#[cfg(feature = "fuzzing")]
pub(crate) use self::tail::Tail;

/// Runs commands on this machine and keeps their output.
///
/// Each terminal belongs to a session, and no other session can use it. Clones share their terminals; when the last clone
/// is dropped, every command is killed with its process tree. All methods need a Tokio runtime with its drivers on.
///
/// # What ends with a terminal
/// In a [`Sandbox`], everything that the command started, whatever it does.
///
/// Without one, on Linux, every process that still has the session, the parent, an environment variable or a resource
/// limit (`RLIMIT_RTTIME`) of the command: also daemons, stopped processes, and processes without a parent, an
/// environment or an output. A process survives that gives up all four on purpose, and so does a process that another
/// program starts on its behalf (a service manager, a container engine) or that runs as another user (`sudo`). For that
/// search commands run in a session of their own, without a controlling terminal.
///
/// On other Unix systems the process group ends, and a process that has left it survives.
///
/// If this program is killed by SIGKILL, commands without a sandbox continue until they write to their closed output.
#[derive(Clone)]
pub struct Terminals {
    inner: Arc<Inner>,
}

struct Inner {
    options: TerminalOptions,
    /// Guards the terminals and their tasks; held for a look-up.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    terminals: HashMap<String, Terminal>,
    tasks: JoinSet<()>,
    /// Reservations of terminals that are being started, by number, with their sessions. One that is removed from here
    /// must not start any more.
    starting: HashMap<u64, String>,
    /// How many reservations were made.
    places: u64,
    /// Whether no more may be started.
    closed: bool,
}

struct Terminal {
    session: String,
    process: Arc<Process>,
}

/// The output of a command, and how it exited if it has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TerminalOutput {
    /// The end of its output on both streams, in the order in which it was written.
    pub text: String,
    /// Whether earlier output is left out.
    pub truncated: bool,
    /// How it exited; `None` while it runs.
    pub exit: Option<TerminalExit>,
}

impl Terminals {
    /// Creates the terminals of one connection; there are none yet.
    #[must_use]
    pub fn new(options: TerminalOptions) -> Self {
        Self { inner: Arc::new(Inner { options, state: Mutex::default() }) }
    }

    /// Starts a command and returns the id of its terminal, which cannot be guessed.
    ///
    /// # Errors
    /// If the command may not run, or cannot.
    pub fn create(&self, session: &str, wanted: &TerminalCommand) -> Result<String, TerminalError> {
        self.reserve(session)?.start(wanted)
    }

    /// Reserves a terminal that is about to be started. The end of the session cancels the reservation.
    pub(crate) fn reserve(&self, session: &str) -> Result<Place, TerminalError> {
        Place::take(&self.inner, session)
    }

    /// Returns the last bytes of a command's output: at most `limit`, and at most what is kept.
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
        // The exit is read first: the output that is read afterwards is complete then.
        let exit = process.exit();
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let tail = process.output().text(limit);
        Ok(TerminalOutput { text: tail.text, truncated: tail.truncated, exit })
    }

    /// Waits for the exit of a command, but not for its children.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn wait_for_exit(&self, session: &str, id: &str) -> Result<TerminalExit, TerminalError> {
        let process = self.find(session, id)?;
        process.wait().await.ok_or_else(|| TerminalError::Unknown(id.to_owned()))
    }

    /// Kills a command with its process tree, also if the command itself has exited. Its terminal stays, with its
    /// output.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn kill(&self, session: &str, id: &str) -> Result<(), TerminalError> {
        self.find(session, id)?.kill().await;
        Ok(())
    }

    /// Kills a command with its process tree and removes its terminal. Callers of
    /// [`wait_for_exit`](Self::wait_for_exit) get its exit. Dropping the future does not stop it.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
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

    /// Kills every command with its process tree before it returns, and refuses further ones. It scans the process table,
    /// which blocks for some milliseconds; [`release_all`](Self::release_all) does not block.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Refuses further commands and releases every terminal.
    pub(crate) async fn shut(&self) {
        self.inner.lock().closed = true;
        self.release_all().await;
    }

    /// The number of terminals, whether their commands run or not.
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
        // One scan for all of them. It happens also if the caller drops the future.
        processes.iter().for_each(|process| process.kill_group());
        let processes = Arc::new(processes);
        let copy = Arc::clone(&processes);
        // When the runtime is shutting down, the supervisors go with it, and the processes with them.
        let _ = tokio::task::spawn_blocking(move || Process::end_all(&copy)).await;
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
