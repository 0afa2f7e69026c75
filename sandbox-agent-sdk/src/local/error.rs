//! Why there is no server on this machine.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::LocalExit;
use crate::Error;

/// Why a server on this machine could not be started, or ended.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The server's program is nowhere to be found.
    #[error("the program `sandbox-agent` was not found{}", Places(.looked))]
    NotFound {
        /// Where it was looked for, in this order.
        looked: Vec<String>,
    },
    /// The program is there and cannot be run.
    #[error("{} cannot be run", .binary.display())]
    Spawn {
        /// The program.
        binary: PathBuf,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server ended before it was up.
    #[error("the server ended at its start: {exit}{}", Output(.output))]
    Died {
        /// How.
        exit: LocalExit,
        /// The last lines that it printed.
        output: Vec<String>,
    },
    /// The server runs and did not become healthy in time. It was ended.
    #[error("the server was not healthy after {waited:.1?}{}", Output(.output))]
    NotHealthy {
        /// How long it was waited for.
        waited: Duration,
        /// The last lines that it printed.
        output: Vec<String>,
        /// What the last question about its health was answered with.
        #[source]
        source: Box<Error>,
    },
    /// This machine could not give what is needed: a port, or randomness.
    #[error("this machine has no {what} for a server")]
    Machine {
        /// What is missing.
        what: &'static str,
        /// Why.
        #[source]
        source: Arc<io::Error>,
    },
    /// The options of the client cannot be used.
    #[error("the client cannot be made")]
    Client(#[source] Box<Error>),
}

impl LocalError {
    pub(super) fn machine(what: &'static str, source: io::Error) -> Self {
        Self::Machine { what, source: Arc::new(source) }
    }

    /// The last lines that the server printed, if it came so far.
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

struct Places<'a>(&'a [String]);

impl fmt::Display for Places<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; looked in {}", self.0.join(", ")) }
    }
}

struct Output<'a>(&'a [String]);

impl fmt::Display for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many lines are shown; all that were kept are in the error.
        const SHOWN: usize = 10;
        let first = self.0.len().saturating_sub(SHOWN);
        self.0[first..].iter().try_for_each(|line| write!(f, "\n  {}", crate::text::printable(line)))
    }
}
