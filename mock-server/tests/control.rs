//! The control plane over real sockets and real files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "control/agents.rs"]
mod agents;
#[path = "control/archives.rs"]
mod archives;
#[path = "control/config.rs"]
mod config;
#[path = "control/escape.rs"]
mod escape;
#[path = "control/files.rs"]
mod files;
mod http_client;
#[path = "control/processes.rs"]
mod processes;
#[path = "control/server.rs"]
mod server;
#[path = "control/size.rs"]
mod size;
