//! Errors of terminals.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::convert::text::printable;
use crate::error::RpcError;

/// The error of creating or using a terminal. The agent receives it as an error response.
///
/// `Display` is safe to print. The fields contain the text that the agent sent.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TerminalError {
    /// The terminal does not exist, or belongs to another session.
    #[error("unknown terminal `{}`", printable(.0))]
    Unknown(String),
    /// The command is not allowed.
    #[error("the command `{}` is not allowed", printable(.0))]
    NotAllowed(String),
    /// The command is allowed, but the agent may be able to replace its program: this entry in the path of the program
    /// is in a root. See [`TerminalOptions::allow_programs_in_roots`](super::TerminalOptions::allow_programs_in_roots).
    #[error("the agent can replace the program at `{}`, which is in a root", printable(&.0.to_string_lossy()))]
    Replaceable(PathBuf),
    /// The command is allowed, but this environment variable is not.
    #[error("the environment variable `{}` is not allowed", printable(.0))]
    VariableNotAllowed(String),
    /// The working directory is outside the roots.
    #[error("{} is outside the allowed directories", printable(&.0.to_string_lossy()))]
    Outside(PathBuf),
    /// The working directory does not exist or is not a directory.
    #[error("{} is not a directory", printable(&.0.to_string_lossy()))]
    NoDirectory(PathBuf),
    /// The name or the value of an environment variable is invalid.
    #[error("the environment variable `{}` is invalid", printable(.0))]
    Environment(String),
    /// The program of the command was not found.
    #[error("command `{}` not found", printable(.0))]
    NoCommand(String),
    /// The connection has too many terminals.
    #[error("the connection already has {limit} terminals")]
    #[non_exhaustive]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The session has too many terminals.
    #[error("the session already has {limit} terminals")]
    #[non_exhaustive]
    TooManyInSession {
        /// The limit.
        limit: usize,
    },
    /// The output of the command does not fit into the budget of the connection. Released terminals free their part.
    #[error("the command needs {wanted} bytes of output buffer; all terminals together may buffer {limit}")]
    #[non_exhaustive]
    OutputBudget {
        /// The budget of all terminals together, in bytes.
        limit: usize,
        /// How many bytes the command needs.
        wanted: usize,
    },
    /// The connection to the agent has ended or is ending.
    #[error("the connection is closed")]
    Closed,
    /// The command failed to start.
    #[error("the command `{}` failed to start", printable(command))]
    #[non_exhaustive]
    Io {
        /// The command.
        command: String,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
}

impl TerminalError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown_terminal",
            Self::NotAllowed(_) => "not_allowed",
            Self::Replaceable(_) => "replaceable",
            Self::VariableNotAllowed(_) => "variable_not_allowed",
            Self::Outside(_) => "outside",
            Self::NoDirectory(_) => "no_directory",
            Self::Environment(_) => "environment",
            Self::NoCommand(_) => "no_command",
            Self::TooMany { .. } => "too_many",
            Self::TooManyInSession { .. } => "too_many_in_session",
            Self::OutputBudget { .. } => "output_budget",
            Self::Closed => "closed",
            Self::Io { .. } => "io",
        }
    }

    /// Returns an additional detail for the agent.
    fn detail(&self) -> Option<(&'static str, Value)> {
        match self {
            Self::NotAllowed(command) | Self::NoCommand(command) => Some(("command", json!(command))),
            Self::VariableNotAllowed(name) | Self::Environment(name) => Some(("variable", json!(name))),
            Self::TooMany { limit } | Self::TooManyInSession { limit } | Self::OutputBudget { limit, .. } => {
                Some(("limit", json!(limit)))
            }
            _ => None,
        }
    }

    /// Converts the error to an error response, with a machine-readable reason in its data.
    #[must_use]
    pub fn to_rpc(&self) -> RpcError {
        let code = match self {
            Self::Unknown(_) => RpcError::NOT_FOUND,
            Self::Io { .. }
            | Self::TooMany { .. }
            | Self::TooManyInSession { .. }
            | Self::OutputBudget { .. }
            | Self::Closed => RpcError::INTERNAL_ERROR,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::text::is_unsafe;

    #[test]
    fn an_error_is_safe_to_print_for_any_command() {
        let text = || "a\u{1b}]0;owned\u{7}".to_owned();
        let source = Arc::new(io::Error::other("broken"));
        let errors = [
            TerminalError::Unknown(text()),
            TerminalError::NotAllowed(text()),
            TerminalError::Replaceable(text().into()),
            TerminalError::VariableNotAllowed(text()),
            TerminalError::Outside(text().into()),
            TerminalError::NoDirectory(text().into()),
            TerminalError::Environment(text()),
            TerminalError::NoCommand(text()),
            TerminalError::Io { command: text(), source },
        ];
        for error in errors {
            assert!(!error.to_string().contains(is_unsafe), "{error:?}");
        }
    }
}
