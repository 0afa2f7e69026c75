//! Types that describe the agents of a server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::null_as_default;
use crate::convert::open_enum::open_enum;
use crate::session::Model;
use crate::update::ConfigValue;

/// An agent that a server can run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentInfo {
    /// The agent's name, such as `claude`.
    pub id: String,
    /// Whether the agent is installed. Most servers install a missing agent on first use.
    #[serde(default, deserialize_with = "null_as_default")]
    pub installed: bool,
    /// Whether the server has credentials for the agent.
    #[serde(default, alias = "credentials_available", deserialize_with = "null_as_default")]
    pub credentials_available: bool,
    /// The agent's version. Present only in a [full](super::AgentDetail::full) listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The path of the agent's program. Present only in a [full](super::AgentDetail::full) listing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What the agent can do.
    #[serde(default, deserialize_with = "null_as_default")]
    pub capabilities: AgentCapabilities,
    /// The state of the agent's process. The released server reports a dead process as running.
    #[serde(default, alias = "server_status", skip_serializing_if = "Option::is_none")]
    pub server_status: Option<AgentServerStatus>,
    /// The configuration options of the agent's sessions, as the server sent them.
    #[serde(default, alias = "config_options", skip_serializing_if = "Option::is_none")]
    pub config_options: Option<Vec<Value>>,
    /// Why `config_options` is missing.
    #[serde(default, alias = "config_error", skip_serializing_if = "Option::is_none")]
    pub config_error: Option<String>,
    /// The agent's models, if the server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Model>>,
    /// The id of the model that the agent uses by default.
    #[serde(default, alias = "default_model", skip_serializing_if = "Option::is_none")]
    pub default_model: Option<String>,
    /// The agent's modes, if the server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Vec<AgentMode>>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The server's list of agents.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentList {
    /// The agents, in the server's order.
    #[serde(default)]
    pub agents: Vec<AgentInfo>,
}

/// What an agent can do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct AgentCapabilities {
    /// The agent can plan without acting.
    pub plan_mode: bool,
    /// The agent asks for permission. Without this, a permission policy has no effect.
    pub permissions: bool,
    /// The agent asks questions.
    pub questions: bool,
    /// The agent reports its tool calls.
    pub tool_calls: bool,
    /// The agent reports the results of its tool calls.
    pub tool_results: bool,
    /// The agent accepts and sends text.
    pub text_messages: bool,
    /// The agent accepts images.
    pub images: bool,
    /// The agent accepts files.
    pub file_attachments: bool,
    /// The agent reports when its sessions start and end.
    pub session_lifecycle: bool,
    /// The agent reports errors.
    pub error_events: bool,
    /// The agent reports its reasoning.
    pub reasoning: bool,
    /// The agent reports its status.
    pub status: bool,
    /// The agent runs commands.
    pub command_execution: bool,
    /// The agent reports the files that it changes.
    pub file_changes: bool,
    /// The agent uses tools of MCP servers.
    pub mcp_tools: bool,
    /// The agent streams its text in chunks.
    pub streaming_deltas: bool,
    /// The agent reports when an item starts.
    pub item_started: bool,
    /// One process serves all sessions of the agent.
    pub shared_process: bool,
    /// Unknown capabilities, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

open_enum! {
    /// The state of an agent's process.
    pub enum AgentServerState {
        /// The server considers the process running.
        Running = "running",
        /// The process is not running.
        Stopped = "stopped",
        /// The process failed.
        Error = "error",
    }
}

