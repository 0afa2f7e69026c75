//! Reports tests that were skipped.

use std::io::Write;

/// Prints to standard error that a test was not run, and why.
///
/// The test runner discards the output of the print macros in passing tests, so this writes directly.
pub fn say_not_run(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A failure to print cannot be reported.
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {why}");
}
