//! The stored form of an event.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::holder::Holder;
use super::store::{Change, EventKey, NewEvent, RecordPatch, StoredEventKind, TurnEnd, raw_update};
use super::unique::unique_id;
use crate::Event;
use crate::client::event::{Hold, Weight};
use crate::requests::{ELICITATION, REQUEST_PERMISSION, REQUEST_QUESTION};
use crate::stream::{LogRecord, StreamPosition as Position};

/// The stored form of an event, before it has an incarnation and a turn.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) kind: StoredEventKind,
    pub(super) payload: Value,
    /// Its position in a stream that other processes can read.
    pub(super) position: Option<Position>,
    /// The JSON-RPC id of an agent request.
    pub(super) rpc_id: Option<String>,
    /// The id of its turn, unless that is the running turn.
    pub(super) turn_id: Option<String>,
    /// Its approximate size in bytes.
    pub(super) weight: usize,
    /// The number of its stream, as counted by the feed.
    pub(super) stream: u64,
    /// Whether later events count as stored only after this one is stored.
    pub(super) is_held: bool,
    /// Delays its delivery to the application until it is stored.
    pub(super) holder: Option<Arc<Holder>>,
}

impl Entry {
    /// Returns the stored form of a log entry, if it is stored.
    pub(super) fn of_record(record: &LogRecord, position: Option<Position>) -> Option<Self> {
        let (request_id, method, params) = match record {
            LogRecord::Event(event) => return Self::of(event, position),
            LogRecord::Missing(gap) => return Some(Self::gap(Some(gap.from), Some(gap.to))),
            LogRecord::AgentRequest { request_id, method, params } => (request_id, method, params),
            _ => return None,
        };
        let kind = match method.as_str() {
            REQUEST_PERMISSION => StoredEventKind::Permission,
            REQUEST_QUESTION | ELICITATION => StoredEventKind::Question,
            _ => return None,
        };
        let weight = crate::convert::decoded::value_size(params);
        let rpc_id = Some(rpc_id_of(request_id));
        Some(Self { position, rpc_id, weight, ..Self::own(kind, params.clone()) })
    }

    /// Returns the stored form of an event, if it is stored.
    pub(super) fn of(event: &Event, position: Option<Position>) -> Option<Self> {
        let (kind, payload) = match event {
            Event::Update(update) => (StoredEventKind::Update, NewEvent::update_payload(update)),
            Event::SessionEnded(ended) => (StoredEventKind::Ended, json!(ended.termination)),
            Event::TerminationDetails(ended) => {
                (StoredEventKind::TerminationDetails, json!(ended.termination))
            }
            Event::Other { method, params, .. } => {
                (StoredEventKind::Notification, json!({"method": method, "params": params}))
            }
            Event::Gap(gap) => (StoredEventKind::Gap, json!({"from": gap.from, "to": gap.to})),
            Event::Lagged(count) => (StoredEventKind::Lost, json!({ "count": count })),
            Event::Malformed { lost: true, .. } => (StoredEventKind::Lost, json!({ "count": 1 })),
            _ => return None,
        };
        Some(Self { position, weight: event.weight(), ..Self::own(kind, payload) })
    }

    /// Messages of the stream that are not stored, by their numbers where known.
    pub(super) fn gap(from: Option<u64>, to: Option<u64>) -> Self {
        Self::own(StoredEventKind::Gap, json!({"from": from, "to": to}))
    }

    /// An event that does not come from the stream.
    pub(super) fn own(kind: StoredEventKind, payload: Value) -> Self {
        Self {
            kind,
            payload,
            position: None,
            rpc_id: None,
            turn_id: None,
            weight: 0,
            stream: 0,
            is_held: false,
            holder: None,
        }
    }

    /// The end of a turn.
    pub(super) fn turn_ended(end: &TurnEnd) -> Self {
        Self::own(StoredEventKind::TurnEnded, json!(end))
    }

    /// The end of an agent request.
    pub(super) fn request_closed(rpc_id: Option<String>, reason: &str) -> Self {
        Self::own(StoredEventKind::RequestClosed, json!({ "reason": reason })).about(rpc_id)
    }

    /// An event about an agent request.
    pub(super) fn about(mut self, rpc_id: Option<String>) -> Self {
        self.rpc_id = rpc_id;
        self
    }

    /// Holds it back from the application until it is released; dropping it discards it.
    pub(super) fn hold_back(&mut self) -> Hold {
        let holder = Holder::new();
        let hold = holder.hold();
        self.holder = Some(Arc::new(holder));
        hold
    }

    /// Delivers it to the application.
    pub(super) fn release(&self) {
        if let Some(holder) = &self.holder {
            holder.release();
        }
    }

