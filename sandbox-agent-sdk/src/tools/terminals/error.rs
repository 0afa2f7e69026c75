//! Why a terminal could not be made or used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::RpcError;

/// Why a terminal could not be made or used. The agent is told too.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// There is no such terminal, or it is another session's.
    #[error("there is no terminal `{0}`")]
    Unknown(String),
    /// The command may not be run.
    #[error("the command `{0}` is not allowed")]
    NotAllowed(String),
    /// The command may be run, but not with this environment variable.
    #[error("the environment variable `{0}` is not allowed")]
    VariableNotAllowed(String),
    /// The directory to run in is not one of those that may be used.
    #[error("{} is not in the directories that may be used", .0.display())]
    Outside(PathBuf),
    /// The directory to run in is not there or is no directory.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// The name or the value of an environment variable cannot be used.
    #[error("the environment variable `{0}` cannot be set")]
    Environment(String),
    /// There is no such command.
    #[error("there is no command `{0}`")]
    NoCommand(String),
    /// There are too many terminals already.
    #[error("there are {limit} terminals already")]
    TooMany {
        /// How many there may be.
        limit: usize,
    },
    /// The session has too many terminals already.
    #[error("the session has {limit} terminals already")]
    TooManyInSession {
        /// How many it may have.
        limit: usize,
    },
    /// The connection to the agent has ended, or was about to.
    #[error("no more terminals are made")]
    Closed,
    /// The system refused.
    #[error("the command `{command}` cannot be run")]
    Io {
        /// The command.
        command: String,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
}

impl TerminalError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_terminal",
            Self::NotAllowed(_) => "not_allowed",
            Self::VariableNotAllowed(_) => "variable_not_allowed",
            Self::Outside(_) => "outside",
            Self::NoDirectory(_) => "no_directory",
            Self::Environment(_) => "environment",
            Self::NoCommand(_) => "no_command",
            Self::TooMany { .. } => "too_many",
            Self::TooManyInSession { .. } => "too_many_in_session",
            Self::Closed => "closed",
            Self::Io { .. } => "io",
        }
    }

    /// What the agent is told besides the reason.
    fn detail(&self) -> Option<(&'static str, Value)> {
        match self {
            Self::NotAllowed(command) | Self::NoCommand(command) => Some(("command", json!(command))),
            Self::VariableNotAllowed(name) | Self::Environment(name) => Some(("variable", json!(name))),
            Self::TooMany { limit } | Self::TooManyInSession { limit } => Some(("limit", json!(limit))),
            _ => None,
        }
    }

    /// The error as the agent is told it, with a word for the reason in its data.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let code = match self {
            Self::Unknown(_) => RpcError::NOT_FOUND,
            Self::Io { .. } | Self::TooMany { .. } | Self::TooManyInSession { .. } | Self::Closed => {
                RpcError::INTERNAL_ERROR
            }
            _ => RpcError::INVALID_PARAMS,
        };
        let message = match self {
            Self::Io { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        };
        let mut data = json!({"reason": self.reason()});
        if let Some((name, value)) = self.detail() {
            data[name] = value;
        }
        RpcError::new(code, message).with_data(data)
    }
}
