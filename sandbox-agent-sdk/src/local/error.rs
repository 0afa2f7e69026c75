//! Why a local server could not be started.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{LocalExit, PathProblem};
use crate::Error;

/// Why a server on this machine could not be started.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The server's program was not found.
    #[error("the program `sandbox-agent` was not found{}", Searched(.searched))]
    NotFound {
        /// Where it was looked for, in this order.
        searched: Vec<String>,
    },
    /// The program was found and is not executable. Its mode is left as it is: run `chmod +x` if you trust it.
    #[error("{} is not executable", .binary.display())]
    NotExecutable {
        /// The program.
        binary: PathBuf,
    },
    /// Other users of this machine can change which program runs:
    /// [`LocalOptions::accept_untrusted_binary`](super::LocalOptions::accept_untrusted_binary).
    #[error("{} is not started: {}: {problem}", .binary.display(), .entry.display())]
    Untrusted {
        /// The program.
        binary: PathBuf,
        /// The program itself, or a directory or link on the way to it.
        entry: PathBuf,
        /// Why it is not trusted.
        problem: PathProblem,
    },
    /// The program could not be run.
    #[error("{} cannot be run", .binary.display())]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server exited before it was healthy.
    #[error("the server exited during its start: {exit}{}", Output(.output))]
    Died {
        /// How it exited.
        exit: LocalExit,
        /// The last lines that it printed.
        output: Vec<String>,
    },
    /// The server did not become healthy in time. It was ended.
    #[error("the server was not healthy after {waited:.1?}{}", Output(.output))]
    NotHealthy {
        /// How long the start took.
        waited: Duration,
        /// The last lines that it printed.
        output: Vec<String>,
        /// The outcome of the last health check.
        #[source]
        source: Box<Error>,
    },
    /// Another process listens on the port of the server. Nothing was sent to it, and the server was ended.
    #[error("another process listens on port {port}")]
    ForeignListener {
        /// The port.
        port: u16,
    },
    /// This machine lacks what a start needs: a port, randomness, or the table of sockets.
    #[error("this machine has no {what} for a server")]
    Machine {
        /// What is missing.
        what: &'static str,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// The options of the client are invalid.
    #[error("the client cannot be made")]
    Client(#[source] Box<Error>),
}

impl LocalError {
    pub(super) fn machine(what: &'static str, source: io::Error) -> Self {
        Self::Machine { what, source: Arc::new(source) }
    }

    /// The last lines that the server printed, if it was started.
    #[must_use]
    pub fn output(&self) -> &[String] {
        match self {
            Self::Died { output, .. } | Self::NotHealthy { output, .. } => output,
            _ => &[],
        }
    }
}

impl From<LocalError> for Error {
    fn from(error: LocalError) -> Self {
        match error {
            LocalError::Client(error) => *error,
            error => Self::Local { what: "start a server".to_owned(), source: Arc::new(error) },
        }
    }
}

struct Searched<'a>(&'a [String]);

impl fmt::Display for Searched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; searched {}", self.0.join(", ")) }
    }
}

struct Output<'a>(&'a [String]);

impl fmt::Display for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many lines are shown; the error has all that were kept.
        const SHOWN: usize = 10;
        let first = self.0.len().saturating_sub(SHOWN);
        self.0[first..].iter().try_for_each(|line| write!(f, "\n  {}", crate::convert::text::printable(line)))
    }
}
