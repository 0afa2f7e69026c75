//! What is kept of a session.

use std::collections::HashSet;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::limits::{check_key, check_moment, check_value};
use super::{NewEvent, StoreError};
use crate::TerminationInfo;
use crate::session::Timestamp;
use crate::sessions::{ResumeSupport, SessionStatus};

/// What is kept of a session.
///
/// It is written as a whole: whoever changes it reads it, changes it and puts it back, and is told when somebody
/// else was quicker ([`StoreError::Conflict`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SessionRecord {
    /// The session's id here. It never changes.
    pub id: String,
    /// The agent behind it.
    pub agent: String,
    /// Where it stands.
    #[serde(deserialize_with = "stored_status")]
    pub status: SessionStatus,
    /// How often it was taken up. Whoever took it up last writes what happens in it: events of an
    /// [earlier time](super::NewEvent::epoch) are refused.
    #[serde(default)]
    pub epoch: u64,
    /// The last place in the server's stream that whoever took it up had read then: everything behind it is theirs to
    /// store. `None` where nobody else sees the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at: Option<String>,
    /// What whoever took it up called that. Whoever does not know whether a write was done knows its own by this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    /// The session's id with the agent. It changes when the agent cannot take the session up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_session_id: Option<String>,
    /// Whether the agent said that it can take up sessions again.
    #[serde(default)]
    pub resumable: bool,
    /// The title people see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the session was made of. Tool servers are not kept: they may hold secrets.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub init: Map<String, Value>,
    /// The session's options, as the agent told them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_options: Option<Value>,
    /// The session's modes, as the agent told them last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<Value>,
    /// How its agent ended, until the session is taken up again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination: Option<TerminationInfo>,
    /// Whether the agent has to be told what went before, because it was a new one that took the session up.
    #[serde(default)]
    pub replay_pending: bool,
    /// Whatever the application wants to keep with it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When something last happened in it. Storing an event moves it forward.
    pub last_active: Timestamp,
    /// The index of its last event; 0 when there is none. The store's to say.
    #[serde(default)]
    pub last_index: u64,
    /// How often it was written; 0 before it was. The store's to say.
    #[serde(default)]
    pub revision: u64,
}

impl SessionRecord {
    /// A record of a session that begins now.
    #[must_use]
    pub fn new(id: impl Into<String>, agent: impl Into<String>, now: Timestamp) -> Self {
        Self {
            id: id.into(),
            agent: agent.into(),
            status: SessionStatus::Active,
            epoch: 0,
            taken_at: None,
            taken_by: None,
            agent_session_id: None,
            resumable: false,
            title: None,
            init: Map::new(),
            config_options: None,
            modes: None,
            termination: None,
            replay_pending: false,
            metadata: Map::new(),
            created_at: now,
            last_active: now,
            last_index: 0,
            revision: 0,
        }
    }

    /// What is there to take it up again, as far as the record tells; whether the agent can is the agent's to say.
    #[must_use]
    pub fn resume_support(&self, by_agent: bool) -> ResumeSupport {
        ResumeSupport {
            by_agent,
            supports_resume: self.resumable,
            resume_data: self.agent_session_id.is_some() || self.last_index > 0,
        }
    }

    /// Whether every store can keep it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_key("the id of a session", &self.id)?;
        check_key("the name of an agent", &self.agent)?;
        check_moment("the moment a session was made", self.created_at)?;
        check_moment("the last activity of a session", self.last_active)?;
        let values = [&self.config_options, &self.modes].into_iter().flatten();
        for value in values.chain(self.init.values()).chain(self.metadata.values()) {
            check_value("what is kept with a session", value)?;
        }
        Ok(())
    }
}

/// What cannot be the record and the events of one new session is refused.
pub(super) fn check_import(record: &SessionRecord, events: &[NewEvent]) -> Result<(), StoreError> {
    record.check()?;
    if record.revision != 0 {
        return Err(StoreError::Invalid("the record of a new session has a revision".to_owned()));
    }
    let mut ids = HashSet::new();
    for event in events {
        event.check()?;
        if event.session_id != record.id || !event.belongs_to(record.created_at) {
            return Err(StoreError::Invalid(format!("event `{}` is of another session", event.id)));
        }
        if !ids.insert(event.id.as_str()) {
            return Err(StoreError::Invalid(format!("event `{}` is there twice", event.id)));
        }
    }
    Ok(())
}

/// A status of today, or one of the time when there were five.
fn stored_status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionStatus, D::Error> {
    let text = String::deserialize(deserializer)?;
    SessionStatus::from_stored(&text).map_err(serde::de::Error::custom)
}
