//! Agent requests: handlers, the channel, default responses.

mod channel;
pub(crate) mod outcome;
mod queue;
mod typed;

pub(crate) use channel::ChannelHandler;
pub use channel::{AgentRequest, AgentRequests, Responder};
pub use typed::{AgentHandler, Call};
pub(crate) use typed::{AnyHandler, NoHandler, OutcomeFuture};
