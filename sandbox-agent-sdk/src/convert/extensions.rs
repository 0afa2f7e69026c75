//! Extensions that a server supports.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::metadata::NAMESPACE;

/// The extensions that a server advertises when a client connects.
///
/// For servers without extensions every query returns `false`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Extensions {
    /// The raw advertisement, so that unknown extensions can be queried too.
    entries: Map<String, Value>,
}

/// An extension that a server may support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Extension {
    /// Detach from a session without ending it.
    SessionDetach,
    /// End a session.
    SessionTerminate,
    /// Notify clients when a session ends, and how.
    SessionEndedNotification,
    /// List the models of a session.
    SessionListModels,
    /// Change a session's metadata.
    SessionSetMetadata,
    /// Select a session's agent in its metadata.
    SessionAgentMeta,
    /// List the agents.
    AgentList,
    /// Install an agent.
    AgentInstall,
    /// List sessions, including how they ended.
    SessionList,
    /// Get one session, including how it ended.
    SessionGet,
    /// List a directory.
    FsListEntries,
    /// Read a file.
    FsReadFile,
    /// Write a file.
    FsWriteFile,
    /// Delete a file or a directory.
    FsDeleteEntry,
    /// Create a directory.
    FsMkdir,
    /// Move a file or a directory.
    FsMove,
    /// Get the type and size of a file or directory.
    FsStat,
    /// Unpack an archive.
    FsUploadBatch,
}

impl Extension {
    /// All extensions, in the order in which servers list them.
    pub const ALL: &'static [Self] = &[
        Self::SessionDetach,
        Self::SessionTerminate,
        Self::SessionEndedNotification,
        Self::SessionListModels,
        Self::SessionSetMetadata,
        Self::SessionAgentMeta,
        Self::AgentList,
        Self::AgentInstall,
        Self::SessionList,
        Self::SessionGet,
        Self::FsListEntries,
        Self::FsReadFile,
        Self::FsWriteFile,
        Self::FsDeleteEntry,
        Self::FsMkdir,
        Self::FsMove,
        Self::FsStat,
        Self::FsUploadBatch,
    ];

    /// Returns the name of the flag that advertises the extension.
    #[must_use]
    pub const fn flag(self) -> &'static str {
        self.names().0
    }

    /// Returns the method of the extension, if it has one.
    #[must_use]
    pub const fn method(self) -> Option<&'static str> {
        self.names().1
    }

    const fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::SessionDetach => ("sessionDetach", Some("_sandboxagent/session/detach")),
            Self::SessionTerminate => ("sessionTerminate", Some("_sandboxagent/session/terminate")),
            Self::SessionEndedNotification => {
                ("sessionEndedNotification", Some("_sandboxagent/session/ended"))
            }
            Self::SessionListModels => ("sessionListModels", Some("_sandboxagent/session/list_models")),
            Self::SessionSetMetadata => ("sessionSetMetadata", Some("_sandboxagent/session/set_metadata")),
            Self::SessionAgentMeta => ("sessionAgentMeta", None),
            Self::AgentList => ("agentList", Some("_sandboxagent/agent/list")),
            Self::AgentInstall => ("agentInstall", Some("_sandboxagent/agent/install")),
            Self::SessionList => ("sessionList", Some("_sandboxagent/session/list")),
            Self::SessionGet => ("sessionGet", Some("_sandboxagent/session/get")),
            Self::FsListEntries => ("fsListEntries", Some("_sandboxagent/fs/list_entries")),
            Self::FsReadFile => ("fsReadFile", Some("_sandboxagent/fs/read_file")),
            Self::FsWriteFile => ("fsWriteFile", Some("_sandboxagent/fs/write_file")),
            Self::FsDeleteEntry => ("fsDeleteEntry", Some("_sandboxagent/fs/delete_entry")),
            Self::FsMkdir => ("fsMkdir", Some("_sandboxagent/fs/mkdir")),
            Self::FsMove => ("fsMove", Some("_sandboxagent/fs/move")),
            Self::FsStat => ("fsStat", Some("_sandboxagent/fs/stat")),
            Self::FsUploadBatch => ("fsUploadBatch", Some("_sandboxagent/fs/upload_batch")),
        }
    }
}

impl Extensions {
    /// Parses the advertisement in an `initialize` result. Empty if it is missing or invalid.
    #[must_use]
    pub fn from_initialize(result: &Value) -> Self {
        let capabilities = result.get("agentCapabilities").or_else(|| result.get("agent_capabilities"));
        let meta = capabilities.and_then(|capabilities| capabilities.get("_meta")).and_then(Value::as_object);
        meta.map(Self::from_meta).unwrap_or_default()
    }

    /// Parses the advertisement in the `_meta` field of the capabilities.
    #[must_use]
    pub fn from_meta(meta: &Map<String, Value>) -> Self {
        let advertised =
            meta.get(NAMESPACE).and_then(|ours| ours.get("extensions")).and_then(Value::as_object);
        Self { entries: advertised.cloned().unwrap_or_default() }
    }

