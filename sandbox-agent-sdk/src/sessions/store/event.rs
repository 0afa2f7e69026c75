//! Stored events.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::limits::{check_key, check_moment, check_number, check_value};
use super::{StoreError, TurnEnd};
use crate::convert::open_enum::open_enum;
use crate::event::Origin;
use crate::session::Timestamp;
use crate::{TerminationInfo, Update};

open_enum! {
    /// The kind of a stored event.
    pub enum StoredEventKind {
        /// A prompt, stored before it is sent: `{"prompt": [content]}`. Opens the turn with its turn id.
        Prompt = "prompt",
        /// The prompt of the turn was sent again, with another request id.
        PromptResent = "prompt_resent",
        /// An update of the agent, as created by [`NewEvent::update_payload`]. [`StoredEvent::update`] parses it.
        Update = "update",
        /// A turn ended. Closes the turn with its turn id, and its agent requests. [`StoredEvent::turn_end`] parses it.
        TurnEnded = "turn_ended",
        /// The agent ended, and the session with it. The payload is a termination.
        Ended = "ended",
        /// Details of the agent's end that arrived later. The payload is the completed termination.
        TerminationDetails = "termination_details",
        /// A permission request of the agent, as received. Open until it or its turn is closed.
        Permission = "permission",
        /// A question of the agent, as received. Open until it or its turn is closed.
        Question = "question",
        /// Any other agent request that this process has started to execute: `{"method": text, "nonce": text}`. Open
        /// until it or its turn is closed.
        AgentRequest = "agent_request",
        /// The response to an agent request, stored before it is sent: `{"method": text, "toolCallId": id, "result": value}`,
        /// or `"error"` in place of the result.
        Answered = "answered",
        /// An agent request no longer needs a response: `{"reason": "delivered" | "expired" | …}`.
        RequestClosed = "request_closed",
        /// The agent is about to load the session. What it replays until `restored` is not new.
        Restoring = "restoring",
        /// The session was restored: `{"by": "resume" | "load" | "replay" | "attach", "agentSessionId": id}`.
        Restored = "restored",
        /// The session was released for another process.
        Detached = "detached",
        /// Messages of the stream are missing in the store: `{"from": number, "to": number}`, where known.
        Gap = "gap",
        /// Events are lost because they could not be stored: `{"count": number}`.
        Lost = "lost",
        /// Any other notification: `{"method": text, "params": value}`.
        Notification = "notification",
        /// An event whose stored payload is damaged: `{"kind": text, "text": text}`.
        Unreadable = "unreadable",
    }
}

/// The event that another event closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Closes<'a> {
    /// Everything that is open of the turn with this id: its prompts and its agent requests.
    Turn(&'a str),
    /// The agent request with this request id, and its response.
    Request(&'a str),
}

impl Closes<'_> {
    /// Returns whether this closes `event`.
    #[must_use]
    pub fn matches(&self, event: &StoredEvent) -> bool {
        match self {
            Self::Turn(id) => event.turn_id.as_deref() == Some(*id),
            Self::Request(id) => opens_request(&event.kind) && event.rpc_id.as_deref() == Some(*id),
        }
    }
}

fn opens_turn(kind: &StoredEventKind) -> bool {
    matches!(kind, StoredEventKind::Prompt | StoredEventKind::PromptResent)
}

pub(in crate::sessions) fn opens_request(kind: &StoredEventKind) -> bool {
    matches!(
        kind,
        StoredEventKind::Permission
            | StoredEventKind::Question
            | StoredEventKind::AgentRequest
            | StoredEventKind::Answered
    )
}

/// The idempotency key of an event within its session.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EventKey {
    /// The key of an event from the server's stream.
    Stream {
        /// The incarnation of the server.
        incarnation: u64,
        /// The number of the message in the stream.
        offset: u64,
    },
    /// The key of any other event: an id that is unique in the session.
    Id {
        /// The unique id.
        id: String,
    },
}

impl EventKey {
    fn check(&self) -> Result<(), StoreError> {
        match self {
            Self::Id { id } => check_key("the id of an event", id),
            Self::Stream { incarnation, offset } => {
                check_number("an incarnation", *incarnation)?;
                check_number("an offset", *offset)
            }
        }
    }
}

/// An event to be stored.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct NewEvent {
    /// The idempotency key.
    pub key: EventKey,
    /// When the event was recorded.
    pub recorded_at: Timestamp,
    /// The kind of the event.
    pub kind: StoredEventKind,
    /// The content of the event. Its format depends on the kind.
    pub payload: Value,
    /// The id of the turn that the event belongs to.
    pub turn_id: Option<String>,
    /// The request id, as JSON text, of the prompt or agent request that the event belongs to.
    pub rpc_id: Option<String>,
}

