//! The agents a server can run.

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
    /// Whether it is installed. Most servers install an agent by themselves when it is first used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub installed: bool,
    /// Whether the server has found credentials for it.
    #[serde(default, alias = "credentials_available", deserialize_with = "null_as_default")]
    pub credentials_available: bool,
    /// Its version, where the server was asked for details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Where it is installed, where the server was asked for details.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What it can do.
    #[serde(default, deserialize_with = "null_as_default")]
    pub capabilities: AgentCapabilities,
    /// The state of its process. The released server calls a process running that has died.
    #[serde(default, alias = "server_status", skip_serializing_if = "Option::is_none")]
    pub server_status: Option<AgentServerStatus>,
    /// What can be set on its sessions, as the server wrote it.
    #[serde(default, alias = "config_options", skip_serializing_if = "Option::is_none")]
    pub config_options: Option<Vec<Value>>,
    /// Why there are no such options.
    #[serde(default, alias = "config_error", skip_serializing_if = "Option::is_none")]
    pub config_error: Option<String>,
    /// Its models, where the server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Model>>,
    /// The id of the model it uses when none is asked for.
    #[serde(default, alias = "default_model", skip_serializing_if = "Option::is_none")]
    pub default_model: Option<String>,
    /// Its modes, where the server knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Vec<AgentMode>>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The agents a server can run, as it lists them.
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
    /// It can plan without acting.
    pub plan_mode: bool,
    /// It asks for permission. An agent that never asks makes any policy decorative.
    pub permissions: bool,
    /// It asks questions.
    pub questions: bool,
    /// It tells of its tool calls.
    pub tool_calls: bool,
    /// It tells of the results of its tool calls.
    pub tool_results: bool,
    /// It takes and sends text.
    pub text_messages: bool,
    /// It takes images.
    pub images: bool,
    /// It takes files.
    pub file_attachments: bool,
    /// It tells when its sessions begin and end.
    pub session_lifecycle: bool,
    /// It tells of errors.
    pub error_events: bool,
    /// It tells what it thinks.
    pub reasoning: bool,
    /// It tells what it is at.
    pub status: bool,
    /// It runs commands.
    pub command_execution: bool,
    /// It tells of the files it changes.
    pub file_changes: bool,
    /// It uses tools of MCP servers.
    pub mcp_tools: bool,
    /// Its text comes in pieces as it is written.
    pub streaming_deltas: bool,
    /// It tells when an item begins.
    pub item_started: bool,
    /// One process serves all its sessions.
    pub shared_process: bool,
    /// Capabilities that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

open_enum! {
    /// The state of an agent's process.
    pub enum AgentServerState {
        /// It runs, or so the server thinks.
        Running = "running",
        /// It does not run.
        Stopped = "stopped",
        /// It failed.
        Error = "error",
    }
}

/// The state of an agent's process, and more where the server knows more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AgentServerStatus {
    /// The state.
    pub status: AgentServerState,
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// For how many milliseconds it has been running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// How often it was started anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<u64>,
    /// What last went wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A mode an agent can work in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AgentMode {
    /// The id by which it is chosen.
    pub id: String,
    /// The name to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is good for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl AgentMode {
    /// What to show a person: the name, or the id where there is none.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// The mode that a value of an option stands for.
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
    fn an_agent_of_the_released_server_is_read_and_written_whole() {
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
    fn an_agent_of_the_early_server_is_read_too() {
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
    fn the_least_an_agent_can_be_is_a_name() {
        let list: AgentList = serde_json::from_value(json!({"agents": [{"id": "pi"}, {"id": "amp",
            "installed": null, "capabilities": null, "serverStatus": null}]}))
        .unwrap();
        assert!(list.agents.iter().all(|agent| !agent.installed && agent.server_status.is_none()));
        assert!(serde_json::from_value::<AgentList>(json!({"agents": [{}]})).is_err());
    }
}
