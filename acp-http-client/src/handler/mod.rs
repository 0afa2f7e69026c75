//! Agent requests: handlers, the channel, default responses.

pub(crate) mod answers;
mod channel;
mod typed;

pub(crate) use channel::ChannelHandler;
pub use channel::{AgentRequest, AgentRequests, Responder};
pub use typed::{AgentHandler, Call};
pub(crate) use typed::{AnswerFuture, AnyHandler, NoHandler};
