//! See the README.

mod agent;
mod problem;
mod process;

pub use agent::{Agent, Exit, ExitStatus, LaunchError, Outlet, Output, Running, StderrSummary, Undelivered};
pub use problem::{PROBLEM_JSON, Problem};
pub use process::{
    CommandLineError, MAX_STDERR_LINE_BYTES, MAX_STDOUT_LINE_BYTES, ProcessAgent, StderrCapture,
};
