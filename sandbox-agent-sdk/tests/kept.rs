//! Sessions that outlive agents, servers and programs.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "client/support.rs"]
#[allow(dead_code, reason = "it is shared with other tests")]
mod support;

#[path = "kept/abandoned.rs"]
mod abandoned;
#[path = "kept/amending.rs"]
mod amending;
#[path = "kept/durable.rs"]
mod durable;
#[path = "kept/endpoints.rs"]
mod endpoints;
#[path = "kept/gated.rs"]
mod gated;
#[path = "kept/giving_up.rs"]
mod giving_up;
#[path = "kept/history.rs"]
mod history;
#[path = "kept/holes.rs"]
mod holes;
#[path = "kept/housekeeping.rs"]
mod housekeeping;
#[path = "kept/keeping.rs"]
mod keeping;
#[path = "kept/killed.rs"]
mod killed;
#[path = "kept/limits.rs"]
mod limits;
#[path = "kept/lossless.rs"]
mod lossless;
#[path = "kept/meanwhile.rs"]
mod meanwhile;
#[path = "kept/recording.rs"]
mod recording;
#[path = "kept/releasing.rs"]
mod releasing;
#[path = "kept/restore.rs"]
mod restore;
#[path = "kept/taking_up.rs"]
mod taking_up;
#[path = "kept/tool_requests.rs"]
mod tool_requests;
#[path = "kept/transcript.rs"]
mod transcript;
#[path = "kept/two_programs.rs"]
mod two_programs;
#[path = "kept/usage.rs"]
mod usage;
#[path = "kept/world.rs"]
mod world;
