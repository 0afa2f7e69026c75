//! Terminals for the agent: real processes on this machine.

mod command;
mod error;
mod exit;
mod options;
mod process;
mod tail;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::join_all;
use tokio::task::JoinSet;

pub use self::command::TerminalCommand;
pub use self::error::TerminalError;
pub use self::exit::TerminalExit;
pub use self::options::TerminalOptions;
use self::process::Process;

/// Terminals: commands that were started and whose output is kept.
///
/// Each belongs to a session, and no other session can use it. It is cheap to clone; when the last copy is dropped, every
/// process is killed, with its process group. Everything here needs a Tokio runtime with its drivers on.
///
/// A process that leaves its process group on purpose, as a daemon does, is not found again.
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
    /// How many are being started.
    starting: usize,
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
        let options = &self.inner.options;
        let command = options.prepare(wanted)?;
        let place = Place::take(&self.inner)?;
        let (process, supervisor) =
            Process::start(command, options.limit_of(wanted)).map_err(|source| match source.kind() {
                std::io::ErrorKind::NotFound => TerminalError::NoCommand(wanted.command.clone()),
                _ => TerminalError::Io { command: wanted.command.clone(), source: Arc::new(source) },
            })?;
        let id = new_id();
        let mut state = self.inner.lock();
        if state.closed {
            // Dropping the supervisor ends the process.
            return Err(TerminalError::Closed);
        }
        while state.tasks.try_join_next().is_some() {}
        state.tasks.spawn(supervisor.run());
        state.terminals.insert(id.clone(), Terminal { session: session.to_owned(), process });
        drop(state);
        drop(place);
        Ok(id)
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

    /// Kills a command and everything in its process group. Its terminal stays, with what was written.
    ///
    /// # Errors
    /// [`TerminalError::Unknown`] if the session has no such terminal.
    pub fn kill(&self, session: &str, id: &str) -> Result<(), TerminalError> {
        self.find(session, id)?.kill();
        Ok(())
    }

    /// Kills a command, with everything in its process group, and forgets its terminal. Whoever waits for its end is
    /// told how it ended.
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
        self.release_where(|terminal| terminal.session == session).await;
    }

    /// Releases every terminal.
    pub async fn release_all(&self) {
        self.release_where(|_| true).await;
    }

    /// Ends every terminal, at once and without waiting, and starts no more.
    pub fn close(&self) {
        self.inner.close();
    }

    /// How many terminals there are, whether their commands run or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().terminals.len()
    }

    async fn release_where(&self, fits: impl Fn(&Terminal) -> bool) {
        let processes: Vec<_> = {
            let mut state = self.inner.lock();
            state
                .terminals
                .extract_if(|_, terminal| fits(terminal))
                .map(|(_, terminal)| terminal.process)
                .collect()
        };
        // All are killed before any is waited for.
        processes.iter().for_each(|process| process.end());
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
        let mut state = self.lock();
        state.closed = true;
        for (_, terminal) in state.terminals.drain() {
            terminal.process.end();
        }
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

/// The right to start one more.
struct Place<'a>(&'a Inner);

impl<'a> Place<'a> {
    fn take(inner: &'a Inner) -> Result<Self, TerminalError> {
        let limit = inner.options.max_terminals;
        let mut state = inner.lock();
        if state.closed {
            return Err(TerminalError::Closed);
        }
        if state.terminals.len() + state.starting >= limit {
            return Err(TerminalError::TooMany { limit });
        }
        state.starting += 1;
        drop(state);
        Ok(Self(inner))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().starting -= 1;
    }
}

/// The keys of a hasher come from the system's randomness, and what it makes of a number cannot be foreseen without
/// them.
fn new_id() -> String {
    let random = || RandomState::new().hash_one(0u8);
    format!("term-{:016x}{:016x}", random(), random())
}

impl fmt::Debug for Terminals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminals")
            .field("options", &self.inner.options)
            .field("count", &self.count())
            .finish()
    }
}
