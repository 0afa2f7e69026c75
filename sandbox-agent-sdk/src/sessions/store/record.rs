//! The stored record of a session.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::limits::{MAX_EARLIER_AGENT_SESSIONS, check_key, check_moment, check_number, check_value};
use super::{Fence, NewEvent, StoreError, StreamPosition};
use crate::TerminationInfo;
use crate::session::Timestamp;
use crate::sessions::status::{ResumeSupport, SessionStatus};

/// The stored record of a session.
///
/// [`SessionStore::create`](super::SessionStore::create) stores a complete record. Patches change it later
/// ([`RecordPatch`](super::RecordPatch)). Its JSON also has [`resumeData`](Self::resume_data).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[non_exhaustive]
pub struct SessionRecord {
    /// The session's id. It never changes.
    pub id: String,
    /// The name of the agent.
    pub agent: String,
    /// The application's key for the session, such as a user or a project. Sessions can be listed by this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_key: Option<String>,
    /// The status of the session.
    #[serde(deserialize_with = "stored_status")]
    pub status: SessionStatus,
    /// The fencing token. It is incremented whenever the session is acquired or released.
    #[serde(default)]
    pub epoch: u64,
    /// The name of the process that owns the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Whether the owner has stored all events that the server had when the owner acquired the session.
    #[serde(default)]
    pub caught_up: bool,
    /// The endpoint of the server that has the agent's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The agent's session. It changes if the agent cannot continue the session.
    #[serde(flatten)]
    pub agent_session: Option<AgentSession>,
    /// The position up to which the server's stream is stored for this session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<StreamPosition>,
    /// When the session was created.
    pub created_at: Timestamp,
    /// When the session was last active. Storing an event updates it.
    #[serde(alias = "lastActive")]
    pub last_active_at: Timestamp,
    /// The index of the last event; 0 if there are no events. Set by the store.
    #[serde(default)]
    pub last_index: u64,
    /// How often the record was written; 0 if it was never stored. Set by the store.
    #[serde(default)]
    pub revision: u64,
    /// Details that stores save but do not interpret.
    #[serde(flatten)]
    pub details: SessionDetails,
}

/// The agent's session that a stored session is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentSession {
    /// The agent's id for the session.
    #[serde(rename = "agentSessionId")]
    pub id: String,
    /// The incarnation of the server in which the id is valid.
    #[serde(default)]
    pub incarnation: u64,
}

/// The part of a record that stores do not interpret.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct SessionDetails {
    /// The display title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Whether the agent advertises that it can resume or load sessions.
    #[serde(alias = "resumable")]
    pub supports_resume: bool,
    /// The agent's earlier sessions, oldest first; at most the latest [`MAX_EARLIER_AGENT_SESSIONS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier_agent_sessions: Vec<AgentSession>,
    /// The parameters with which the session was created. MCP servers are not stored, because they may contain
    /// secrets.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub init: Map<String, Value>,
    /// The options of the session, as the agent last reported them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_options: Option<Value>,
    /// The modes of the session, as the agent last reported them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modes: Option<Value>,
    /// The models of the session, as the agent last reported them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Value>,
    /// How the agent ended. Removed when the session is restored.
    #[serde(skip_serializing_if = "Option::is_none", alias = "termination")]
    pub termination_info: Option<TerminationInfo>,
    /// Whether the next prompt sends the history as text (transcript replay), because the agent has a new session.
    pub replay_pending: bool,
    /// The metadata of the application.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// The data from which a session can be resumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ResumeData {
    /// The agent's session, for an agent that can resume or load it.
    #[serde(flatten)]
    pub agent_session: Option<AgentSession>,
    /// The number of stored events, for transcript replay.
    pub events: u64,
}

impl SessionRecord {
    /// Creates a record for a new session.
    #[must_use]
    pub fn new(id: impl Into<String>, agent: impl Into<String>, now: Timestamp) -> Self {
        Self {
            id: id.into(),
            agent: agent.into(),
            user_key: None,
            status: SessionStatus::Active,
            epoch: 0,
            owner: None,
            caught_up: false,
            endpoint: None,
            agent_session: None,
            position: None,
            created_at: now,
            last_active_at: now,
            last_index: 0,
            revision: 0,
            details: SessionDetails::default(),
        }
    }

