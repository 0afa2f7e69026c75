//! The options of a session as they are stored.

use serde_json::{Map, Value};

use crate::NewSession;
use crate::session::SessionMetadata;

impl NewSession {
    /// Converts to the form that is stored. MCP servers may contain secrets and are omitted.
    pub(super) fn to_stored(&self) -> Map<String, Value> {
        let mut stored = Map::new();
        stored.insert("directory".to_owned(), self.directory.clone().into());
        let members = [
            ("metadata", self.given().clone().into_map()),
            ("params", self.params.clone()),
            ("meta", self.meta.clone()),
        ];
        for (name, members) in members {
            if !members.is_empty() {
                stored.insert(name.to_owned(), members.into());
            }
        }
        if let Some(level) = self.thought_level_wanted() {
            stored.insert("thoughtLevel".to_owned(), level.into());
        }
        stored
    }

    /// Parses the stored form. Invalid fields are ignored.
    pub(super) fn from_stored(stored: &Map<String, Value>) -> Self {
        let text = |name: &str| stored.get(name).and_then(Value::as_str).map(str::to_owned);
        let members = |name: &str| stored.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        let metadata = members("metadata")
            .into_iter()
            .fold(SessionMetadata::new(), |metadata, (key, value)| metadata.with(key, value));
        let mut new =
            Self::in_dir(text("directory").unwrap_or_else(|| "/".to_owned())).with_metadata(metadata);
        (new.params, new.meta) = (members("params"), members("meta"));
        match text("thoughtLevel") {
            Some(level) => new.thought_level(level),
            None => new,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::NewSession;
    use crate::config::LocalMcpServer;

    #[test]
    fn everything_is_stored_except_mcp_servers() {
        let local = LocalMcpServer::new(vec!["npx".to_owned()]).env("KEY", "hush");
        let session = NewSession::in_dir("/w")
            .title("T")
            .metadata("x", json!(null))
            .param("p", 1)
            .meta("o", json!({"a": 2}));
        let session = session.thought_level("high").agent("codex");
        let kept = session.clone().mcp_server("a", &local.into()).to_stored();
        assert!(!json!(kept).to_string().contains("hush"));
        assert_eq!(NewSession::from_stored(&kept), session);
    }
}
