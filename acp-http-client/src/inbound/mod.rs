//! What is received: a reader task per stream, its ordered core, the router, the agent's requests.

mod agent_requests;
mod backlog;
mod link;
mod order;
mod reader;
mod router;

pub(crate) use agent_requests::{AgentRequestTable, dispatch};
pub(crate) use link::{Link, LinkState, Links, SessionUse};
#[cfg(feature = "fuzzing")]
pub(crate) use order::{Effect, Moment, OrderedCore, Settings};
pub(crate) use order::{Replay, Response};
pub(crate) use reader::flush;