    /// Makes a process the owner of a session that is about to be created. The owner has caught up, because there are
    /// no earlier events.
    #[must_use]
    pub fn owned_by(mut self, owner: impl Into<String>) -> Self {
        (self.owner, self.epoch, self.caught_up) = (Some(owner.into()), 1, true);
        self
    }

    /// Returns the fence of the record's current epoch.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence { epoch: self.epoch, created_at: self.created_at }
    }

    /// Returns the agent's id for the session.
    #[must_use]
    pub fn agent_session_id(&self) -> Option<&str> {
        self.agent_session.as_ref().map(|session| session.id.as_str())
    }

    /// Returns the data from which the session can be resumed; `None` if there is none.
    #[must_use]
    pub fn resume_data(&self) -> Option<ResumeData> {
        let data = ResumeData { agent_session: self.agent_session.clone(), events: self.last_index };
        (data.agent_session.is_some() || data.events > 0).then_some(data)
    }

    /// Returns which requirements for resuming are met. `by_agent` is whether the agent can resume sessions.
    #[must_use]
    pub fn resume_support(&self, by_agent: bool) -> ResumeSupport {
        ResumeSupport {
            by_agent,
            supports_resume: self.details.supports_resume,
            resume_data: self.resume_data().is_some(),
        }
    }

    /// Ends the ownership, so that later writes of the owner are rejected. `scanned_to` is the owner's read position
    /// on the record's endpoint; it must be `None` if a turn of the session is open, because the owner may have
    /// read the end of the turn without storing it. For implementors of stores.
    pub fn end_ownership(&mut self, scanned_to: Option<StreamPosition>) {
        // The read position of an owner does not apply to sessions that it has not caught up with.
        if self.caught_up {
            // A read position in another incarnation does not apply to this session.
            let of_same = |scanned: &StreamPosition| {
                self.position.is_none_or(|position| position.incarnation == scanned.incarnation)
            };
            self.position = StreamPosition::later_of(self.position, scanned_to.filter(of_same));
        }
        (self.owner, self.caught_up) = (None, false);
        self.epoch += 1;
        self.revision += 1;
    }

    /// Removes the binding to an agent's session that is now bound to another stored session. For implementors of
    /// stores.
    pub fn unbind(&mut self) {
        self.bind(None);
        self.revision += 1;
    }

    /// Binds the session to another session of the agent. The one before is remembered, unless it has the same id.
    pub(super) fn bind(&mut self, session: Option<AgentSession>) {
        if self.agent_session == session {
            return;
        }
        let earlier = std::mem::replace(&mut self.agent_session, session);
        // The same id is not an earlier one.
        let earlier = earlier.filter(|earlier| self.agent_session_id() != Some(&earlier.id));
        let known = &mut self.details.earlier_agent_sessions;
        known.extend(earlier);
        known.drain(..known.len().saturating_sub(MAX_EARLIER_AGENT_SESSIONS));
    }

    /// Whether every store can hold it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_key("the id of a session", &self.id)?;
        check_key("the name of an agent", &self.agent)?;
        let keys =
            [("a user key", &self.user_key), ("an owner", &self.owner), ("an endpoint", &self.endpoint)];
        for (what, key) in keys {
            key.as_ref().map_or(Ok(()), |key| check_key(what, key))?;
        }
        if let Some(session) = &self.agent_session {
            check_key("the id of an agent's session", &session.id)?;
            check_number("an incarnation", session.incarnation)?;
        }
        self.position.map_or(Ok(()), StreamPosition::check)?;
        check_number("an epoch", self.epoch)?;
        check_moment("the creation of a session", self.created_at)?;
        check_moment("the last activity of a session", self.last_active_at)?;
        let SessionDetails { init, config_options, modes, models, metadata, .. } = &self.details;
        let values = [config_options, modes, models].into_iter().flatten();
        for value in values.chain(init.values()).chain(metadata.values()) {
            check_value("a value of a record", value)?;
        }
        Ok(())
    }

    /// Converts the record of a new session with these events to its stored form. For implementors of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a value is invalid, or two events have the same key.
    pub fn created(mut self, events: &[NewEvent]) -> Result<Self, StoreError> {
        self.check()?;
        let mut keys = std::collections::HashSet::new();
        for event in events {
            event.check()?;
            if !keys.insert(&event.key) {
                return Err(StoreError::Invalid(format!("two events have the key {:?}", event.key)));
            }
        }
        (self.revision, self.last_index) = (1, events.len() as u64);
        let moments = events.iter().map(|event| event.recorded_at);
        self.last_active_at = moments.fold(self.last_active_at, Timestamp::max);
        Ok(self)
    }
}

