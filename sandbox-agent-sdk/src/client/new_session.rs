//! The options of sessions that are created, opened or listed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::config::{McpCommand, McpServerConfig, McpTransport};
use crate::convert::metadata::NAMESPACE;
use crate::session::SessionMetadata;

/// The parameter for additional directories.
const DIRECTORIES: &str = "additionalDirectories";

/// The options of a new session.
///
/// ```
/// use sandbox_agent_sdk::NewSession;
///
/// let session = NewSession::in_dir("/work").title("fix the build").model("opus").metadata("ticket", 4711);
/// # let _ = session;
/// ```
#[derive(Clone, PartialEq)]
#[must_use = "options do nothing until they are passed to a client"]
pub struct NewSession {
    pub(crate) directory: String,
    metadata: SessionMetadata,
    mcp_servers: Vec<Value>,
    pub(crate) params: Map<String, Value>,
    pub(crate) meta: Map<String, Value>,
    thought_level: Option<String>,
    invalid: Option<String>,
}

impl NewSession {
    /// Creates options for a session in this directory of the server's machine.
    ///
    /// The path must be absolute; otherwise the call fails before anything is sent.
    pub fn in_dir(directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        let invalid = invalid_directory(directory);
        Self {
            directory: directory.to_string_lossy().into_owned(),
            metadata: SessionMetadata::new(),
            mcp_servers: Vec::new(),
            params: Map::new(),
            meta: Map::new(),
            thought_level: None,
            invalid,
        }
    }

    /// Adds a directory of the server's machine that the session may use. The path must be absolute. Relative paths
    /// in the session still start at the working directory.
    ///
    /// Fails with [`Error::Unsupported`] if the agent lacks
    /// [`Feature::AdditionalDirectories`](crate::connection::Feature::AdditionalDirectories), because it would ignore
    /// the directory.
    pub fn additional_directory(mut self, directory: impl AsRef<Path>) -> Self {
        let directory = directory.as_ref();
        self.invalid = self.invalid.or_else(|| invalid_directory(directory));
        let directories = self.params.entry(DIRECTORIES).or_insert_with(|| json!([]));
        if let Some(directories) = directories.as_array_mut() {
            directories.push(directory.to_string_lossy().into());
        }
        self
    }

    /// Whether it has additional directories.
    pub(crate) fn has_additional_directories(&self) -> bool {
        self.params.contains_key(DIRECTORIES)
    }

