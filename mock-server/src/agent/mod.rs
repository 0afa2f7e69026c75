//! What the server asks of an agent: the seam between the hub and whatever plays the agent.
//!
//! An [`Agent`] is a recipe. [`Agent::launch`] makes one [`Running`] agent out of it, which behaves like a
//! process: it takes one JSON message at a time on its input, prints lines through its [`Outlet`] and ends
//! with one [`Exit`]. The hub treats a scripted agent and a real process alike.

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

/// A recipe for an agent; launched once per server entry, and again after each exit.
pub trait Agent: fmt::Debug + Send + Sync + 'static {
    /// Starts one running agent that speaks through `outlet`.
    ///
    /// Must be called inside a tokio runtime. An agent that cannot be started says why.
    fn launch(&self, outlet: Outlet) -> BoxFuture<'static, Result<Arc<dyn Running>, LaunchError>>;

    /// Whether the agent is there without an installation step.
    fn installed(&self) -> bool {
        true
    }
}

/// One launched agent.
///
/// Dropping the last handle ends the agent at once: its input closes, its tasks stop, and a process loses
/// its whole process group.
pub trait Running: fmt::Debug + Send + Sync + 'static {
    /// Writes one JSON message to the agent's input; resolves when it was taken.
    fn deliver(&self, message: Value) -> BoxFuture<'_, Result<(), Undelivered>>;

    /// The last lines of standard error so far, at most sixteen, oldest first.
    fn stderr_tail(&self) -> Vec<String> {
        Vec::new()
    }

    /// Closes the agent's input, as the end of its last owner would; a well-behaved agent then exits.
    fn close_input(&self);

    /// Ends the agent without asking it. Does not block.
    fn kill(&self);
}

/// What an agent can print or do.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Output {
    /// One line of standard output without its line end; blank lines are dropped by the hub.
    Line(Vec<u8>),
    /// The agent ended. Nothing follows; a second exit is ignored.
    Exited(Exit),
}

/// Where a running agent's output goes: straight into the hub, in the order of the calls.
///
/// Calls never block and never fail: an outlet whose server is gone swallows what it is given.
#[derive(Clone)]
pub struct Outlet {
    sink: Arc<dyn Fn(Output) + Send + Sync>,
    surroundings: Surroundings,
}

/// What a scripted agent shares with its server besides its output.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// Faults that change what the agent does.
    pub(crate) faults: Arc<Faults>,
    /// The answers the agent was given.
    pub(crate) answers: Answers,
    /// Where a panic in a script is reported.
    pub(crate) panics: Panics,
    /// Counts the sessions of all scripted agents of the server; absent outside of one.
    pub(crate) sessions: Option<Arc<AtomicU64>>,
}

impl Outlet {
    /// An outlet that hands every output to `sink`.
    pub fn new(sink: impl Fn(Output) + Send + Sync + 'static) -> Self {
        Self { sink: Arc::new(sink), surroundings: Surroundings::default() }
    }

    /// The same outlet inside a server.
    pub(crate) fn within(self, surroundings: Surroundings) -> Self {
        Self { surroundings, ..self }
    }

    /// What the agent shares with its server.
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

    /// Says that the agent ended.
    pub fn exited(&self, exit: Exit) {
        (self.sink)(Output::Exited(exit));
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Outlet").finish_non_exhaustive()
    }
}

/// How an agent ended, and what it wrote to standard error in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// Standard error from the start of the agent, shortened by the head and tail rule.
    pub stderr: StderrSummary,
}

/// The two ways a process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// It was ended by this signal number.
    Signal(i32),
}

impl ExitStatus {
    /// Whether this is exit code zero.
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code, if it exited by itself.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(_) => None,
        }
    }

    /// The name of the signal that ended it, such as `SIGKILL`.
    pub fn signal_name(self) -> Option<String> {
        match self {
            Self::Code(_) => None,
            Self::Signal(number) => Some(signal_name(number)),
        }
    }

    /// The status word a unix parent reads from `wait`.
    pub fn wait_status(self) -> i32 {
        match self {
            Self::Code(code) => (code & 0xff) << 8,
            Self::Signal(number) => number & 0x7f,
        }
    }
}

/// Standard error under the head and tail rule: up to 100 lines are all in `head`; beyond that the first 50
/// are in `head` and the last 50 in `tail`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StderrSummary {
    /// The first lines joined by newlines; none when nothing was written.
    pub head: Option<String>,
    /// The last lines joined by newlines, only when lines between were dropped.
    pub tail: Option<String>,
    /// Whether lines between head and tail were dropped.
    pub truncated: bool,
    /// How many lines were written altogether.
    pub total_lines: u64,
    /// The last lines, at most sixteen, as the released server's problems quote them.
    pub last: Vec<String>,
}

/// An agent that could not be started.
#[derive(Debug, thiserror::Error)]
#[error("agent could not be started")]
pub struct LaunchError(#[from] pub std::io::Error);

/// A message that could not be written because the agent's input is closed.
#[derive(Debug, thiserror::Error)]
#[error("agent input is closed")]
pub struct Undelivered;

/// Names the signals Linux numbers 1 to 31; any other is given by number.
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
