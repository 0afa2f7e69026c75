//! Errors of starting a local server.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{LocalExit, PathProblem};
use crate::Error;
use crate::convert::text::printable;

/// The error of starting a server on this machine.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The server's program was not found.
    #[error("the program `sandbox-agent` was not found{}", Searched(.searched))]
    #[non_exhaustive]
    NotFound {
        /// The searched locations, in order.
        searched: Vec<String>,
    },
    /// The program is not executable. Its mode is not changed: run `chmod +x` if you trust it.
    #[error("{} is not executable", shown(.binary))]
    #[non_exhaustive]
    NotExecutable {
        /// The path of the program.
        binary: PathBuf,
    },
    /// Other users of this machine can replace the program. See
    /// [`LocalOptions::accept_untrusted_binary`](super::LocalOptions::accept_untrusted_binary).
    #[error("{} is not trusted: {}: {problem}", shown(.binary), shown(.entry))]
    #[non_exhaustive]
    Untrusted {
        /// The path of the program.
        binary: PathBuf,
        /// The untrusted entry: the program, or a directory or link in its path.
        entry: PathBuf,
        /// Why the entry is not trusted.
        problem: PathProblem,
    },
    /// The program failed to start.
    #[error("{} failed to start", shown(.binary))]
    #[non_exhaustive]
    Spawn {
        /// The path of the program.
        binary: PathBuf,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// The server exited before it was healthy.
    #[error("the server exited during startup: {exit}{}", Output(.output))]
    #[non_exhaustive]
    Died {
        /// How the server exited.
        exit: LocalExit,
        /// The last lines of the server's output.
        output: Vec<String>,
    },
    /// The server did not become healthy within the start timeout and was stopped.
    #[error("the server was not healthy after {waited:.1?}{}", Output(.output))]
    #[non_exhaustive]
    NotHealthy {
        /// How long the client waited.
        waited: Duration,
        /// The last lines of the server's output.
        output: Vec<String>,
        /// The error of the last health check.
        #[source]
        source: Box<Error>,
    },
    /// No process of the server listens on its port, although the port responds. No token was sent, and the server was
    /// stopped.
    #[error("no process of the server listens on port {port} after {waited:.1?}{}", Output(.output))]
    #[non_exhaustive]
    NoListener {
        /// The port number.
        port: u16,
        /// How long the client waited.
        waited: Duration,
        /// The last lines of the server's output.
        output: Vec<String>,
    },
    /// Another process listens on the server's port. Nothing was sent to it, and the server was stopped.
    #[error("another process listens on port {port}")]
    #[non_exhaustive]
    ForeignListener {
        /// The port number.
        port: u16,
    },
    /// A resource of this machine is unavailable: a port, randomness, or the table of sockets.
    #[error("{what} is unavailable on this machine")]
    #[non_exhaustive]
    Machine {
        /// The unavailable resource.
        what: &'static str,
        /// The cause.
        #[source]
        source: Arc<io::Error>,
    },
    /// The options of the client are invalid.
    #[error("the client options are invalid")]
    Client(#[source] Box<Error>),
}

impl LocalError {
    pub(super) fn machine(what: &'static str, source: io::Error) -> Self {
        Self::Machine { what, source: Arc::new(source) }
    }

    /// Returns the last lines of the server's output, if it was started.
    #[must_use]
    pub fn output(&self) -> &[String] {
        match self {
            Self::Died { output, .. } | Self::NotHealthy { output, .. } | Self::NoListener { output, .. } => {
                output
            }
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

/// The author of a directory chooses the names in a path.
fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

struct Searched<'a>(&'a [String]);

impl fmt::Display for Searched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; searched {}", printable(&self.0.join(", "))) }
    }
}

struct Output<'a>(&'a [String]);

impl fmt::Display for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// How many lines are shown; the error holds all of them.
        const SHOWN: usize = 10;
        let first = self.0.len().saturating_sub(SHOWN);
        self.0[first..].iter().try_for_each(|line| write!(f, "\n  {}", printable(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::text::is_unsafe;

    #[test]
    fn an_error_is_safe_to_print_for_any_path_of_a_program() {
        let hostile = PathBuf::from("/x/\u{1b}]0;owned\u{7}/sandbox-agent");
        let source = Arc::new(io::Error::other("no"));
        for error in [
            LocalError::NotFound { searched: vec![hostile.display().to_string()] },
            LocalError::NotExecutable { binary: hostile.clone() },
            LocalError::Untrusted {
                binary: hostile.clone(),
                entry: hostile.clone(),
                problem: PathProblem::WritableByOthers { mode: 0o777 },
            },
            LocalError::Spawn { binary: hostile.clone(), source },
        ] {
            let text = error.to_string();
            assert!(!text.contains(is_unsafe) && text.contains("owned"), "{text:?}");
        }
    }
}
