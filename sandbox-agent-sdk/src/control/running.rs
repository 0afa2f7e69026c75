//! Agents that were started on a released server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::session::Timestamp;

/// An agent that was started on a released server, by any client.
///
/// It stays listed after its process has exited, until its connection is closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunningAgent {
    /// The id of the agent's connection. Any client that knows it can use the agent.
    pub server_id: String,
    /// The name of the agent.
    pub agent: String,
    /// When the agent was started, by the server's clock.
    #[serde(default, rename = "createdAtMs", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The server's list of running agents.
#[derive(Debug, Deserialize)]
pub(crate) struct RunningAgents {
    pub(crate) servers: Vec<RunningAgent>,
}
