//! Terminals for the agent: real processes on this machine.

mod allowed;
mod command;
mod error;
mod exit;
mod options;
mod place;
mod process;
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

/// Terminals: commands that were started and whose output is kept.
///
/// Each belongs to a session, and no other session can use it. It is cheap to clone; when the last copy is dropped, every
/// process is killed, with everything that came of it. Everything here needs a Tokio runtime with its drivers on.
///
/// # What is left behind
/// Nothing, on Linux. What a command has started ends with its terminal, also if it has a process group or a session of
/// its own, has lost its parent, its environment or its output, or is stopped: it is looked for in `/proc` until nothing
/// more is found. For that, commands run in a session of their own (and so without a terminal to talk to), with a variable
/// in their environment and with a limit on real-time threads of some hundred years, by which they are known. What is not
/// ended: whatever somebody else starts for a command (a service manager, a container engine, a server that runs already),
/// and processes of other users, whom this program may not signal (what `sudo` starts).
///
/// On other Unix systems the process group ends, and what has left it does not.
///
/// A program that is itself killed (SIGKILL) cannot end anything any more: its commands go on until they write to the
/// pipe that nobody reads. The system can be told to end them too, but it goes by the thread that started them and not
/// by the program, and threads of a runtime come and go.
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
    /// The places of those that are being started, by a number, with their sessions. What is taken out of here is not
    /// to start any more.
    starting: HashMap<u64, String>,
    /// How many places were given out.
    places: u64,
    /// Whether no more may be started.
    closed: bool,
}

struct Terminal {
    session: String,
    process: Arc<Process>,
}

/// What a command has written, and how it ended if it has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TerminalOutput {
    /// The end of what it wrote to both of its streams, in the order in which it did.
    pub text: String,
    /// Whether anything before that was left out.
    pub truncated: bool,
    /// How it ended; `None` while it runs.
    pub exit: Option<TerminalExit>,
}

impl Terminals {
    /// No terminals yet.
    #[must_use]
    pub fn new(options: TerminalOptions) -> Self {
        Self { inner: Arc::new(Inner { options, state: Mutex::default() }) }
    }

    /// Starts a command and gives the id of its terminal, which nobody can guess.
    ///
    /// # Errors
    /// If the command may not run, or cannot.
    pub fn create(&self, session: &str, wanted: &TerminalCommand) -> Result<String, TerminalError> {
        self.reserve(session)?.start(wanted)
    }

    /// Takes a place for a terminal that is about to be started. The end of the session takes it away.
    pub(crate) fn reserve(&self, session: &str) -> Result<Place, TerminalError> {
        Place::take(&self.inner, session)
    }

    /// What a command has written so far: the last bytes of it, at most `limit` and at most what is kept.
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
        // How it ended comes first: what is read afterwards is all of its output then.
        let exit = process.exit();
        let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let tail = process.output().text(limit);
        Ok(TerminalOutput { text: tail.text, truncated: tail.truncated, exit })
    }

    /// Waits for the end of a command. Children of it that go on do not count.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn wait_for_exit(&self, session: &str, id: &str) -> Result<TerminalExit, TerminalError> {
        let process = self.find(session, id)?;
        process.wait().await.ok_or_else(|| TerminalError::Unknown(id.to_owned()))
    }

    /// Kills a command with everything that came of it, also if the command has ended before. Its terminal stays, with
    /// what was written.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub async fn kill(&self, session: &str, id: &str) -> Result<(), TerminalError> {
        self.find(session, id)?.kill().await;
        Ok(())
    }

    /// Kills a command, with everything that came of it, and forgets its terminal. Whoever waits for its end is told how
    /// it ended. It happens also if nobody waits for this.
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

    /// Kills every command with everything that came of it before it returns, and starts no more. It looks at every
    /// process of the machine, which takes some milliseconds; [`release_all`](Self::release_all) does it elsewhere.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Starts no more, and releases every terminal.
    pub(crate) async fn shut(&self) {
        self.inner.lock().closed = true;
        self.release_all().await;
    }

    /// How many terminals there are, whether their commands run or not.
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
        // One look at the machine for all of them saves many. It happens whether anybody waits for it or not.
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
