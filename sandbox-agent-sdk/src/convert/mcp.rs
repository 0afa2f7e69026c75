//! Configuration of MCP servers.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::convert::fields::null_as_default;
use crate::convert::open_enum::open_enum;

#[cfg(test)]
mod tests;

/// The configuration of one MCP server, stored by a Sandbox Agent server per directory.
///
/// The server only stores it. An agent uses it only if it is passed to its session.
///
/// `Debug` hides arguments, secrets, and the values of environment variables and headers.
///
/// ```
/// use sandbox_agent_sdk::config::{LocalMcpServer, McpServerConfig};
///
/// let server = LocalMcpServer::new("npx").args(["-y", "my-tools"]).env("TOKEN", "hush");
/// let config = McpServerConfig::from(server);
/// assert!(!format!("{config:?}").contains("hush"));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum McpServerConfig {
    /// A process that the agent starts: type `local` or `stdio`.
    Local(LocalMcpServer),
    /// A server that the agent connects to: type `remote` or `http`.
    Remote(RemoteMcpServer),
    /// A kind of server that this version does not know.
    Other(OtherMcpServer),
}

/// An MCP server that runs as a process.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LocalMcpServer {
    /// The command that starts the server.
    pub command: McpCommand,
    /// The arguments of the command.
    #[serde(default, deserialize_with = "null_as_default")]
    pub args: Vec<String>,
    /// Environment variables of the process.
    #[serde(default, alias = "environment", skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Whether agents use the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The response timeout in milliseconds.
    #[serde(default, alias = "timeout", skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The working directory of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl LocalMcpServer {
    /// Creates a server that is started by a command.
    #[must_use]
    pub fn new(command: impl Into<McpCommand>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: None,
            enabled: None,
            timeout_ms: None,
            cwd: None,
            other: Map::new(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Sets the working directory of the process.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<String>) -> Self {
        self.cwd = Some(directory.into());
        self
    }
}

/// The command of a process: a command line, or a list of words.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum McpCommand {
    /// A command line, or the name of a program.
    Line(String),
    /// A program and its first arguments.
    Words(Vec<String>),
}

impl From<&str> for McpCommand {
    fn from(line: &str) -> Self {
        Self::Line(line.to_owned())
    }
}

impl From<String> for McpCommand {
    fn from(line: String) -> Self {
        Self::Line(line)
    }
}

impl From<Vec<String>> for McpCommand {
    fn from(words: Vec<String>) -> Self {
        Self::Words(words)
    }
}

/// An MCP server at a URL.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RemoteMcpServer {
    /// The URL.
    pub url: String,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// The environment variable that holds the bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearer_token_env_var: Option<String>,
    /// Headers whose values are read from environment variables.
    #[serde(default, alias = "envHttpHeaders", skip_serializing_if = "Option::is_none")]
    pub env_headers: Option<BTreeMap<String, String>>,
    /// The OAuth settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oauth: Option<McpOAuth>,
    /// Whether agents use the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The response timeout in milliseconds.
    #[serde(default, alias = "timeout", skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<McpTransport>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RemoteMcpServer {
    /// Creates a server at a URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: None,
            bearer_token_env_var: None,
            env_headers: None,
            oauth: None,
            enabled: None,
            timeout_ms: None,
            transport: None,
            other: Map::new(),
        }
    }

    /// Adds a header to every request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Sets the environment variable that holds the bearer token.
    #[must_use]
    pub fn bearer_token_env_var(mut self, name: impl Into<String>) -> Self {
        self.bearer_token_env_var = Some(name.into());
        self
    }

    /// Sets the transport.
    #[must_use]
    pub fn transport(mut self, transport: McpTransport) -> Self {
        self.transport = Some(transport);
        self
    }
}

open_enum! {
    /// The transport of a remote MCP server.
    pub enum McpTransport {
        /// Plain HTTP.
        Http = "http",
        /// Server-sent events.
        Sse = "sse",
    }
}

/// How to authenticate to a remote MCP server with OAuth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum McpOAuth {
    /// `false` disables OAuth even if the server offers it.
    Enabled(bool),
    /// Uses these settings.
    Settings(McpOAuthSettings),
}

/// The OAuth settings of a remote MCP server. Start with [`Default::default`] and set the fields.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct McpOAuthSettings {
    /// The client id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The client secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// The requested scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// An MCP server of an unknown kind, as stored.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OtherMcpServer(pub Map<String, Value>);

impl From<LocalMcpServer> for McpServerConfig {
    fn from(server: LocalMcpServer) -> Self {
        Self::Local(server)
    }
}

impl From<RemoteMcpServer> for McpServerConfig {
    fn from(server: RemoteMcpServer) -> Self {
        Self::Remote(server)
    }
}

/// The serialized form: the canonical name of the kind, and its fields.
#[derive(Serialize)]
struct Tagged<'a, T> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    server: &'a T,
}

impl Serialize for McpServerConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Local(server) => Tagged { kind: "local", server }.serialize(serializer),
            Self::Remote(server) => Tagged { kind: "remote", server }.serialize(serializer),
            Self::Other(server) => server.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for McpServerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut map = Map::deserialize(deserializer)?;
        let kind = map.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        let read = match kind.as_str() {
            "local" | "stdio" => {
                map.shift_remove("type");
                serde_json::from_value(map.into()).map(Self::Local)
            }
            "remote" | "http" => {
                map.shift_remove("type");
                serde_json::from_value(map.into()).map(Self::Remote)
            }
            _ => Ok(Self::Other(OtherMcpServer(map))),
        };
        read.map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for LocalMcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalMcpServer")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env.as_ref().map(names))
            .field("enabled", &self.enabled)
            .field("timeout_ms", &self.timeout_ms)
            .field("cwd", &self.cwd)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for RemoteMcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteMcpServer")
            .field("url", &without_secrets(&self.url))
            .field("headers", &self.headers.as_ref().map(names))
            .field("bearer_token_env_var", &self.bearer_token_env_var)
            .field("env_headers", &self.env_headers)
            .field("oauth", &self.oauth)
            .field("enabled", &self.enabled)
            .field("timeout_ms", &self.timeout_ms)
            .field("transport", &self.transport)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for McpCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = match self {
            Self::Line(line) => line.split_whitespace().next(),
            Self::Words(words) => words.first().map(String::as_str),
        };
        write!(f, "McpCommand({:?}, ..)", program.unwrap_or_default())
    }
}

impl fmt::Debug for McpOAuthSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpOAuthSettings")
            .field("client_id", &self.client_id)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for OtherMcpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherMcpServer").field(&self.0.keys().collect::<Vec<_>>()).finish()
    }
}

fn names(values: &BTreeMap<String, String>) -> Vec<&String> {
    values.keys().collect()
}

/// Removes the query and the user information of a URL, because they may contain secrets.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}
