//! Starts a released server on this machine and ends it.
//!
//! [`SandboxAgentClient::start_local`](crate::SandboxAgentClient::start_local) finds the program, starts it on a free port
//! with a random token, waits until it is healthy, and returns a [`LocalServer`] with a client. The server and its process
//! tree end with that value.
//!
//! - The program is the one of the options, of `SANDBOX_AGENT_BIN`, or the first in `PATH`. `node_modules` is searched only
//!   in the directory that [an option](LocalOptions::search_node_modules) names. A program that other users can replace is
//!   refused.
//! - The server inherits a few harmless environment variables. [`LocalOptions::inherit`] names others.
//! - The token is sent to no other process: not through a proxy, not before the listening socket was found in the server's
//!   process tree (Linux), not after the server has exited.
//! - The token is on the server's command line, because the server accepts it in no other way. On a machine with users that
//!   you do not trust, hide command lines from them (`hidepid=2`, a container).
//!
//! | event | result |
//! |---|---|
//! | the program is not found | [`LocalError::NotFound`] with every path that was searched |
//! | it is not executable, or other users can replace it | [`LocalError::NotExecutable`], [`LocalError::Untrusted`]; its mode is not changed |
//! | it exits during its start | [`LocalError::Died`] with its exit code and its last lines |
//! | another process listens on its port | another port is tried, or [`LocalError::ForeignListener`]; nothing is sent |
//! | it does not become healthy | it is killed; [`LocalError::NotHealthy`] with its last lines |
//! | it exits later | [`LocalServer::ended`]; its agents are killed and the client is disconnected |
//! | you close or drop the [`LocalServer`] | SIGTERM to its process tree, SIGKILL after the [stop timeout](LocalOptions::stop_timeout) |
//! | the runtime shuts down first | everything is killed at once |
//
// options      the settings of a start, and the start itself
// find         where the program is
// trust        whether other users can change the program
// launch       one attempt: port, token, process, listener, health
// server       the handle: client, log, exit
// supervisor   the one task that owns the processes and ends them
// group        the server's process and its process tree
// log          the server's output, bounded

mod error;
mod exit;
mod find;
mod group;
mod launch;
mod log;
mod options;
mod server;
mod supervisor;
mod trust;

pub use error::LocalError;
pub use exit::LocalExit;
pub use log::LocalLog;
pub use options::LocalOptions;
pub use server::LocalServer;
pub use trust::PathProblem;
