//! What is kept of what happened.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StoreError;
use super::limits::{check_key, check_moment};
use crate::Timestamp;
use crate::open_enum::open_enum;

open_enum! {
    /// What a stored event tells of.
    pub enum StoredEventKind {
        /// What the user asked: `{"prompt": [content]}`.
        Prompt = "prompt",
        /// A report of the agent, as it came.
        Update = "update",
        /// A turn ended: `{"stopReason": text}`, or `{"error": text}`.
        TurnEnded = "turn_ended",
        /// The agent, and the session with it, ended: a termination.
        Ended = "ended",
        /// The agent asked for a permission, as it came.
        Permission = "permission",
        /// The agent asked a question, as it came.
        Question = "question",
        /// The session was taken up again: `{"by": "resume" | "load" | "replay", "agentSessionId": id}`.
        Restored = "restored",
        /// Events that the server no longer had: `{"from": number, "to": number}`.
        Gap = "gap",
        /// Events that could not be stored in time: `{"count": number}`.
        Lost = "lost",
        /// A notification of another kind: `{"method": text, "params": value}`.
        Notification = "notification",
    }
}

/// Something that happened in a session, and is to be stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewEvent {
    /// An id that no other event has: it tells whether an event whose writing failed was written all the same.
    pub id: String,
    /// The session it happened in.
    pub session_id: String,
    /// When it was taken down.
    pub recorded_at: Timestamp,
    /// What it tells of.
    pub kind: StoredEventKind,
    /// What happened.
    pub payload: Value,
}

impl NewEvent {
    /// An event to be stored.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        session_id: impl Into<String>,
        recorded_at: Timestamp,
        kind: impl Into<StoredEventKind>,
        payload: impl Into<Value>,
    ) -> Self {
        Self {
            id: id.into(),
            session_id: session_id.into(),
            recorded_at,
            kind: kind.into(),
            payload: payload.into(),
        }
    }

    /// Whether every store can keep it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        check_key("the id of an event", &self.id)?;
        check_key("the id of a session", &self.session_id)?;
        check_key("the kind of an event", self.kind.as_str())?;
        check_moment("the moment of an event", self.recorded_at)
    }

    /// The event at its place.
    #[must_use]
    pub fn at(self, index: u64) -> StoredEvent {
        let Self { id, session_id, recorded_at, kind, payload } = self;
        StoredEvent { index, id, session_id, recorded_at, kind, payload }
    }
}

/// Something that happened in a session, at its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StoredEvent {
    /// Its place: the first event of a session has 1, and there are no holes.
    pub index: u64,
    /// Its id.
    pub id: String,
    /// The session it happened in.
    pub session_id: String,
    /// When it was taken down.
    pub recorded_at: Timestamp,
    /// What it tells of.
    pub kind: StoredEventKind,
    /// What happened.
    pub payload: Value,
}

impl StoredEvent {
    /// The event without its place.
    #[must_use]
    pub fn into_new(self) -> NewEvent {
        let Self { id, session_id, recorded_at, kind, payload, .. } = self;
        NewEvent { id, session_id, recorded_at, kind, payload }
    }
}
