//! The exit codes of the program.

use std::process::ExitCode;

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The user ended the chat, or the input ended.
    Done,
    /// A turn failed, or ended before the agent was done.
    TurnFailed,
    /// The options are invalid.
    Usage,
    /// The server or the agent is unreachable, or the session could not be started.
    NotStarted,
    /// The agent exited.
    AgentDied,
    /// The terminal is gone.
    HungUp,
    /// The user ended the chat with Ctrl-C.
    Interrupted,
    /// The program received SIGTERM.
    Terminated,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::TurnFailed => 1,
            Exit::Usage => 2,
            Exit::NotStarted => 3,
            Exit::AgentDied => 4,
            Exit::HungUp => 129,
            Exit::Interrupted => 130,
            Exit::Terminated => 143,
        })
    }
}
