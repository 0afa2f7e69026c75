//! Real agents: commands that speak ACP on their standard streams, one JSON message a line.

mod stderr;

pub use stderr::{MAX_STDERR_LINE_BYTES, StderrCapture};
