//! See the README.

mod problem;

pub use problem::{PROBLEM_JSON, Problem};
