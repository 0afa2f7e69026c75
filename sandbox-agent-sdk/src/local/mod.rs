//! Starts a released server on this machine and stops it.
//!
//! [`SandboxAgentClient::start_local`](crate::SandboxAgentClient::start_local) finds the program, starts it
//! on a free port with a random token, waits until it is healthy, and returns a [`LocalServer`] with a
//! client. Dropping that value stops the server and its process tree.
//!
//! - The program comes from the options, from `SANDBOX_AGENT_BIN`, or is the first in `PATH`. `node_modules`
//!   is searched only in the directory that [an option](LocalOptions::search_node_modules) names. A program
//!   that other users can replace is rejected.
//! - The server inherits only environment variables that hold no secrets. [`LocalOptions::inherit`] adds
//!   others.
//! - The client sends the token to no other process. It uses no proxy, and sends no token after the server has exited.
//!   On Linux it checks before each request that the listening socket is in the server's process tree.
//! - The token is visible on the server's command line, because the server accepts it only there. On a machine with
//!   untrusted users, hide command lines from them (`hidepid=2`, a container).
//!
//! | event | result |
//! |---|---|
//! | the program is not found | [`LocalError::NotFound`] with every searched path |
//! | it is not executable, or other users can replace it | [`LocalError::NotExecutable`], [`LocalError::Untrusted`]; its mode is not changed |
//! | it exits during startup | [`LocalError::Died`] with the exit code and the last lines of output |
//! | another process listens on its port | another port is tried, or [`LocalError::ForeignListener`]; nothing is sent |
//! | it does not become healthy | it is killed; [`LocalError::NotHealthy`] with the last lines of output |
//! | it exits later | [`LocalServer::ended`]; its agents are killed and the client is disconnected |
//! | you close or drop the [`LocalServer`] | SIGTERM to its process tree, SIGKILL after the [stop timeout](LocalOptions::stop_timeout) |
//! | the runtime shuts down first | everything is killed immediately |
//
// options      the options, and the start itself
// find         finds the program
// launch       one attempt: port, token, process, listener, health
// credential   the token, while the server holds its port
// access       what clients of a server need; ends them with it
// token        makes tokens
// server       the handle: client, log, exit
// supervisor   the task that owns the processes and stops them
// group        the server's process and its process tree
// log          the server's output, bounded

mod access;
mod credential;
mod error;
mod exit;
mod find;
mod group;
mod launch;
mod log;
mod options;
mod server;
mod supervisor;
pub(crate) mod token;

#[cfg(feature = "providers")]
pub(crate) use access::Access;
pub use error::LocalError;
pub use exit::LocalExit;
#[cfg(feature = "providers")]
pub(crate) use find::{in_path, trusted};
pub use log::LocalLog;
pub use options::LocalOptions;
pub use server::LocalServer;

pub use crate::trust::PathProblem;
