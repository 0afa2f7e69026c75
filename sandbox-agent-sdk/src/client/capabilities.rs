//! What a server and its agent can do.

use serde_json::Value;

use crate::ServerKind;
use crate::client::login::LoginMethod;
use crate::extensions::Extensions;

/// The capabilities of the server and the agent, as reported when the connection was opened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The kind of server.
    pub server: ServerKind,
    /// The requested name of the agent.
    pub agent: String,
    /// The name that the agent reports.
    pub agent_name: Option<String>,
    /// The display name of the agent.
    pub agent_title: Option<String>,
    /// The version that the agent reports.
    pub agent_version: Option<String>,
    /// The extensions that the server supports.
    pub extensions: Extensions,
    /// Whether sessions can be loaded, with their history.
    pub load_session: bool,
    /// Whether sessions can be resumed, without their history.
    pub resume_session: bool,
    /// Whether sessions can be forked.
    pub fork_session: bool,
    /// Whether the agent can list its sessions.
    pub list_sessions: bool,
    /// Whether the agent can close sessions.
    pub close_session: bool,
    /// Whether the agent can delete sessions from its list.
    pub delete_session: bool,
    /// Whether sessions can have additional directories.
    pub additional_directories: bool,
    /// Whether the agent can log out.
    pub logout: bool,
    /// Whether sessions can use MCP servers over HTTP.
    pub mcp_http: bool,
    /// Whether sessions can use MCP servers over server-sent events.
    pub mcp_sse: bool,
    /// Whether prompts may contain images.
    pub images: bool,
    /// Whether prompts may contain audio.
    pub audio: bool,
    /// Whether prompts may contain embedded resources.
    pub embedded_resources: bool,
    /// The ids of [`login_methods`](Self::login_methods).
    pub auth_methods: Vec<String>,
    /// The login methods of the agent.
    pub login_methods: Vec<LoginMethod>,
    /// The raw response to the request that opened the connection.
    pub raw: Value,
}

impl Capabilities {
    /// Returns the `_meta` field of the agent's capabilities.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.pointer("/agentCapabilities/_meta")
    }

    pub(crate) fn read(server: ServerKind, agent: &str, raw: Value) -> Self {
        let at = |pointer: &str| raw.pointer(pointer);
        let flag = |pointer: &str| at(pointer).and_then(Value::as_bool).unwrap_or(false);
        // A supported ability is an object, which may be empty. An unsupported one is absent, `null` or `false`.
        let there = |ability: Option<&Value>| {
            ability.is_some_and(|ability| !ability.is_null() && ability != &Value::Bool(false))
        };
        let has = |name: &str| {
            there(at("/agentCapabilities/sessionCapabilities").and_then(|abilities| abilities.get(name)))
        };
        let text = |pointer: &str| at(pointer).and_then(Value::as_str).map(str::to_owned);
        let login_methods = LoginMethod::read_all(&raw);
        Self {
            server,
            agent: agent.to_owned(),
            agent_name: text("/agentInfo/name"),
            agent_title: text("/agentInfo/title"),
            agent_version: text("/agentInfo/version"),
            extensions: Extensions::from_initialize(&raw),
            load_session: flag("/agentCapabilities/loadSession"),
            resume_session: has("resume"),
            fork_session: has("fork"),
            list_sessions: has("list"),
            close_session: has("close"),
            delete_session: has("delete"),
            additional_directories: has("additionalDirectories"),
            logout: there(at("/agentCapabilities/auth/logout")),
            mcp_http: flag("/agentCapabilities/mcpCapabilities/http"),
            mcp_sse: flag("/agentCapabilities/mcpCapabilities/sse"),
            images: flag("/agentCapabilities/promptCapabilities/image"),
            audio: flag("/agentCapabilities/promptCapabilities/audio"),
            embedded_resources: flag("/agentCapabilities/promptCapabilities/embeddedContext"),
            auth_methods: login_methods.iter().map(|method| method.id.clone()).collect(),
            login_methods,
            raw,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Capabilities;
    use crate::ServerKind;
    use crate::extensions::Extension;

    #[test]
    fn what_is_not_said_is_not_there() {
        let none = Capabilities::read(ServerKind::PerAgent, "mock", json!({"echoed": {}}));
        assert!(!none.load_session && !none.resume_session && !none.images && none.auth_methods.is_empty());
        let some = Capabilities::read(
            ServerKind::Shared,
            "mock",
            json!({"agentInfo": {"name": "m", "version": "1"}, "authMethods": [{"id": "key", "name": "Key"}, {}],
                "agentCapabilities": {"loadSession": true, "sessionCapabilities": {"resume": {}, "fork": null},
                    "promptCapabilities": {"image": true},
                    "_meta": {"sandboxagent.dev": {"extensions": {"sessionDetach": true}}}}}),
        );
        assert!(some.load_session && some.resume_session && !some.fork_session && some.images);
        assert_eq!((some.agent_name.as_deref(), some.auth_methods), (Some("m"), vec!["key".to_owned()]));
        assert!(some.extensions.supports(Extension::SessionDetach));
    }
}