impl NewEvent {
    /// Creates an event from the server's stream.
    #[must_use]
    pub fn from_stream(
        incarnation: u64,
        offset: u64,
        recorded_at: Timestamp,
        kind: impl Into<StoredEventKind>,
        payload: impl Into<Value>,
    ) -> Self {
        Self::with_key(EventKey::Stream { incarnation, offset }, recorded_at, kind, payload)
    }

    /// Creates an event that does not come from the server's stream. The id must be unique in the session.
    #[must_use]
    pub fn new(
        id: impl Into<String>,
        recorded_at: Timestamp,
        kind: impl Into<StoredEventKind>,
        payload: impl Into<Value>,
    ) -> Self {
        Self::with_key(EventKey::Id { id: id.into() }, recorded_at, kind, payload)
    }

    fn with_key(
        key: EventKey,
        recorded_at: Timestamp,
        kind: impl Into<StoredEventKind>,
        payload: impl Into<Value>,
    ) -> Self {
        let (kind, payload) = (kind.into(), payload.into());
        Self { key, recorded_at, kind, payload, turn_id: None, rpc_id: None }
    }

    /// Returns the payload for an event of the kind `update`.
    #[must_use]
    pub fn update_payload(update: &Update) -> Value {
        match update.notification_meta() {
            Some(meta) => json!({ "update": update.raw(), "_meta": meta }),
            None => update.raw().clone(),
        }
    }

    /// Returns whether the event stays open until another event closes it. For implementors of stores.
    #[must_use]
    pub fn is_open(&self) -> bool {
        opens_turn(&self.kind) && self.turn_id.is_some() || opens_request(&self.kind) && self.rpc_id.is_some()
    }

    /// Returns what the event closes. For implementors of stores.
    #[must_use]
    pub fn closes(&self) -> Option<Closes<'_>> {
        match self.kind {
            StoredEventKind::TurnEnded => self.turn_id.as_deref().map(Closes::Turn),
            StoredEventKind::RequestClosed => self.rpc_id.as_deref().map(Closes::Request),
            _ => None,
        }
    }

    /// Checks the event against the limits of all stores and returns its approximate size in bytes. For implementors
    /// of stores.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the event is invalid.
    pub fn check(&self) -> Result<usize, StoreError> {
        self.key.check()?;
        check_key("the kind of an event", self.kind.as_str())?;
        check_moment("the time of an event", self.recorded_at)?;
        for (what, id) in [("a turn id", &self.turn_id), ("a JSON-RPC id", &self.rpc_id)] {
            id.as_ref().map_or(Ok(()), |id| check_key(what, id))?;
        }
        Ok(size_of::<Self>() + check_value("the payload of an event", &self.payload)?)
    }

    /// Converts the event to a stored event. For implementors of stores.
    #[must_use]
    pub fn stored(self, session_id: impl Into<String>, index: u64, epoch: u64) -> StoredEvent {
        let Self { key, recorded_at, kind, payload, turn_id, rpc_id } = self;
        let session_id = session_id.into();
        StoredEvent { index, key, session_id, recorded_at, kind, payload, epoch, turn_id, rpc_id }
    }
}

setters! { NewEvent:
    /// Sets the id of the turn.
    #[must_use]
    turn_id(turn_id: impl Into<String>) => turn_id = Some(turn_id.into());
    /// Sets the request id.
    #[must_use]
    rpc_id(rpc_id: impl Into<String>) => rpc_id = Some(rpc_id.into());
}

/// A stored event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StoredEvent {
    /// The index in the session. Indexes start at 1 and have no gaps, unless a store with a limit dropped events.
    pub index: u64,
    /// The idempotency key.
    #[serde(flatten)]
    pub key: EventKey,
    /// The id of the stored session.
    pub session_id: String,
    /// When the event was recorded.
    pub recorded_at: Timestamp,
    /// The kind of the event.
    pub kind: StoredEventKind,
    /// The content of the event. Its format depends on the kind.
    pub payload: Value,
    /// The epoch of the owner that stored the event. 0 if an earlier version stored it, or if there was no fence.
    #[serde(default)]
    pub epoch: u64,
    /// The id of the turn that the event belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_id: Option<String>,
    /// The request id, as JSON text, of the prompt or agent request that the event belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpc_id: Option<String>,
}

