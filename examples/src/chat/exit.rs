//! With which code the program ends.

use std::process::ExitCode;

/// Why the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    /// The user, or the input, has come to an end.
    Done,
    /// A turn failed, or ended before the agent was done.
    TurnFailed,
    /// The options cannot be used.
    Usage,
    /// The server or the agent could not be reached, or the session not started.
    NotStarted,
    /// The agent died.
    AgentDied,
    /// The terminal is gone.
    HungUp,
    /// The user left by Ctrl-C.
    Interrupted,
    /// The program was asked to end.
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
