//! A server on this machine, started and ended by this program.
//!
//! ```text
//! options   what it is started with, and the start itself
//! find      where its program is
//! launch    one attempt: port, token, process, health
//! server    the handle: client, log, end
//! keeper    the one task that owns the processes and ends them
//! group     the server's process and everything that came of it
//! log       what it prints, bounded
//! ```

mod error;
mod exit;
mod find;
mod group;
mod keeper;
mod launch;
mod log;
mod options;
mod server;

pub use error::LocalError;
pub use exit::LocalExit;
pub use log::LocalLog;
pub use options::LocalOptions;
pub use server::LocalServer;
