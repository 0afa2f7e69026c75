//! A server's information about a session.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::TerminationInfo;
use crate::convert::fields::{Fields, MissingMember, put};
use crate::convert::metadata::NAMESPACE;
use crate::session::{SessionMetadata, Timestamp};
use crate::termination::{EndReason, TerminatedBy};

#[cfg(test)]
mod tests;

/// A server's information about a session.
///
/// Servers send it in two formats: a flat record, and a list entry with the session's metadata. Both are
/// parsed into this type. A field is filled from either format.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id.
    pub session_id: String,
    /// The agent of the session.
    pub agent: Option<String>,
    /// The display title.
    pub title: Option<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// Additional directories that the session may use, if the agent lists them.
    pub additional_directories: Option<Vec<String>>,
    /// The current model.
    pub model: Option<String>,
    /// The current mode of the agent.
    pub agent_mode: Option<String>,
    /// The permission mode.
    pub permission_mode: Option<String>,
    /// The agent's own id for the session.
    pub native_session_id: Option<String>,
    /// Whether the session has ended, if the server reports it. See [`has_ended`](Self::has_ended).
    pub ended: Option<bool>,
    /// The number of events.
    pub event_count: Option<u64>,
    /// When the session was created, by the server's clock.
    pub created_at: Option<Timestamp>,
    /// When the session last changed, by the server's clock.
    pub updated_at: Option<Timestamp>,
    /// When the session was last used, as the agent formats it.
    pub last_activity: Option<String>,
    /// How the session ended.
    pub termination_info: Option<TerminationInfo>,
    /// The session's metadata. Empty in the flat format.
    pub metadata: SessionMetadata,
    /// Unknown fields, as the server sent them.
    pub other: Map<String, Value>,
}

impl SessionInfo {
    /// Returns whether the session has ended: the server reports that it has ended, or how.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended == Some(true) || self.termination_info.is_some()
    }

    /// Fills missing fields from the metadata.
    fn with_metadata(mut self, metadata: SessionMetadata) -> Self {
        fn fill(slot: &mut Option<String>, text: Option<&str>) {
            if slot.is_none() {
                *slot = text.map(str::to_owned);
            }
        }
        fill(&mut self.agent, metadata.agent());
        fill(&mut self.title, metadata.title());
        fill(&mut self.model, metadata.model());
        fill(&mut self.agent_mode, metadata.mode());
        fill(&mut self.permission_mode, metadata.permission_mode());
        let native = metadata.get("nativeSessionId").or_else(|| metadata.get("native_session_id"));
        fill(&mut self.native_session_id, native.and_then(Value::as_str));
        self.ended = self.ended.or(metadata.ended());
        self.event_count = self.event_count.or(metadata.event_count());
        self.created_at = self.created_at.or(metadata.created_at());
        self.updated_at = self.updated_at.or(metadata.updated_at());
        self.termination_info = self.termination_info.or_else(|| metadata.termination_info());
        self.metadata = metadata;
        self
    }
}

impl TryFrom<Map<String, Value>> for SessionInfo {
    type Error = MissingMember;

    fn try_from(mut map: Map<String, Value>) -> Result<Self, MissingMember> {
        let metadata = take_metadata(&mut map);
        let mut fields = Fields::new(map);
        let session_id = fields.string(&["sessionId", "session_id", "id"]);
        // The same name holds the server's milliseconds in one format and the agent's text in the other.
        let last_activity = fields.string(&["lastActivity", "updatedAt"]);
        let info = Self {
            session_id: session_id.ok_or(MissingMember { object: "a session", member: "sessionId" })?,
            agent: fields.string(&["agent"]),
            title: fields.string(&["title"]),
            directory: fields.string(&["directory", "cwd"]),
            additional_directories: fields.strings(&["additionalDirectories"]),
            model: fields.string(&["model"]),
            agent_mode: fields.string(&["agentMode", "agent_mode"]),
            permission_mode: fields.string(&["permissionMode", "permission_mode"]),
            native_session_id: fields.string(&["nativeSessionId", "native_session_id"]),
            ended: fields.bool(&["ended"]),
            event_count: fields.unsigned(&["eventCount", "event_count"]),
            created_at: fields.unsigned(&["createdAt", "created_at"]).map(Timestamp::from_millis),
            updated_at: fields.unsigned(&["updatedAt", "updated_at"]).map(Timestamp::from_millis),
            last_activity,
            termination_info: fields
                .take(&["terminationInfo", "termination_info"], TerminationInfo::from_value),
            metadata: SessionMetadata::new(),
            other: fields.rest(),
        };
        Ok(info.with_metadata(metadata))
    }
}