    /// Returns whether the server advertises nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether the server supports the extension.
    ///
    /// The extension's flag decides. Without a flag, the method must be listed.
    #[must_use]
    pub fn supports(&self, extension: Extension) -> bool {
        match self.flag(extension.flag()) {
            Some(flag) => flag,
            None => extension.method().is_some_and(|method| self.has_method(method)),
        }
    }

    /// Returns a flag by name, including unknown ones.
    #[must_use]
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.entries.get(name).and_then(Value::as_bool)
    }

    /// Returns whether a method is listed, including unknown ones.
    #[must_use]
    pub fn has_method(&self, method: &str) -> bool {
        self.methods().any(|listed| listed == method)
    }

    /// Returns the methods that the server lists.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.entries.get("methods").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the entries that this version does not know.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, &Value)> {
        let known = |name: &str| name == "methods" || Extension::ALL.iter().any(|known| known.flag() == name);
        self.entries.iter().map(|(name, value)| (name.as_str(), value)).filter(move |(name, _)| !known(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Extension, Extensions};

    fn initialize_result() -> Value {
        json!({"protocolVersion": 1, "authMethods": [], "agentCapabilities": {"loadSession": true,
            "_meta": {"other.dev": 1, "sandboxagent.dev": {"extensions": {
                "sessionDetach": true, "sessionTerminate": true, "sessionEndedNotification": true,
                "sessionListModels": true, "sessionSetMetadata": true, "sessionAgentMeta": true, "agentList": true,
                "agentInstall": true, "sessionList": true, "sessionGet": true, "fsListEntries": true,
                "fsReadFile": true, "fsWriteFile": true, "fsDeleteEntry": true, "fsMkdir": true, "fsMove": true,
                "fsStat": true, "fsUploadBatch": true,
                "methods": ["_sandboxagent/session/detach", "_sandboxagent/session/terminate",
                    "_sandboxagent/session/ended", "_sandboxagent/session/list_models",
                    "_sandboxagent/session/set_metadata", "_sandboxagent/agent/list",
                    "_sandboxagent/agent/install", "_sandboxagent/session/list", "_sandboxagent/session/get",
                    "_sandboxagent/fs/list_entries", "_sandboxagent/fs/read_file", "_sandboxagent/fs/write_file",
                    "_sandboxagent/fs/delete_entry", "_sandboxagent/fs/mkdir", "_sandboxagent/fs/move",
                    "_sandboxagent/fs/stat", "_sandboxagent/fs/upload_batch"]}}}}})
    }

    #[test]
    fn everything_the_early_server_advertises_is_known() {
        let extensions = Extensions::from_initialize(&initialize_result());
        for extension in Extension::ALL.iter().copied() {
            assert!(extensions.supports(extension), "{extension:?}");
        }
        let methods: Vec<_> = Extension::ALL.iter().copied().filter_map(Extension::method).collect();
        assert_eq!(extensions.methods().collect::<Vec<_>>(), methods);
        assert_eq!(extensions.unknown().count(), 0);
    }

    #[test]
    fn a_server_that_says_nothing_supports_nothing() {
        for result in [
            json!({"agentCapabilities": {"loadSession": true}}),
            json!({"agentCapabilities": {"_meta": {"sandboxagent.dev": {"extensions": true}}}}),
            json!({"agentCapabilities": {"_meta": []}}),
            json!({"echoed": {}}),
            json!(null),
        ] {
            let extensions = Extensions::from_initialize(&result);
            assert!(extensions.is_empty(), "{result}");
            assert!(!Extension::ALL.iter().copied().any(|extension| extensions.supports(extension)));
        }
    }

    #[test]
    fn a_flag_counts_for_more_than_the_list_and_the_list_for_more_than_nothing() {
        let extensions: Extensions = serde_json::from_value(json!({"sessionDetach": false, "sessionGet": "yes",
            "methods": ["_sandboxagent/session/detach", "_sandboxagent/session/get", 5, "_sandboxagent/new"]}))
        .unwrap();
        assert!(!extensions.supports(Extension::SessionDetach));
        assert!(extensions.supports(Extension::SessionGet));
        assert!(!extensions.supports(Extension::SessionList));
        assert!(extensions.has_method("_sandboxagent/new"));
    }

    #[test]
    fn what_is_unknown_is_kept() {
        let value = json!({"sessionDetach": true, "sessionTeleport": true, "limits": {"sessions": 5}});
        let extensions: Extensions = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(extensions.flag("sessionTeleport"), Some(true));
        assert_eq!(
            extensions.unknown().map(|(name, _)| name).collect::<Vec<_>>(),
            ["sessionTeleport", "limits"]
        );
        assert_eq!(serde_json::to_value(extensions).unwrap(), value);
    }
}
