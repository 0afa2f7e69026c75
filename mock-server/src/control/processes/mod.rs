//! `/v1/processes`: real processes, with and without a terminal.
//!
//! ```text
//! routes     the routes, their parameters and responses
//! terminal   the WebSocket
//! registry   all processes, and the limits
//! process    one process: its input, its exit, its record
//! spawn      starts a process and the tasks that read its output
//! log        the output, bounded
//! run        runs a command to completion
//! ```

mod limits;
mod log;
mod process;
mod registry;
mod routes;
mod run;
mod spawn;
mod terminal;

pub(super) use registry::Processes;
pub(super) use routes::router;
