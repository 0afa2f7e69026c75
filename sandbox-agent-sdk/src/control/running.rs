//! The agents that are running on a server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::session::Timestamp;

/// An agent that was started on a released server, by this client or by another one. It stays listed when its process
/// has ended, until its connection is closed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RunningAgent {
    /// The name under which it was started. Whoever knows it can talk to the agent.
    pub server_id: String,
    /// The agent.
    pub agent: String,
    /// When it was started, by the server's clock.
    #[serde(default, rename = "createdAtMs", skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A list of them, as servers send it.
#[derive(Debug, Deserialize)]
pub(crate) struct RunningAgents {
    pub(crate) servers: Vec<RunningAgent>,
}