impl Serialize for SessionRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Shown<'a> {
            #[serde(flatten, with = "SessionRecord")]
            record: &'a SessionRecord,
            #[serde(skip_serializing_if = "Option::is_none")]
            resume_data: Option<ResumeData>,
        }
        Shown { record: self, resume_data: self.resume_data() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SessionRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::deserialize(deserializer)
    }
}

/// Parses a current status, or one of an earlier version with five statuses.
fn stored_status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionStatus, D::Error> {
    let text = String::deserialize(deserializer)?;
    SessionStatus::from_stored(&text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{AgentSession, MAX_EARLIER_AGENT_SESSIONS, SessionRecord, Timestamp};
    use crate::sessions::SessionStatus;
    use crate::sessions::store::{Fingerprint, StreamPosition};

    #[test]
    fn a_record_survives_its_json() {
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(5)).owned_by("p");
        record.agent_session = Some(AgentSession { id: "a".to_owned(), incarnation: 4 });
        let fingerprint = Fingerprint(u64::MAX);
        record.position = Some(StreamPosition { incarnation: 3, offset: 7, fingerprint });
        record.details.metadata.insert("n".to_owned(), json!([0.1, 1e300, u64::MAX, i64::MIN]));
        record.details.supports_resume = true;
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<SessionRecord>(&text).unwrap(), record);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["agentSessionId"], &value["supportsResume"]), (&json!("a"), &json!(true)));
        let resume = serde_json::to_value(record.resume_data()).unwrap();
        assert_eq!(resume, json!({"agentSessionId": "a", "incarnation": 4, "events": 0}));
        assert_eq!(value["resumeData"], resume);
    }

    #[test]
    fn the_latest_of_many_earlier_agent_sessions_are_known() {
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(1));
        let session = |n: usize| Some(AgentSession { id: n.to_string(), incarnation: 1 });
        (0..=MAX_EARLIER_AGENT_SESSIONS + 5).for_each(|n| record.bind(session(n)));
        let earlier = &record.details.earlier_agent_sessions;
        assert_eq!(earlier.len(), MAX_EARLIER_AGENT_SESSIONS);
        assert_eq!((earlier[0].id.as_str(), earlier[99].id.as_str()), ("5", "104"));
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let old = json!({
            "id": "s", "agent": "mock", "status": "completed", "epoch": 3, "takenAt": "5-x", "agentSessionId": "a",
            "resumable": true, "title": "t", "termination": {"reason": "error", "exitCode": 3},
            "createdAt": 5, "lastActive": 9, "lastIndex": 6, "revision": 4,
        });
        let record: SessionRecord = serde_json::from_value(old).unwrap();
        assert_eq!((record.status, record.epoch), (SessionStatus::Active, 3));
        assert_eq!(record.last_active_at, Timestamp::from_millis(9));
        assert_eq!((record.agent_session_id(), record.details.title.as_deref()), (Some("a"), Some("t")));
        assert!(record.details.supports_resume);
        assert_eq!(record.details.termination_info.unwrap().exit_code, Some(3));
    }

    #[test]
    fn a_session_is_resumable_with_a_session_of_the_agent_or_with_events() {
        let mut record = SessionRecord::new("s", "mock", Timestamp::from_millis(5));
        assert_eq!((record.resume_data(), record.resume_support(true).resume_data), (None, false));
        record.last_index = 2;
        assert!(record.resume_support(true).resume_data);
        assert!(!record.resume_support(true).supports_resume && !record.resume_support(false).by_agent);
        (record.last_index, record.agent_session) =
            (0, Some(AgentSession { id: "a".to_owned(), incarnation: 0 }));
        assert!(record.resume_support(true).resume_data);
    }
}
