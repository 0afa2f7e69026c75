//! Agent requests: handlers, the channel, default responses.

mod channel;
pub(crate) mod outcome;
mod queue;
mod typed;

/// The lock of the queue. `tests/interleavings.rs` replaces it.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

pub(crate) use channel::ChannelHandler;
pub use channel::{AgentRequest, AgentRequests, Responder};
pub use typed::{AgentHandler, Call};
pub(crate) use typed::{AnyHandler, NoHandler, OutcomeFuture};
