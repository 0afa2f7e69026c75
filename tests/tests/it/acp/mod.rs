//! The protocol-pure client against the mock server and its faults.

mod backoff;
mod bounded_waits;
mod bounds;
mod dialects;
mod facts;
mod failures;
mod limits;
mod lost_posts;
mod ordering;
mod panics;
mod promises;
mod raw;
mod repeated_requests;
mod requests;
mod robustness;
mod secrets;
mod sequence;
mod session_handle;
mod settling;
mod silent_restart;
mod termination;
mod tls;
mod traces;
mod trickle;
mod types;
mod wire_input;
