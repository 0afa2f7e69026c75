//! What is kept of what happened.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StoreError;
use super::limits::{check_key, check_moment, check_value};
use crate::convert::open_enum::open_enum;
use crate::session::Timestamp;

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
        /// What the agent asked was answered, by a person, a policy or because nobody did: `{"method": text,
        /// "toolCallId": id, "result": value}`, or `"error"` in the place of the result.
        Answered = "answered",
        /// The session was taken up again: `{"by": "resume" | "load" | "replay" | "attach", "agentSessionId": id}`, or by
        /// `"none"` if the agent could not be had; where others see the same stream, `"at"` says behind which place what
        /// is not stored is news.
        Restored = "restored",
        /// The session was left to another program: `{"at": place}`, where others see the same stream.
        Detached = "detached",
        /// Events that the server no longer had, or that nobody can tell apart from others: `{"from": number, "to":
        /// number}` as far as these are known.
        Gap = "gap",
        /// Events that could not be stored in time: `{"count": number}`.
        Lost = "lost",
        /// A notification of another kind: `{"method": text, "params": value}`.
        Notification = "notification",
        /// An event whose payload cannot be read, because somebody else wrote it or the file is damaged: its kind and
        /// what is there, `{"kind": text, "text": text}`.
        Unreadable = "unreadable",
    }
}

/// Something that happened in a session, and is to be stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct NewEvent {
    /// An id that no other event of the session has. A store that has an event of this id keeps that one, so that
    /// writing may be tried again when it is not known to have succeeded.
    pub id: String,
    /// The session it happened in.
    pub session_id: String,
    /// When it was taken down.
    pub recorded_at: Timestamp,
    /// What it tells of.
    pub kind: StoredEventKind,
    /// What happened.
    pub payload: Value,
    /// When the session was made that it happened in, if that is known: a session of the same id that was made at
    /// another moment is another one, and does not get the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_made_at: Option<Timestamp>,
    /// Under which [taking up](super::SessionRecord::epoch) of the session it was taken down. If the session was taken up
    /// by somebody else since, the event is refused; without this it is not.
    #[serde(skip)]
    pub epoch: Option<u64>,
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
            session_made_at: None,
            epoch: None,
        }
    }

    /// Whether every store can keep it, and how many bytes it takes, about.
    pub(super) fn check(&self) -> Result<usize, StoreError> {
        check_key("the id of an event", &self.id)?;
        check_key("the id of a session", &self.session_id)?;
        check_key("the kind of an event", self.kind.as_str())?;
        check_moment("the moment of an event", self.recorded_at)?;
        let payload = check_value("the payload of an event", &self.payload)?;
        Ok(size_of::<Self>() + self.id.len() + self.session_id.len() + payload)
    }

    /// Whether a session of its id that was made at this moment is the one it happened in.
    pub(super) fn belongs_to(&self, made_at: Timestamp) -> bool {
        self.session_made_at.is_none_or(|moment| moment == made_at)
    }

    /// The event at its place.
    #[must_use]
    pub fn at(self, index: u64) -> StoredEvent {
        let Self { id, session_id, recorded_at, kind, payload, .. } = self;
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
        NewEvent { id, session_id, recorded_at, kind, payload, session_made_at: None, epoch: None }
    }
}
