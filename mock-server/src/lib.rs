//! See the README.

mod agent;
mod problem;

pub use agent::{Agent, Exit, ExitStatus, LaunchError, Outlet, Output, Running, StderrSummary, Undelivered};
pub use problem::{PROBLEM_JSON, Problem};
