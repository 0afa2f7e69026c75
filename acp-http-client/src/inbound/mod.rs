//! From bytes to whoever waits for them: the reader tasks, the router, the open requests of the agent.

mod boundary;
mod link;
mod open_calls;
mod reader;
mod router;

pub(crate) use link::{Link, LinkState, Links};
pub(crate) use open_calls::OpenCalls;
