//! Installing an agent.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::fields::null_as_default;
use crate::convert::open_enum::open_enum;

/// How to install an agent.
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
    /// The version the server chooses, unless the agent is installed already.
    pub fn new() -> Self {
        Self::default()
    }

    /// Installs the agent even if it is there.
    pub fn reinstall(mut self) -> Self {
        self.reinstall = true;
        self
    }

    /// Asks for a version of the agent.
    pub fn agent_version(mut self, version: impl Into<String>) -> Self {
        self.agent_version = Some(version.into());
        self
    }

    /// Asks for a version of the process by which the server talks to the agent.
    pub fn agent_process_version(mut self, version: impl Into<String>) -> Self {
        self.agent_process_version = Some(version.into());
        self
    }
}

/// What an installation did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstallResult {
    /// Whether there was nothing to do.
    #[serde(default, alias = "alreadyInstalled")]
    pub already_installed: bool,
    /// What was installed. Empty when there was nothing to do.
    #[serde(default, deserialize_with = "null_as_default")]
    pub artifacts: Vec<InstalledArtifact>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Something that was installed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct InstalledArtifact {
    /// What it is.
    pub kind: ArtifactKind,
    /// Where it is.
    pub path: String,
    /// Where it came from.
    pub source: ArtifactSource,
    /// Its version, if it is known.
    #[serde(default)]
    pub version: Option<String>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

open_enum! {
    /// What was installed.
    pub enum ArtifactKind {
        /// The agent itself.
        NativeAgent = "native_agent",
        /// The process by which the server talks to the agent.
        AgentProcess = "agent_process",
    }
}

open_enum! {
    /// Where something that was installed came from.
    pub enum ArtifactSource {
        /// The registry of agents.
        Registry = "registry",
        /// The place to look when the registry has nothing.
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
    fn the_result_of_the_released_server_is_read_and_written_whole() {
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
    fn nothing_to_do_is_understood_in_both_spellings() {
        for value in [json!({"already_installed": true, "artifacts": []}), json!({"alreadyInstalled": true})]
        {
            let result: InstallResult = serde_json::from_value(value).unwrap();
            assert!(result.already_installed && result.artifacts.is_empty());
        }
    }

    #[test]
    fn new_kinds_and_sources_are_kept() {
        let value = json!({"already_installed": false, "artifacts": [{"kind": "plugin", "path": "/p",
            "source": "mirror", "version": null, "sha256": "00"}]});
        let result: InstallResult = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(result.artifacts[0].kind, ArtifactKind::Other("plugin".to_owned()));
        assert_eq!(result.artifacts[0].source, ArtifactSource::Other("mirror".to_owned()));
        assert_eq!(serde_json::to_value(result).unwrap(), value);
    }

    #[test]
    fn no_options_are_an_empty_object_because_the_server_wants_a_body() {
        assert_eq!(serde_json::to_value(InstallOptions::new()).unwrap(), json!({}));
        let all = InstallOptions::new().agent_process_version("2");
        assert_eq!(serde_json::to_value(all).unwrap(), json!({"agentProcessVersion": "2"}));
    }
}