    /// Sets the display title.
    pub fn title(self, title: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_title(title))
    }

    /// Sets the model.
    pub fn model(self, model: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_model(model))
    }

    /// Sets the mode.
    pub fn mode(self, mode: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_mode(mode))
    }

    /// Sets the variant of the model.
    pub fn variant(self, variant: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_variant(variant))
    }

    /// Sets the thought level. After creating the session, the client sets the agent's option of the category
    /// `thought_level`.
    pub fn thought_level(mut self, level: impl Into<String>) -> Self {
        self.thought_level = Some(level.into());
        self
    }

    /// Sets the requested session id. The server stores it but assigns the id itself.
    pub fn requested_session_id(self, id: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_requested_session_id(id))
    }

    /// Sets the permission mode of the session.
    pub fn permission_mode(self, mode: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_permission_mode(mode))
    }

    /// Sets the skills of the session.
    pub fn skills(self, skills: impl Into<Value>) -> Self {
        self.edit(|metadata| metadata.with_skills(skills))
    }

    /// Requests a version of the agent.
    pub fn agent_version_requested(self, version: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_agent_version_requested(version))
    }

    /// Selects an agent other than the connection's, on servers with several agents per connection.
    pub fn agent(self, agent: impl Into<String>) -> Self {
        self.edit(|metadata| metadata.with_agent(agent))
    }

    /// Adds metadata of the application, which the server stores with the session.
    pub fn metadata(self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.edit(|metadata| metadata.with(key, value))
    }

    /// Adds several metadata entries.
    pub fn with_metadata(mut self, metadata: SessionMetadata) -> Self {
        self.metadata.merge(metadata);
        self
    }

    /// Adds an MCP server to the session.
    pub fn mcp_server(mut self, name: impl Into<String>, server: &McpServerConfig) -> Self {
        let name = name.into();
        match mcp_server(&name, server) {
            Some(server) => self.mcp_servers.push(server),
            None => {
                self.invalid =
                    Some(format!("the MCP server `{name}` is of a kind that sessions do not support"))
            }
        }
        self
    }

    /// Adds an entry to the `_meta` field of the request.
    pub fn meta(mut self, namespace: impl Into<String>, value: impl Into<Value>) -> Self {
        self.meta.insert(namespace.into(), value.into());
        self
    }

    /// Adds any other parameter to the request.
    pub fn param(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// The metadata of the options.
    pub(crate) fn given(&self) -> &SessionMetadata {
        &self.metadata
    }

    pub(crate) fn thought_level_wanted(&self) -> Option<&str> {
        self.thought_level.as_deref()
    }

    /// The agent of the options, if it is set.
    pub(crate) fn agent_wanted(&self) -> Option<&str> {
        self.metadata.agent()
    }

    fn edit(mut self, edit: impl FnOnce(SessionMetadata) -> SessionMetadata) -> Self {
        self.metadata = edit(self.metadata);
        self
    }

    /// Checks the options, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.invalid {
            Some(invalid) => Err(Error::Config(invalid.clone())),
            None => Ok(()),
        }
    }

    /// The parameters of the call; `agent` is the default if the options set none.
    pub(crate) fn to_params(&self, agent: &str) -> Result<Map<String, Value>, Error> {
        self.check()?;
        let mut metadata = SessionMetadata::new().with_agent(agent);
        metadata.merge(self.metadata.clone());
        let mut params = self.params.clone();
        params.insert("cwd".to_owned(), self.directory.clone().into());
        params.insert("mcpServers".to_owned(), self.mcp_servers.clone().into());
        let mut meta = self.meta.clone();
        metadata
            .write_into_meta(&mut meta)
            .map_err(|error| Error::config(format!("`{NAMESPACE}`: {error}")))?;
        params.insert("_meta".to_owned(), meta.into());
        Ok(params)
    }
}

/// Why a session cannot have this directory, if it cannot.
fn invalid_directory(directory: &Path) -> Option<String> {
    match directory.to_str() {
        Some(directory) if is_absolute(directory) => None,
        Some("") => Some("a session needs a directory".to_owned()),
        _ => Some(format!("the directory of a session is not an absolute path: {}", directory.display())),
    }
}

