//! The client against real servers on both faces.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(unix)]
#[path = "tools/looking.rs"]
mod looking;
#[path = "client/support.rs"]
mod support;

#[path = "client/attacks.rs"]
mod attacks;
#[path = "client/cancelled.rs"]
mod cancelled;
#[path = "client/closing.rs"]
mod closing;
#[path = "client/deciding.rs"]
mod deciding;
#[path = "client/depth.rs"]
mod depth;
#[path = "client/early_requests.rs"]
mod early_requests;
#[path = "client/events.rs"]
mod events;
#[path = "client/features.rs"]
mod features;
#[path = "client/handlers.rs"]
mod handlers;
#[path = "client/hostile_requests.rs"]
mod hostile_requests;
#[path = "client/lifecycle.rs"]
mod lifecycle;
#[path = "client/limits.rs"]
mod limits;
#[path = "client/listing.rs"]
mod listing;
#[path = "client/loading.rs"]
mod loading;
#[path = "client/logins.rs"]
mod logins;
#[path = "client/lost_cancels.rs"]
mod lost_cancels;
#[path = "client/missing.rs"]
mod missing;
#[path = "client/naming.rs"]
mod naming;
#[path = "client/neighbours.rs"]
mod neighbours;
#[path = "client/no_crashes.rs"]
mod no_crashes;
#[path = "client/no_runtime.rs"]
mod no_runtime;
#[path = "client/one_order.rs"]
mod one_order;
#[path = "client/open_requests.rs"]
mod open_requests;
#[path = "client/opening.rs"]
mod opening;
#[path = "client/permissions.rs"]
mod permissions;
#[path = "client/printing.rs"]
mod printing;
#[path = "client/questions.rs"]
mod questions;
#[path = "client/reconnecting.rs"]
mod reconnecting;
#[path = "client/requests.rs"]
mod requests;
#[path = "client/reserved_names.rs"]
mod reserved_names;
#[path = "client/semver.rs"]
mod semver;
#[path = "client/serialising.rs"]
mod serialising;
#[path = "client/server_kinds.rs"]
mod server_kinds;
#[path = "client/sessions.rs"]
mod sessions;
#[cfg(unix)]
#[path = "client/shared_endpoint.rs"]
mod shared_endpoint;
#[path = "client/snapshots.rs"]
mod snapshots;
#[path = "client/stable.rs"]
mod stable;
#[path = "client/stream.rs"]
mod stream;
#[path = "client/termination.rs"]
mod termination;
#[cfg(unix)]
#[path = "client/tools.rs"]
mod tools;
#[path = "client/turn_events.rs"]
mod turn_events;
#[path = "client/turn_idle.rs"]
mod turn_idle;
#[path = "client/turn_states.rs"]
mod turn_states;
#[path = "client/turns.rs"]
mod turns;
#[path = "client/unreachable.rs"]
mod unreachable;
#[path = "client/unsent.rs"]
mod unsent;
#[path = "client/usage.rs"]
mod usage;
#[path = "client/written_log.rs"]
mod written_log;
