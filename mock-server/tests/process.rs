//! Real processes behind the agent seam: round trips, every kind of crash, and what is left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "process/crash.rs"]
mod crash;
mod http_client;
#[path = "process/life.rs"]
mod life;
#[path = "process/probe.rs"]
mod probe;
#[path = "process/served.rs"]
mod served;
#[path = "process/talk.rs"]
mod talk;
