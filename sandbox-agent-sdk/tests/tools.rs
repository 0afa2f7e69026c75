//! Files and terminals by themselves, without a client.
#![cfg(unix)]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "tools/looking.rs"]
mod looking;
#[path = "tools/support.rs"]
mod support;

#[cfg(target_os = "linux")]
#[path = "tools/access_lists.rs"]
mod access_lists;
#[path = "tools/answers.rs"]
mod answers;
#[path = "tools/escapes.rs"]
mod escapes;
#[path = "tools/hidden.rs"]
mod hidden;
#[path = "tools/hostile_files.rs"]
mod hostile_files;
#[path = "tools/output.rs"]
mod output;
#[path = "tools/processes.rs"]
mod processes;
#[path = "tools/reading.rs"]
mod reading;
#[path = "tools/restrictions.rs"]
mod restrictions;
#[path = "tools/sandbox.rs"]
mod sandbox;
#[path = "tools/strays.rs"]
mod strays;
#[path = "tools/writing.rs"]
mod writing;
