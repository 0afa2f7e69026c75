//! What is stored of an event.

use std::sync::Arc;

use serde_json::{Value, json};

use super::store::{Change, EventKey, NewEvent, RecordPatch, StoredEventKind};
use crate::Event;
use crate::client::event::{Hold, Holder, Weight};
use crate::client::random::random_id;
use crate::requests::{ELICITATION, REQUEST_PERMISSION, REQUEST_QUESTION};
use crate::session::Timestamp;
use crate::stream::{LogRecord, StreamPosition as Position};

/// What is stored of an event, before it has an incarnation and a turn.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) kind: StoredEventKind,
    pub(super) payload: Value,
    /// Where it stands in a stream that every client of the server sees.
    pub(super) place: Option<Position>,
    /// The JSON-RPC id of an agent request.
    pub(super) rpc_id: Option<String>,
    /// Its approximate size in bytes.
    pub(super) weight: usize,
    /// The stream that it came on, as the feed counts them.
    pub(super) stream: u64,
    /// Holds it back from the application until it is stored.
    pub(super) holder: Option<Arc<Holder>>,
}

impl Entry {
    /// What is stored of an entry of the log, if anything is.
    pub(super) fn of_record(record: &LogRecord, place: Option<Position>) -> Option<Self> {
        let (request_id, method, params) = match record {
            LogRecord::Event(event) => return Self::of(event, place),
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
        Some(Self { kind, payload: params.clone(), place, rpc_id, weight, stream: 0, holder: None })
    }

    /// What is stored of an event, if anything is.
    pub(super) fn of(event: &Event, place: Option<Position>) -> Option<Self> {
        let (kind, payload) = match event {
            Event::Update(update) => (StoredEventKind::Update, update.raw().clone()),
            Event::SessionEnded(ended) => (StoredEventKind::Ended, json!(ended.termination)),
            Event::Other { method, params, .. } => {
                (StoredEventKind::Notification, json!({"method": method, "params": params}))
            }
            Event::Gap(gap) => (StoredEventKind::Gap, json!({"from": gap.from, "to": gap.to})),
            Event::Lagged(count) => (StoredEventKind::Lost, json!({ "count": count })),
            _ => return None,
        };
        Some(Self { kind, payload, place, rpc_id: None, weight: event.weight(), stream: 0, holder: None })
    }

    /// Messages of the stream that are not stored, by their numbers as far as these are known.
    pub(super) fn gap(from: Option<u64>, to: Option<u64>) -> Self {
        Self::own(StoredEventKind::Gap, json!({"from": from, "to": to}))
    }

    /// An event that is not of the stream.
    pub(super) fn own(kind: StoredEventKind, payload: Value) -> Self {
        Self { kind, payload, place: None, rpc_id: None, weight: 0, stream: 0, holder: None }
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

    /// Gives it to the application.
    pub(super) fn release(&self) {
        if let Some(holder) = &self.holder {
            holder.release();
        }
    }

    /// The event to be stored.
    pub(super) fn into_event(self, incarnation: u64, now: Timestamp, turn_id: Option<&str>) -> NewEvent {
        let key = match (&self.rpc_id, self.place) {
            (None, Some(place)) => EventKey::Stream { incarnation, offset: place.offset },
            // Every reader of the stream sees the request under this id.
            (Some(rpc_id), _) => EventKey::Id { id: key_of(self.kind.as_str(), turn_id, rpc_id) },
            (None, None) => EventKey::Id { id: random_id() },
        };
        let mut event = NewEvent::new(random_id(), now, self.kind, self.payload);
        event.key = key;
        event.turn_id = turn_id.map(str::to_owned);
        event.rpc_id = self.rpc_id;
        event
    }

    /// What it changes in the record of its session.
    pub(super) fn patch(&self, patch: &mut RecordPatch) {
        match (&self.kind, self.payload["sessionUpdate"].as_str()) {
            (StoredEventKind::Update, Some("session_info_update")) => match self.payload.get("title") {
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

/// An agent may use an id again in another turn, and the same events are stored by several programs.
fn key_of(kind: &str, turn_id: Option<&str>, rpc_id: &str) -> String {
    let mut key = format!("{kind}:{}:{rpc_id}", turn_id.unwrap_or_default());
    if key.len() > super::store::MAX_KEY_BYTES {
        let place = Position::of(0, 0, key.as_bytes());
        key = format!("{kind}:{:016x}", place.fingerprint);
    }
    key
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
