//! The control plane against a real server over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "control/agents.rs"]
mod agents;
#[path = "control/archives.rs"]
mod archives;
#[path = "control/config.rs"]
mod config;
#[path = "control/every_call.rs"]
mod every_call;
#[path = "control/failures.rs"]
mod failures;
#[path = "control/files.rs"]
mod files;
#[path = "control/health.rs"]
mod health;
#[path = "control/limits.rs"]
mod limits;
#[path = "control/no_runtime.rs"]
mod no_runtime;
#[path = "control/parts.rs"]
mod parts;
#[path = "control/processes.rs"]
mod processes;
#[path = "control/stalls.rs"]
mod stalls;
#[path = "control/stub.rs"]
mod stub;
#[path = "control/support.rs"]
mod support;
#[path = "control/terminals.rs"]
mod terminals;
#[path = "control/tokens.rs"]
mod tokens;
#[path = "client/written_log.rs"]
mod written_log;