/// Converts a configured MCP server to the format of session parameters; `None` for an unsupported kind.
fn mcp_server(name: &str, server: &McpServerConfig) -> Option<Value> {
    let pairs = |map: &Option<BTreeMap<String, String>>| -> Vec<Value> {
        let pairs = map.iter().flatten();
        pairs.map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    match server {
        McpServerConfig::Local(local) => {
            let (command, mut args) = match &local.command {
                McpCommand::Line(line) => (line.clone(), Vec::new()),
                McpCommand::Words(words) => {
                    let (program, rest) = words.split_first()?;
                    (program.clone(), rest.to_vec())
                }
            };
            args.extend(local.args.iter().cloned());
            Some(json!({"name": name, "command": command, "args": args, "env": pairs(&local.env)}))
        }
        McpServerConfig::Remote(remote) => {
            let kind = if remote.transport == Some(McpTransport::Sse) { "sse" } else { "http" };
            Some(json!({"type": kind, "name": name, "url": remote.url, "headers": pairs(&remote.headers)}))
        }
        McpServerConfig::Other(_) => None,
    }
}

/// MCP servers are omitted: their environment and headers may contain secrets.
impl fmt::Debug for NewSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSession")
            .field("directory", &self.directory)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// The options of a session that is loaded or resumed.
///
/// ```
/// use sandbox_agent_sdk::OpenSession;
///
/// let open = OpenSession::in_dir("/work").agent("claude");
/// # let _ = open;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[must_use = "options do nothing until they are passed to a client"]
pub struct OpenSession {
    pub(crate) new: NewSession,
}

impl OpenSession {
    /// Creates options for a session in this directory of the server's machine. The path must be absolute.
    pub fn in_dir(directory: impl AsRef<Path>) -> Self {
        Self { new: NewSession::in_dir(directory) }
    }

    /// Sets the agent of the session, on servers with several agents per connection.
    pub fn agent(self, agent: impl Into<String>) -> Self {
        Self { new: self.new.agent(agent) }
    }

    /// Reopens a session with the options it was created with.
    pub(crate) fn like(new: NewSession) -> Self {
        Self { new }
    }

    /// Adds a directory that the session may use. See [`NewSession::additional_directory`].
    pub fn additional_directory(self, directory: impl AsRef<Path>) -> Self {
        Self { new: self.new.additional_directory(directory) }
    }

    /// Adds an MCP server to the session.
    pub fn mcp_server(self, name: impl Into<String>, server: &McpServerConfig) -> Self {
        Self { new: self.new.mcp_server(name, server) }
    }

    /// Adds an entry to the `_meta` field of the request.
    pub fn meta(self, namespace: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { new: self.new.meta(namespace, value) }
    }

    /// Adds any other parameter to the request.
    pub fn param(self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { new: self.new.param(name, value) }
    }
}

/// Whether a path is absolute on any platform: the server may run on another platform than the client.
fn is_absolute(path: &str) -> bool {
    let mut characters = path.chars();
    let start = (characters.next(), characters.next(), characters.next());
    match start {
        (Some('/'), _, _) | (Some('\\'), Some('\\'), _) => true,
        (Some(drive), Some(':'), Some('/' | '\\')) => drive.is_ascii_alphabetic(),
        _ => false,
    }
}

/// Selects the sessions to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "options do nothing until they are passed to a client"]
pub struct ListSessions {
    pub(crate) directory: Option<String>,
}

impl ListSessions {
    /// Lists all sessions.
    pub fn all() -> Self {
        Self::default()
    }

    /// Lists the sessions in this directory. The path must be absolute; otherwise listing fails before anything is
    /// sent.
    pub fn in_dir(directory: impl AsRef<Path>) -> Self {
        Self { directory: Some(directory.as_ref().to_string_lossy().into_owned()) }
    }

    /// Checks the directory, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = self.directory.as_ref().and_then(|directory| invalid_directory(directory.as_ref()));
        invalid.map_or(Ok(()), |invalid| Err(Error::Config(invalid)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::NewSession;
    use crate::config::{LocalMcpServer, RemoteMcpServer};

    #[test]
    fn a_description_becomes_parameters_and_other_namespaces_stay() {
        let session =
            NewSession::in_dir("/w").title("T").metadata("ticket", 7).meta("other.dev", json!({"a": 1}));
        let params = session.to_params("claude").unwrap();
        assert_eq!(
            json!(params),
            json!({"cwd": "/w", "mcpServers": [],
                "_meta": {"other.dev": {"a": 1}, "sandboxagent.dev": {"agent": "claude", "title": "T", "ticket": 7}}})
        );
        let other = NewSession::in_dir("/w").agent("codex").to_params("claude").unwrap();
        assert_eq!(other["_meta"]["sandboxagent.dev"]["agent"], "codex");
        assert!(NewSession::in_dir("/w").meta("sandboxagent.dev", 5).to_params("claude").is_err());
    }

    #[test]
    fn tool_servers_take_the_form_of_sessions_and_keep_their_secrets() {
        let local =
            LocalMcpServer::new(vec!["npx".to_owned(), "-y".to_owned()]).args(["tools"]).env("KEY", "hush");
        let remote = RemoteMcpServer::new("https://h/mcp").header("x-key", "hush");
        let session = NewSession::in_dir("/w").mcp_server("a", &local.into()).mcp_server("b", &remote.into());
        assert!(!format!("{session:?}").contains("hush"));
        assert_eq!(
            session.to_params("mock").unwrap()["mcpServers"],
            json!([{"name": "a", "command": "npx", "args": ["-y", "tools"], "env": [{"name": "KEY", "value": "hush"}]},
                {"type": "http", "name": "b", "url": "https://h/mcp", "headers": [{"name": "x-key", "value": "hush"}]}])
        );
    }
}
