//! The fuzz targets. `tests/fuzz` drives them with `cargo fuzz`, `it::fuzz` replays the corpus.
//!
//! Targets that reach internals are in the crates themselves, behind the feature `fuzzing`.

mod confinement;
mod metadata;
mod termination;

use acp_http_client::fuzzing::{member_names, message, ordered_core, sequence, sse_decoder};
use sandbox_agent_sdk::fuzzing::{control_response, terminal_tail, transcript, update};

/// A target: any bytes, and a panic if what it checks does not hold.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 12] = [
    ("confinement", confinement::confinement),
    ("control_response", control_response),
    ("member_names", member_names),
    ("message", message),
    ("metadata", metadata::metadata),
    ("ordered_core", ordered_core),
    ("sequence", sequence),
    ("sse_decoder", sse_decoder),
    ("terminal_tail", terminal_tail),
    ("termination", termination::termination),
    ("transcript", transcript),
    ("update", update),
];
