//! What is received: a reader task per stream, its ordered core, the router, the agent's requests.

mod backlog;
mod link;
mod open_calls;
mod order;
mod reader;
mod router;

pub(crate) use link::{Link, LinkState, Links, SessionUse};
pub(crate) use open_calls::OpenCalls;
pub(crate) use order::{Replay, Response};
pub(crate) use reader::flush;