    /// The event to be stored. It is of this turn, unless it names another one.
    pub(super) fn into_event(self, incarnation: u64, turn_id: Option<&str>) -> NewEvent {
        let turn_id = self.turn_id.as_deref().or(turn_id);
        let key = match (&self.rpc_id, self.position) {
            (None, Some(position)) => EventKey::Stream { incarnation, offset: position.offset },
            // Every reader of the stream sees the request with this id.
            (Some(rpc_id), _) => {
                EventKey::Id { id: key_of(self.kind.as_str(), incarnation, turn_id, rpc_id) }
            }
            // A turn has one end, whichever process stores it first.
            (None, None) => {
                let turn_id = turn_id.filter(|_| self.kind == StoredEventKind::TurnEnded);
                EventKey::Id {
                    id: turn_id.map_or_else(unique_id, |turn_id| key_within_limit("turn_ended", turn_id)),
                }
            }
        };
        let mut event = NewEvent::new(unique_id(), SystemTime::now().into(), self.kind, self.payload);
        event.key = key;
        event.turn_id = turn_id.map(str::to_owned);
        event.rpc_id = self.rpc_id;
        event
    }

    /// The stream and offset from which events count as stored only after this one is stored.
    pub(super) fn held_at(&self) -> Option<(u64, u64)> {
        Some((self.stream, self.position.filter(|_| self.is_held)?.offset))
    }

    /// The update that it is, or an empty value.
    pub(super) fn update(&self) -> &Value {
        match self.kind {
            StoredEventKind::Update => raw_update(&self.payload),
            _ => &Value::Null,
        }
    }

    /// Whether it proves that a turn runs.
    pub(super) fn is_of_a_turn(&self) -> bool {
        is_of_a_turn(&self.kind, &self.payload)
    }

    /// Whether it represents missing events, which may include the response to a prompt.
    pub(super) fn is_loss(&self) -> bool {
        matches!(self.kind, StoredEventKind::Gap | StoredEventKind::Lost)
    }

    /// What it changes in the record of its session.
    pub(super) fn patch(&self, patch: &mut RecordPatch) {
        let update = self.update();
        match (&self.kind, update["sessionUpdate"].as_str()) {
            (StoredEventKind::Update, Some("session_info_update")) => match update.get("title") {
                Some(Value::String(title)) => patch.title = Change::Set(title.clone()),
                Some(Value::Null) => patch.title = Change::Clear,
                _ => {}
            },
            (StoredEventKind::Ended, _) => {
                if let Ok(info) = serde_json::from_value(self.payload.clone()) {
                    patch.termination_info = Change::Set(info);
                }
            }
            _ => {}
        }
    }
}

/// Whether an event shows that a turn runs: a part of the conversation, or an agent request.
pub(super) fn is_of_a_turn(kind: &StoredEventKind, payload: &Value) -> bool {
    match kind {
        StoredEventKind::Update => {
            is_conversation(raw_update(payload)["sessionUpdate"].as_str().unwrap_or_default())
        }
        StoredEventKind::Permission | StoredEventKind::Question => true,
        _ => false,
    }
}

/// Whether an update is part of the conversation, and not about the state of the session.
pub(super) fn is_conversation(update: &str) -> bool {
    matches!(
        update,
        "user_message_chunk"
            | "agent_message_chunk"
            | "agent_thought_chunk"
            | "tool_call"
            | "tool_call_update"
            | "plan"
    )
}

/// An agent may use an id again in another turn, or outside of turns after a restart. Several programs store the same
/// event, and may number the same incarnation differently, so that a turn has no incarnation in its keys.
fn key_of(kind: &str, incarnation: u64, turn_id: Option<&str>, rpc_id: &str) -> String {
    let id = match turn_id {
        Some(turn_id) => format!("{turn_id}:{rpc_id}"),
        None => format!("{incarnation}:{rpc_id}"),
    };
    key_within_limit(kind, &id)
}

/// A key of a kind and an id, or of a hash of the id.
fn key_within_limit(kind: &str, id: &str) -> String {
    let key = format!("{kind}:{id}");
    match key.len() > super::store::MAX_KEY_BYTES {
        true => format!("{kind}:{:016x}", Position::of(0, 0, key.as_bytes()).fingerprint),
        false => key,
    }
}

/// Whether requests of this method are stored.
pub(super) fn is_stored(method: &str) -> bool {
    matches!(method, REQUEST_PERMISSION | REQUEST_QUESTION | ELICITATION)
}

/// A JSON-RPC id as JSON text.
pub(super) fn rpc_id_of(id: &str) -> String {
    let text = Value::from(id).to_string();
    match text.len() > super::store::MAX_KEY_BYTES {
        true => format!("\"{:016x}\"", Position::of(0, 0, text.as_bytes()).fingerprint),
        false => text,
    }
}

/// The text of a JSON-RPC id that was stored.
pub(super) fn text_of_rpc_id(rpc_id: &str) -> String {
    serde_json::from_str(rpc_id).unwrap_or_else(|_| rpc_id.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Entry, StoredEventKind};

    #[test]
    fn a_request_id_that_is_used_again_after_a_restart_is_another_request() {
        let key = |incarnation, turn| {
            let entry = Entry::own(StoredEventKind::AgentRequest, json!({})).about(Some("0".to_owned()));
            entry.into_event(incarnation, turn).key
        };
        assert_eq!(key(1, None), key(1, None));
        assert_ne!(key(1, None), key(2, None));
        assert_eq!(
            key(1, Some("t")),
            key(2, Some("t")),
            "another program may number the incarnation differently"
        );
        assert_ne!(key(1, Some("t")), key(1, Some("u")));
    }
}