/// The state of an agent's process, with details where the server has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentServerStatus {
    /// The state.
    pub status: AgentServerState,
    /// The URL at which the process listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// How long the process has been running, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// How often the process was restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u64>,
    /// The last error of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A mode in which an agent can work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentMode {
    /// The id that selects the mode.
    pub id: String,
    /// The display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A description of the mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl AgentMode {
    /// Returns the name, or the id if there is no name.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Converts a value of a configuration option to a mode.
    pub(crate) fn from_value(value: &ConfigValue) -> Self {
        Self {
            id: value.value.clone(),
            name: Some(value.name.clone()),
            description: value.description.clone(),
            other: Map::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{AgentInfo, AgentList, AgentMode, AgentServerState};

    #[test]
    fn a_mode_is_shown_by_its_name_or_its_id() {
        for (mode, label) in
            [(json!({"id": "plan", "name": "Plan"}), "Plan"), (json!({"id": "plan"}), "plan")]
        {
            let mode: AgentMode = serde_json::from_value(mode).unwrap();
            assert_eq!(mode.label(), label);
        }
    }

    const CAPABILITIES: &str = r#"{"planMode":true,"permissions":true,"questions":true,"toolCalls":true,
        "toolResults":true,"textMessages":true,"images":true,"fileAttachments":true,"sessionLifecycle":true,
        "errorEvents":true,"reasoning":true,"status":true,"commandExecution":true,"fileChanges":true,"mcpTools":true,
        "streamingDeltas":true,"itemStarted":true,"sharedProcess":false}"#;

    fn capabilities() -> Value {
        serde_json::from_str(CAPABILITIES).unwrap()
    }

    #[test]
    fn an_agent_of_the_released_server_round_trips() {
        let released = json!({"id": "mock", "installed": true, "credentialsAvailable": true, "version": "builtin",
            "path": "/srv/test/data/sandbox-agent/bin/mock", "capabilities": capabilities(),
            "serverStatus": {"status": "running", "uptimeMs": 51_895},
            "configOptions": [{"category": "model", "currentValue": "mock", "id": "model", "name": "Model",
                "options": [{"name": "Mock", "value": "mock"}], "type": "select"}]});
        let agent: AgentInfo = serde_json::from_value(released.clone()).unwrap();
        assert!(agent.installed && agent.credentials_available);
        assert!(agent.capabilities.plan_mode && agent.capabilities.item_started);
        assert!(!agent.capabilities.shared_process);
        assert!(agent.capabilities.other.is_empty(), "{:?}", agent.capabilities.other);
        let status = agent.server_status.as_ref().unwrap();
        assert_eq!((&status.status, status.uptime_ms), (&AgentServerState::Running, Some(51_895)));
        assert_eq!(agent.config_options.as_ref().map(Vec::len), Some(1));
        assert_eq!(serde_json::to_value(agent).unwrap(), released);
    }

    #[test]
    fn every_capability_of_the_wire_has_a_field() {
        let Value::Object(all) = capabilities() else { panic!("not an object") };
        for name in all.keys() {
            let only = json!({"id": "x", "capabilities": {name: true}});
            let agent: AgentInfo = serde_json::from_value(only).unwrap();
            assert!(agent.capabilities.other.is_empty(), "{name}");
            let written = serde_json::to_value(agent.capabilities).unwrap();
            let set: Vec<_> =
                written.as_object().unwrap().iter().filter(|(_, value)| **value == true).collect();
            assert_eq!(set, [(name, &json!(true))]);
        }
        assert_eq!(all.len(), 18);
    }

    #[test]
    fn an_agent_of_the_early_server_is_parsed_too() {
        let agent: AgentInfo = serde_json::from_value(json!({"id": "codex", "installed": true,
            "credentialsAvailable": false, "capabilities": {"planMode": true, "telepathy": true},
            "serverStatus": {"status": "hibernating", "baseUrl": "http://127.0.0.1:1", "restartCount": 2,
                "lastError": "x"},
            "models": [{"id": "gpt", "name": "GPT"}, {"id": "mini"}], "defaultModel": "gpt",
            "modes": [{"id": "build", "name": "Build", "description": "does"}], "vendor": "x"}))
        .unwrap();
        let status = agent.server_status.unwrap();
        assert_eq!(status.status, AgentServerState::Other("hibernating".to_owned()));
        assert_eq!((status.restart_count, status.last_error.as_deref()), (Some(2), Some("x")));
        assert_eq!(agent.models.unwrap()[1].label(), "mini");
        assert_eq!(agent.modes.unwrap()[0].name.as_deref(), Some("Build"));
        assert_eq!(agent.capabilities.other.get("telepathy"), Some(&json!(true)));
        assert_eq!(agent.other.get("vendor"), Some(&json!("x")));
    }

    #[test]
    fn an_agent_needs_only_a_name() {
        let list: AgentList = serde_json::from_value(json!({"agents": [{"id": "pi"}, {"id": "amp",
            "installed": null, "capabilities": null, "serverStatus": null}]}))
        .unwrap();
        assert!(list.agents.iter().all(|agent| !agent.installed && agent.server_status.is_none()));
        assert!(serde_json::from_value::<AgentList>(json!({"agents": [{}]})).is_err());
    }
}
