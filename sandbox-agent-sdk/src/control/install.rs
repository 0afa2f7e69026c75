//! Types for installing an agent.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::null_as_default;
use crate::convert::open_enum::open_enum;

/// Options for installing an agent.
///
/// ```
/// let options = sandbox_agent_sdk::control::InstallOptions::new().reinstall().agent_version("1.2.3");
/// assert_eq!(serde_json::to_string(&options)?, r#"{"reinstall":true,"agentVersion":"1.2.3"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[must_use]
pub struct InstallOptions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reinstall: bool,
    #[serde(alias = "agent_version", skip_serializing_if = "Option::is_none")]
    agent_version: Option<String>,
    #[serde(alias = "agent_process_version", skip_serializing_if = "Option::is_none")]
    agent_process_version: Option<String>,
}

impl InstallOptions {
    /// Creates options that install the server's default version unless the agent is already installed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Requests the installation even if the agent is already installed.
    pub fn reinstall(mut self) -> Self {
        self.reinstall = true;
        self
    }

    /// Requests a version of the agent.
    pub fn agent_version(mut self, version: impl Into<String>) -> Self {
        self.agent_version = Some(version.into());
        self
    }

    /// Requests a version of the process that connects the server to the agent.
    pub fn agent_process_version(mut self, version: impl Into<String>) -> Self {
        self.agent_process_version = Some(version.into());
        self
    }
}

/// The result of an installation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstallResult {
    /// Whether the agent was already installed.
    #[serde(default, alias = "alreadyInstalled")]
    pub already_installed: bool,
    /// The installed artifacts. Empty if the agent was already installed.
    #[serde(default, deserialize_with = "null_as_default")]
    pub artifacts: Vec<InstalledArtifact>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An installed file or program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstalledArtifact {
    /// The kind of the artifact.
    pub kind: ArtifactKind,
    /// The path of the artifact.
    pub path: String,
    /// The source of the artifact.
    pub source: ArtifactSource,
    /// The version, if known.
    #[serde(default)]
    pub version: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

open_enum! {
    /// The kind of an installed artifact.
    pub enum ArtifactKind {
        /// The agent itself.
        NativeAgent = "native_agent",
        /// The process that connects the server to the agent.
        AgentProcess = "agent_process",
    }
}

open_enum! {
    /// The source of an installed artifact.
    pub enum ArtifactSource {
        /// The registry of agents.
        Registry = "registry",
        /// The fallback source for agents that are not in the registry.
        Fallback = "fallback",
        /// A path on the server.
        LocalPath = "local_path",
        /// The server itself.
        Builtin = "builtin",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ArtifactKind, ArtifactSource, InstallOptions, InstallResult};

    #[test]
    fn an_install_result_of_the_released_server_round_trips() {
        let value = json!({"already_installed": false, "artifacts": [{"kind": "agent_process",
            "path": "/srv/test/data3/sandbox-agent/bin/agent_processes/mock", "source": "builtin",
            "version": "builtin"}]});
        let result: InstallResult = serde_json::from_value(value.clone()).unwrap();
        let artifact = &result.artifacts[0];
        assert_eq!(
            (&artifact.kind, &artifact.source),
            (&ArtifactKind::AgentProcess, &ArtifactSource::Builtin)
        );
        assert_eq!(artifact.version.as_deref(), Some("builtin"));
        assert_eq!(serde_json::to_value(result).unwrap(), value);
    }

    #[test]
    fn already_installed_is_parsed_in_both_spellings() {
        for value in [json!({"already_installed": true, "artifacts": []}), json!({"alreadyInstalled": true})]
        {
            let result: InstallResult = serde_json::from_value(value).unwrap();
            assert!(result.already_installed && result.artifacts.is_empty());
        }
    }

    #[test]
    fn unknown_kinds_and_sources_are_preserved() {
        let value = json!({"already_installed": false, "artifacts": [{"kind": "plugin", "path": "/p",
            "source": "mirror", "version": null, "sha256": "00"}]});
        let result: InstallResult = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(result.artifacts[0].kind, ArtifactKind::Other("plugin".to_owned()));
        assert_eq!(result.artifacts[0].source, ArtifactSource::Other("mirror".to_owned()));
        assert_eq!(serde_json::to_value(result).unwrap(), value);
    }

    #[test]
    fn no_options_are_an_empty_object_because_the_server_requires_a_body() {
        assert_eq!(serde_json::to_value(InstallOptions::new()).unwrap(), json!({}));
        let all = InstallOptions::new().agent_process_version("2");
        assert_eq!(serde_json::to_value(all).unwrap(), json!({"agentProcessVersion": "2"}));
    }
}
