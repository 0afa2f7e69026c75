//! The interface between the hub and its agents.
//!
//! An [`Agent`] is a factory. [`Agent::launch`] creates a [`Running`] agent, which behaves like a process: it accepts
//! one JSON message at a time on its input, prints lines through its [`Outlet`] and ends with an [`Exit`]. The hub
//! treats scripted agents and real processes alike.

mod answers;
mod ask;
mod faulty;
mod instance;
mod play;
mod script;
mod step;
mod trigger;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use futures::future::BoxFuture;
use serde_json::Value;

pub use answers::AgentAnswer;
pub(crate) use answers::Answers;
pub use script::{Script, Turn};
pub use step::{Crash, Permission, PermissionOption, Step, Terminal, ToolCall};
pub use trigger::{text_triggers, text_triggers_at};

use crate::fault::Faults;
use crate::server::Panics;

/// A factory of running agents.
///
/// `/v1/rpc` launches an agent on its first use, and again on the first use after an exit. `/v1/acp` launches one for
/// each server id, and `/acp` one for each connection.
pub trait Agent: fmt::Debug + Send + Sync + 'static {
    /// Starts an agent that writes its output to `outlet`.
    ///
    /// Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`LaunchError`] if the agent cannot be started.
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>>;

    /// Returns whether the agent is available without an installation step.
    fn installed(&self) -> bool {
        true
    }
}

/// A launched agent.
///
/// Dropping the last handle ends the agent: its input closes and its tasks stop. The process group of a process gets
/// SIGTERM and, after a [grace period](crate::ProcessAgent::grace), SIGKILL.
pub trait Running: fmt::Debug + Send + Sync + 'static {
    /// Writes one JSON message to the agent's input. Completes when the agent has accepted it.
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>>;

    /// Returns the last stderr lines so far, at most sixteen, oldest first.
    fn stderr_tail(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns how many lines the agent has written to stderr so far.
    fn stderr_lines(&self) -> u64 {
        0
    }

    /// Closes the agent's input. A well-behaved agent then exits.
    fn close_input(&self);

    /// Asks the agent to exit: a process gets SIGTERM and, after a [grace period](crate::ProcessAgent::grace),
    /// SIGKILL. Does not block.
    fn terminate(&self) {
        self.kill();
    }

    /// Kills the agent. Does not block.
    fn kill(&self);
}

/// Output of an agent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Output {
    /// One line of standard output without its line ending. The hub drops blank lines.
    Line(Vec<u8>),
    /// The agent has exited. Nothing follows; a second exit is ignored.
    Exited(Exit),
}

/// The destination of a running agent's output. Passes it to the hub in the order of the calls.
///
/// Calls never block and never fail. If the server is gone, the output is discarded.
#[derive(Clone)]
pub struct Outlet {
    sink: Arc<dyn Fn(Output) + Send + Sync>,
    surroundings: Surroundings,
}

/// What a scripted agent shares with its server, besides its output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Faults that change the agent's behaviour.
    pub(crate) faults: Arc<Faults>,
    /// The responses that the agent received.
    pub(crate) answers: Answers,
    /// Where a panic in a script is reported.
    pub(crate) panics: Panics,
    /// Counts the sessions of all scripted agents of the server; `None` outside a server.
    pub(crate) sessions: Option<Arc<AtomicU64>>,
}

impl Outlet {
    /// Creates an outlet that passes all output to `sink`.
    pub fn new(sink: impl Fn(Output) + Send + Sync + 'static) -> Self {
        Self { sink: Arc::new(sink), surroundings: Surroundings::default() }
    }

    /// Attaches the outlet to a server.
    pub(crate) fn within(self, surroundings: Surroundings) -> Self {
        Self { surroundings, ..self }
    }

    /// Returns what the agent shares with its server.
    pub(crate) fn surroundings(&self) -> &Surroundings {
        &self.surroundings
    }

    /// Publishes one line of standard output.
    pub fn line(&self, line: impl Into<Vec<u8>>) {
        (self.sink)(Output::Line(line.into()));
    }

    /// Publishes one JSON value as a line of standard output.
    pub fn value(&self, value: &Value) {
        self.line(value.to_string());
    }

    /// Reports the agent's exit.
    pub fn exited(&self, exit: Exit) {
        (self.sink)(Output::Exited(exit));
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Outlet").finish_non_exhaustive()
    }
}

/// How an agent exited, and its stderr output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// The stderr output of the whole run, shortened by the rule of [`StderrSummary`].
    pub stderr: StderrSummary,
}

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// The process exited with this code.
    Code(i32),
    /// A signal with this number ended the process.
    Signal(i32),
}

impl ExitStatus {
    /// Returns whether the exit code is zero.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// Returns the exit code; `None` after a signal.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(_) => None,
        }
    }

    /// Returns the name of the signal that ended the process, such as `SIGKILL`.
    pub fn signal_name(self) -> Option<String> {
        match self {
            Self::Code(_) => None,
            Self::Signal(number) => Some(signal_name(number)),
        }
    }

    /// Returns the status word that a Unix parent gets from `wait`.
    pub fn wait_status(self) -> i32 {
        match self {
            Self::Code(code) => (code & 0xff) << 8,
            Self::Signal(number) => number & 0x7f,
        }
    }
}

/// The stderr output of an agent, shortened to its first and last lines.
///
/// Up to 100 lines are all in `head`. Beyond that the first 50 lines are in `head` and the last 50 in `tail`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StderrSummary {
    /// The first lines, joined by newlines; `None` if nothing was written.
    pub head: Option<String>,
    /// The last lines, joined by newlines, if lines in between were dropped.
    pub tail: Option<String>,
    /// Whether lines between head and tail were dropped.
    pub truncated: bool,
    /// The total number of lines written.
    pub total_lines: u64,
    /// The last lines, at most sixteen, as quoted in problems of the released server.
    pub last: Vec<String>,
}

/// The error of an agent that failed to start.
#[derive(Debug, thiserror::Error)]
#[error("agent failed to start")]
pub struct LaunchError(#[from] pub std::io::Error);

/// The error of a message to an agent whose input is closed.
#[derive(Debug, thiserror::Error)]
#[error("agent input is closed")]
pub struct Undelivered;

/// Returns the name of signals 1 to 31 on Linux, and the number of any other.
fn signal_name(number: i32) -> String {
    const NAMES: [&str; 31] = [
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(number - 1)
        .ok()
        .and_then(|index| NAMES.get(index))
        .map_or_else(|| format!("signal {number}"), |name| (*name).to_owned())
}
