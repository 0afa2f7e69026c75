//! Agents as processes: commands that speak ACP on their standard streams, one JSON message per line.

mod agent;
mod group;
mod lines;
mod running;
mod stderr;

pub use agent::{CommandLineError, ProcessAgent};
pub use lines::MAX_STDOUT_LINE_BYTES;
pub use stderr::{MAX_STDERR_LINE_BYTES, StderrCapture};
