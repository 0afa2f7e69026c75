//! What is received: the reader tasks, the router, the table of agent requests.

mod agent_requests;
mod boundary;
mod link;
mod reader;
mod router;

pub(crate) use agent_requests::AgentRequestTable;
pub(crate) use link::{Link, LinkState, Links};
