//! The client against real servers on both faces.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "client/support.rs"]
mod support;

#[path = "client/asking.rs"]
mod asking;
#[path = "client/events.rs"]
mod events;
#[path = "client/lifecycle.rs"]
mod lifecycle;
#[path = "client/listing.rs"]
mod listing;
#[path = "client/naming.rs"]
mod naming;
#[path = "client/no_crashes.rs"]
mod no_crashes;
#[path = "client/server_kinds.rs"]
mod server_kinds;
#[path = "client/sessions.rs"]
mod sessions;
#[path = "client/termination.rs"]
mod termination;
#[path = "client/turns.rs"]
mod turns;
