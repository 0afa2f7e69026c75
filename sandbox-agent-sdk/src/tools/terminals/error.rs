//! Why a terminal could not be created or used.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::error::RpcError;

/// Why a terminal could not be created or used. The agent gets it as an error response.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// The terminal does not exist, or belongs to another session.
    #[error("unknown terminal `{0}`")]
    Unknown(String),
    /// The command is not allowed.
    #[error("the command `{0}` is not allowed")]
    NotAllowed(String),
    /// The command is allowed, but not with this environment variable.
    #[error("the environment variable `{0}` is not allowed")]
    VariableNotAllowed(String),
    /// The working directory is outside of the roots.
    #[error("{} is outside of the directories that may be used", .0.display())]
    Outside(PathBuf),
    /// The working directory does not exist or is no directory.
    #[error("{} is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// The name or the value of an environment variable is invalid.
    #[error("the environment variable `{0}` is invalid")]
    Environment(String),
    /// The program of the command was not found.
    #[error("command `{0}` not found")]
    NoCommand(String),
    /// The connection has too many terminals.
    #[error("the connection has {limit} terminals already")]
    TooMany {
        /// How many it may have.
        limit: usize,
    },
    /// The session has too many terminals.
    #[error("the session has {limit} terminals already")]
    TooManyInSession {
        /// How many it may have.
        limit: usize,
    },
    /// The connection to the agent has ended or is about to.
    #[error("the connection is closed")]
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

    /// A detail for the agent, besides the reason.
    fn detail(&self) -> Option<(&'static str, Value)> {
        match self {
            Self::NotAllowed(command) | Self::NoCommand(command) => Some(("command", json!(command))),
            Self::VariableNotAllowed(name) | Self::Environment(name) => Some(("variable", json!(name))),
            Self::TooMany { limit } | Self::TooManyInSession { limit } => Some(("limit", json!(limit))),
            _ => None,
        }
    }

    /// The error response for the agent, with a word for the reason in its data.
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
