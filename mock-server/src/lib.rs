//! See the README.

mod agent;
mod problem;
mod process;

pub use agent::{Agent, Exit, ExitStatus, LaunchError, Outlet, Output, Running, StderrSummary, Undelivered};
pub use problem::{PROBLEM_JSON, Problem};
pub use process::{MAX_STDERR_LINE_BYTES, StderrCapture};