impl StoredEvent {
    /// Returns the agent's update, marked as history; `None` for other kinds of events.
    ///
    /// Its session id is the id of the stored session.
    #[must_use]
    pub fn update(&self) -> Option<Update> {
        if self.kind != StoredEventKind::Update {
            return None;
        }
        let session = &self.session_id;
        Some(match &self.payload {
            // An update that could not be read cannot be read now either, and is typed as such.
            Value::String(text) => {
                let params = format!("{{\"sessionId\":{},\"update\":{text}}}", Value::from(session.as_str()));
                Update::from_text(&params, Origin::History, text.len())
            }
            payload => {
                let update = raw_update(payload);
                let mut params = json!({ "sessionId": session, "update": update });
                if !std::ptr::eq(update, payload) {
                    params["_meta"] = payload["_meta"].clone();
                }
                Update::read(params, Origin::History, 0)
            }
        })
    }

    /// Returns how the turn ended; `None` for other kinds of events.
    #[must_use]
    pub fn turn_end(&self) -> Option<TurnEnd> {
        (self.kind == StoredEventKind::TurnEnded).then(|| TurnEnd::from_payload(&self.payload))
    }

    /// Returns how the agent ended; `None` for other kinds of events.
    #[must_use]
    pub fn termination_info(&self) -> Option<TerminationInfo> {
        match self.kind {
            StoredEventKind::Ended | StoredEventKind::TerminationDetails => {
                TerminationInfo::from_value(&self.payload)
            }
            StoredEventKind::TurnEnded => self.turn_end()?.termination_info,
            _ => None,
        }
    }

    /// Converts the event to a new event without an index, to store it elsewhere.
    #[must_use]
    pub fn into_new(self) -> NewEvent {
        let Self { key, recorded_at, kind, payload, turn_id, rpc_id, .. } = self;
        NewEvent { key, recorded_at, kind, payload, turn_id, rpc_id }
    }
}

/// The update in the payload of an event of the kind `update`, which may have the `_meta` of its notification beside it.
pub(in crate::sessions) fn raw_update(payload: &Value) -> &Value {
    match (payload.get("update"), payload.get("_meta"), payload.get("sessionUpdate")) {
        (Some(update), Some(_), None) => update,
        _ => payload,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{NewEvent, Origin, StoredEvent, Timestamp, Update};

    #[test]
    fn an_event_survives_its_json() {
        let at = Timestamp::from_millis(5);
        for event in [
            NewEvent::new("e", at, "prompt", json!({"prompt": []})).turn_id("t").rpc_id("\"r\""),
            NewEvent::from_stream(2, 7, at, "update", 1),
        ] {
            let stored = event.stored("s", 3, 4);
            let text = serde_json::to_string(&stored).unwrap();
            assert_eq!(serde_json::from_str::<StoredEvent>(&text).unwrap(), stored, "{text}");
        }
        let old = r#"{"index":1,"id":"1.0:5-x","sessionId":"s","recordedAt":5,"kind":"update","payload":1}"#;
        let stored = NewEvent::new("1.0:5-x", at, "update", 1).stored("s", 1, 0);
        assert_eq!(serde_json::from_str::<StoredEvent>(old).unwrap(), stored);
    }

    #[test]
    fn a_stored_update_is_typed_as_a_live_one() {
        let chunk =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hello"}});
        let deep = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
        for params in [
            json!({"sessionId": "a", "update": chunk}).to_string(),
            json!({"sessionId": "a", "update": chunk, "_meta": {"n": 1}}).to_string(),
            json!({"sessionId": "a", "update": {"sessionUpdate": "new_kind", "update": 1}}).to_string(),
            format!("{{\"sessionId\":\"a\",\"update\":{{\"sessionUpdate\":\"plan\",\"entries\":{deep}}}}}"),
        ] {
            let live = Update::from_text(&params, Origin::Live, 0);
            let payload = NewEvent::update_payload(&live);
            let event = NewEvent::from_stream(1, 1, Timestamp::from_millis(5), "update", payload);
            let stored = event.stored("s", 1, 1);
            let update = stored.update().unwrap();
            assert_eq!(std::mem::discriminant(update.kind()), std::mem::discriminant(live.kind()));
            assert_eq!((update.raw(), update.notification_meta()), (live.raw(), live.notification_meta()));
            assert_eq!((update.session_id(), update.origin()), ("s", Origin::History));
            assert!(stored.turn_end().is_none() && stored.termination_info().is_none());
        }
        let ended = json!({"reason": "error", "exitCode": 3});
        for (kind, payload) in [("ended", ended.clone()), ("turn_ended", json!({"terminationInfo": ended}))] {
            let event = NewEvent::new("e", Timestamp::from_millis(5), kind, payload).stored("s", 1, 1);
            assert_eq!(event.termination_info().and_then(|info| info.exit_code), Some(3), "{kind}");
            assert!(event.update().is_none());
        }
    }
}
