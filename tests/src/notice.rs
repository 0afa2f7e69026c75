//! Saying what a passing test did not do.

use std::io::Write;

/// Says that a test was not run, and why, where everybody sees it: what a passing test prints with a macro is thrown
/// away by the test runner.
pub fn say_not_run(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Nobody can be told that nothing can be told.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {why}");
}
