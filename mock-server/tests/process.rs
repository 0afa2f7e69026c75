//! Real processes behind the agent interface: round trips, every kind of crash, and cleanup.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "process/crash.rs"]
mod crash;
mod http_client;
#[path = "process/lifecycle.rs"]
mod lifecycle;
#[path = "process/probe.rs"]
mod probe;
#[path = "process/served.rs"]
mod served;
#[path = "process/talk.rs"]
mod talk;
