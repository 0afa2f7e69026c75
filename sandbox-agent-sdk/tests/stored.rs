//! Sessions that outlive agents, servers and programs.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "client/support.rs"]
#[allow(dead_code, reason = "it is shared with other tests")]
mod support;

#[path = "stored/abandoned.rs"]
mod abandoned;
#[path = "stored/acquiring.rs"]
mod acquiring;
#[path = "stored/archiving.rs"]
mod archiving;
#[path = "stored/cancelled_unsent.rs"]
mod cancelled_unsent;
#[path = "stored/disconnected.rs"]
mod disconnected;
#[path = "stored/dropped_requests.rs"]
mod dropped_requests;
#[path = "stored/durable.rs"]
mod durable;
#[path = "stored/endpoints.rs"]
mod endpoints;
#[path = "stored/gated.rs"]
mod gated;
#[path = "stored/history.rs"]
mod history;
#[path = "stored/holes.rs"]
mod holes;
#[path = "stored/killed.rs"]
mod killed;
#[path = "stored/late_text.rs"]
mod late_text;
#[path = "stored/limits.rs"]
mod limits;
#[path = "stored/lossless.rs"]
mod lossless;
#[path = "stored/maintenance.rs"]
mod maintenance;
#[path = "stored/meanwhile.rs"]
mod meanwhile;
#[path = "stored/open_turns.rs"]
mod open_turns;
#[path = "stored/positions.rs"]
mod positions;
#[path = "stored/record_changes.rs"]
mod record_changes;
#[path = "stored/recording.rs"]
mod recording;
#[path = "stored/releasing.rs"]
mod releasing;
#[path = "stored/reloading.rs"]
mod reloading;
#[path = "stored/responses.rs"]
mod responses;
#[path = "stored/restore.rs"]
mod restore;
#[path = "stored/rivals.rs"]
mod rivals;
#[path = "stored/shutdown.rs"]
mod shutdown;
#[path = "stored/stalled_stores.rs"]
mod stalled_stores;
#[path = "stored/storing.rs"]
mod storing;
#[path = "stored/suspended.rs"]
mod suspended;
#[path = "stored/termination.rs"]
mod termination;
#[path = "stored/tool_requests.rs"]
mod tool_requests;
#[path = "stored/transcript.rs"]
mod transcript;
#[path = "stored/two_programs.rs"]
mod two_programs;
#[path = "stored/usage.rs"]
mod usage;
#[path = "stored/world.rs"]
mod world;
