//! What a server knows about a session.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::TerminationInfo;
use crate::convert::fields::{Fields, MissingMember, put};
use crate::convert::metadata::NAMESPACE;
use crate::session::{SessionMetadata, Timestamp};
use crate::termination::{EndReason, TerminatedBy};

#[cfg(test)]
mod tests;

/// What a server knows about a session, from whichever of its ways to ask for it.
///
/// Servers tell of sessions in two forms: a flat record, and a list entry with the session's metadata. Both
/// are read into this one type; what one form says in the metadata and the other in a member is in the
/// field here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id.
    pub session_id: String,
    /// The agent behind it.
    pub agent: Option<String>,
    /// The title people see.
    pub title: Option<String>,
    /// The directory it works in.
    pub directory: Option<String>,
    /// The further directories it may use, if the agent lists them.
    pub additional_directories: Option<Vec<String>>,
    /// The model in use.
    pub model: Option<String>,
    /// The mode the agent works in.
    pub agent_mode: Option<String>,
    /// How permissions are dealt with.
    pub permission_mode: Option<String>,
    /// The agent's own id for the session.
    pub native_session_id: Option<String>,
    /// Whether the session has ended, if the server says; see [`has_ended`](Self::has_ended).
    pub ended: Option<bool>,
    /// How many events it has had.
    pub event_count: Option<u64>,
    /// When it was made, by the server's clock.
    pub created_at: Option<Timestamp>,
    /// When it last changed, by the server's clock.
    pub updated_at: Option<Timestamp>,
    /// When the agent says that it was last used, in the agent's own words.
    pub last_activity: Option<String>,
    /// How it ended.
    pub termination_info: Option<TerminationInfo>,
    /// The metadata that came with it. Empty when the server has another form.
    pub metadata: SessionMetadata,
    /// Members that this version does not know, as the server wrote them.
    pub other: Map<String, Value>,
}

impl SessionInfo {
    /// Whether the session has ended, by the server's word or because it is known how.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended == Some(true) || self.termination_info.is_some()
    }

    /// Takes what the members do not say from the metadata.
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
        // Under the same name one form has the server's milliseconds and the other the agent's text.
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
    /// Where the next page starts; `None` on the last one.
    pub next_cursor: Option<String>,
    /// Entries that could not be read as sessions, as the server wrote them. They cost the page nothing
    /// else.
    pub unreadable: Vec<Value>,
}

impl SessionPage {
    /// Reads a result with `sessions` and perhaps `nextCursor`, or a bare list; `None` when it is neither.
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

/// The answer to the wish to end a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TerminateResult {
    /// Whether this call ended the session.
    #[serde(default)]
    pub terminated: bool,
    /// Whether there was nothing to end: the session had ended before, or the server does not know it.
    #[serde(default, alias = "already_ended")]
    pub already_ended: bool,
    /// Why it ended. Servers always say `terminated` here, even of a session that ended otherwise before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<EndReason>,
    /// Who ended it. Servers always say `daemon` here, and agents that close a session themselves nothing.
    #[serde(default, alias = "terminated_by", skip_serializing_if = "Option::is_none")]
    pub terminated_by: Option<TerminatedBy>,
    /// Members that this version does not know, as the server wrote them.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl TerminateResult {
    /// The answer of an agent that closes sessions and says no more about it.
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

/// Takes our namespace out of the object's `_meta`; whatever else is in there, or is there instead, stays.
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
