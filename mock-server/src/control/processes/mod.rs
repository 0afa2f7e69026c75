//! `/v1/processes`: real processes, with and without a terminal.
//!
//! ```text
//! routes     what each call takes and gives
//! terminal   the WebSocket
//! registry   all processes, and the limits
//! process    one process: its input, its end, its record
//! spawn      starting one, and the tasks that read its output
//! log        what it wrote, bounded
//! run        a command that is run to its end
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