impl From<SessionInfo> for Map<String, Value> {
    fn from(info: SessionInfo) -> Self {
        let mut map = Self::new();
        put(&mut map, "sessionId", Some(info.session_id));
        put(&mut map, "agent", info.agent);
        put(&mut map, "title", info.title);
        put(&mut map, "directory", info.directory);
        put(&mut map, "additionalDirectories", info.additional_directories);
        put(&mut map, "model", info.model);
        put(&mut map, "agentMode", info.agent_mode);
        put(&mut map, "permissionMode", info.permission_mode);
        put(&mut map, "nativeSessionId", info.native_session_id);
        put(&mut map, "ended", info.ended);
        put(&mut map, "eventCount", info.event_count);
        put(&mut map, "createdAt", info.created_at.map(Timestamp::as_millis));
        put(&mut map, "updatedAt", info.updated_at.map(Timestamp::as_millis));
        put(&mut map, "lastActivity", info.last_activity);
        put(&mut map, "terminationInfo", info.termination_info.map(Self::from));
        map.extend(info.other);
        put_metadata(&mut map, info.metadata);
        map
    }
}

/// One page of a list of sessions.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SessionPage {
    /// The sessions of the page.
    pub sessions: Vec<SessionInfo>,
    /// The cursor of the next page; `None` on the last page.
    pub next_cursor: Option<String>,
    /// Entries that could not be parsed, as the server sent them. The other entries are not affected.
    pub unreadable: Vec<Value>,
}

impl SessionPage {
    /// Parses a result with `sessions` and optional `nextCursor`, or a plain list.
    ///
    /// Returns `None` for any other value.
    #[must_use]
    pub fn from_value(value: &Value) -> Option<Self> {
        let entries = value.get("sessions").unwrap_or(value).as_array()?;
        let cursor = value.get("nextCursor").or_else(|| value.get("next_cursor"));
        let mut page = Self {
            next_cursor: cursor
                .and_then(Value::as_str)
                .filter(|cursor| !cursor.is_empty())
                .map(str::to_owned),
            ..Self::default()
        };
        for entry in entries {
            match entry.as_object().cloned().map(SessionInfo::try_from) {
                Some(Ok(session)) => page.sessions.push(session),
                _ => page.unreadable.push(entry.clone()),
            }
        }
        Some(page)
    }
}

/// The result of terminating a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TerminateResult {
    /// Whether this call ended the session.
    #[serde(default)]
    pub terminated: bool,
    /// Whether the session had already ended, or is unknown to the server.
    #[serde(default, alias = "already_ended")]
    pub already_ended: bool,
    /// Why the session ended. Servers always report `terminated` here, even if the session had already ended for
    /// another reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// Who ended the session. Servers always report `daemon`; agents that close a session themselves report nothing.
    #[serde(default, alias = "terminated_by", skip_serializing_if = "Option::is_none")]
    pub terminated_by: Option<TerminatedBy>,
    /// Unknown fields, as the server sent them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl TerminateResult {
    /// The result of an agent that closes sessions without further details.
    pub(crate) fn of_close(terminated: bool) -> Self {
        Self {
            terminated,
            already_ended: !terminated,
            reason: Some(EndReason::Terminated),
            terminated_by: None,
            other: Map::new(),
        }
    }
}

/// Removes this crate's namespace from `_meta` and returns it. Everything else in `_meta` is preserved.
pub(crate) fn take_metadata(map: &mut Map<String, Value>) -> SessionMetadata {
    let Some(Value::Object(meta)) = map.get_mut("_meta") else {
        return SessionMetadata::new();
    };
    let metadata = SessionMetadata::read_from_meta(meta).unwrap_or_default();
    if meta.get(NAMESPACE).is_some_and(Value::is_object) {
        meta.shift_remove(NAMESPACE);
    }
    if meta.is_empty() {
        map.shift_remove("_meta");
    }
    metadata
}

fn put_metadata(map: &mut Map<String, Value>, metadata: SessionMetadata) {
    if metadata.is_empty() {
        return;
    }
    let mut meta = match map.shift_remove("_meta") {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    meta.insert(NAMESPACE.to_owned(), metadata.into_map().into());
    map.insert("_meta".to_owned(), meta.into());
}
