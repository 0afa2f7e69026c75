//! Starts a server on this machine and ends it.
//!
//! ```text
//! options      what it is started with, and the start itself
//! find         where its program is
//! trust        whether other users can change that program
//! launch       one attempt: port, token, process, listener, health
//! server       the handle: client, log, exit
//! supervisor   the one task that owns the processes and ends them
//! group        the server's process and its process tree
//! log          what it prints, bounded
//! ```

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
