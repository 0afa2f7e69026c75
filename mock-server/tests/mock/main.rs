//! The mock server over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agent_faults;
mod attachment;
mod capture;
mod captured_agent;
mod client;
mod connections;
mod control_fidelity;
mod crashes;
mod fidelity;
#[path = "../http_client/mod.rs"]
mod http_client;
mod lifecycle;
mod log_faults;
mod npm;
mod official;
mod post_faults;
mod program;
mod released;
mod replay;
mod rpc;
mod sessions;
mod steps;
mod stream_faults;
