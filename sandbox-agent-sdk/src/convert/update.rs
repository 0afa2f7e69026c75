//! Session updates of an agent.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use acp_http_client::{Json, json};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::convert::decoded::{decoded_size, value_size};
use crate::convert::text::printable;
use crate::event::{Gap, Origin};

mod chunk;
mod compaction;
mod config_option;
mod kind;
mod notice;
mod notification;
mod plan;
#[cfg(test)]
mod tests;
mod tool_call;

pub use chunk::Chunk;
pub use compaction::{Compaction, CompactionStatus, CompactionSummary, Patched};
pub use config_option::{ConfigKind, ConfigOption, ConfigValue};
pub use kind::UpdateKind;
pub(crate) use kind::skip;
pub use notice::{Notice, NoticeSeverity};
use notification::Notification;
pub use plan::{Command, PlanEntry};
pub use tool_call::{ToolCall, ToolKind, ToolLocation, ToolStatus};

/// A session update: a chunk of the agent's message, a tool call, a plan.
///
/// Cheap to clone. The raw JSON is available in addition to the typed form, so updates of unknown kinds are not lost.
/// `Display` prints the text of the agent's message and nothing for other kinds. It is safe to print: it
/// [escapes](crate::convert::text::printable) control characters. [`message_text`](Self::message_text) returns the
/// original text.
///
/// Serializes to `{"sessionId", "origin", "update"}`, where `update` is the raw JSON. Instead of `update`, a
/// gap in the stream has `missed`, and an unreadable update has `unreadable` with its JSON as text.
#[derive(Debug, Clone)]
pub struct Update {
    inner: Arc<Inner>,
}

#[derive(Debug, Clone)]
struct Inner {
    session_id: String,
    kind: UpdateKind,
    origin: Origin,
    raw: Raw,
    /// The `_meta` field of the notification, besides the update.
    notification_meta: Option<Value>,
    size: usize,
}

/// The JSON of an update.
#[derive(Debug, Clone)]
enum Raw {
    Value(Value),
    /// The parameters as text, parsed on first access.
    Text {
        params: Json,
        update: OnceLock<Value>,
    },
}

impl Raw {
    fn get(&self) -> &Value {
        match self {
            Self::Value(value) => value,
            Self::Text { params, update } => update.get_or_init(|| {
                let params: Option<Value> = params.parse().ok();
                params.and_then(|mut params| params.get_mut("update").map(Value::take)).unwrap_or_default()
            }),
        }
    }
}

/// What is missing in a stream of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Missed {
    /// The server no longer has these events. Some of them may belong to other sessions.
    Gap(Gap),
    /// The subscriber fell behind, and this many updates were dropped.
    Lagged(u64),
    /// A message could not be decoded. It may belong to another session.
    Malformed,
    /// It is unknown whether anything is missing. The stream was reopened on a server whose events have no ids, or
    /// the response came without proof that every earlier update had arrived.
    Unverified,
}

impl Update {
    /// Reads the parameters of a `session/update` notification, which are parsed once.
    pub(crate) fn from_json(json: &Json, origin: Origin) -> Self {
        let text = json.as_str();
        let mut read = None;
        Notification::read(text, &mut read);
        let Some(Notification { session_id: Some(session_id), kind: Some(kind), meta: notification_meta }) =
            read
        else {
            let mut update = Self::from_text(text, origin, decoded_size(text.as_bytes()));
            // Its JSON is stored parsed, besides its content.
            if let Some(inner) = Arc::get_mut(&mut update.inner) {
                inner.size += inner.kind.size() + inner.notification_meta.as_ref().map_or(0, value_size);
            }
            return update;
        };
        let size = text.len() + kind.size() + notification_meta.as_ref().map_or(0, value_size);
        let raw = Raw::Text { params: json.clone(), update: OnceLock::new() };
        Self { inner: Arc::new(Inner { session_id, kind, origin, raw, notification_meta, size }) }
    }

    /// Reads the JSON text of the parameters.
    ///
    /// JSON that the parser rejects, for example because it is nested too deep, becomes [`UpdateKind::Unreadable`].
    pub(crate) fn from_text(text: &str, origin: Origin, size: usize) -> Self {
        match json::from_str(text) {
            Ok(params) => Self::read(params, origin, size),
            Err(error) => Self::unreadable(text, origin, error.to_string()),
        }
    }

    /// Parses the parameters of a `session/update` notification.
    pub(crate) fn read(params: Value, origin: Origin, size: usize) -> Self {
        let session_id = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = params.get("update").map(UpdateKind::read);
        let kind = kind.unwrap_or_else(|| UpdateKind::Other { kind: String::new() });
        let mut notification_meta = None;
        let raw = match params {
            Value::Object(mut members) => {
                notification_meta = members.get("_meta").filter(|meta| !meta.is_null()).cloned();
                members.remove("update").unwrap_or(Value::Object(members))
            }
            other => other,
        };
        let raw = Raw::Value(raw);
        Self { inner: Arc::new(Inner { session_id, kind, origin, raw, notification_meta, size }) }
    }

    /// Creates an update of which only the outermost fields can be parsed.
    fn unreadable(text: &str, origin: Origin, reason: String) -> Self {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(rename = "sessionId", borrow, default)]
            session_id: Cow<'a, str>,
            #[serde(borrow)]
            update: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Kind<'a> {
            #[serde(rename = "sessionUpdate", borrow, default)]
            name: Cow<'a, str>,
        }
        let params = serde_json::from_str::<Params<'_>>(text).ok();
        let update = params.as_ref().and_then(|params| params.update).map(RawValue::get);
        let kind = update.and_then(|update| serde_json::from_str::<Kind<'_>>(update).ok());
        let inner = Inner {
            session_id: params.as_ref().map(|params| params.session_id.to_string()).unwrap_or_default(),
            kind: UpdateKind::Unreadable {
                kind: kind.map(|kind| kind.name.into_owned()).unwrap_or_default(),
                reason,
            },
            origin,
            raw: Raw::Value(Value::from(update.unwrap_or(text))),
            notification_meta: None,
            size: text.len(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn missed(session_id: &str, missed: Missed) -> Self {
        let inner = Inner {
            session_id: session_id.to_owned(),
            kind: UpdateKind::Missed(missed),
            origin: Origin::Live,
            raw: Raw::Value(Value::Null),
            notification_meta: None,
            size: 0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the update as history.
    #[must_use]
    pub(crate) fn into_history(mut self) -> Self {
        Arc::make_mut(&mut self.inner).origin = Origin::History;
        self
    }

    /// Whether the update is part of the conversation, and not about the state of the session.
    pub(crate) fn is_conversation(&self) -> bool {
        use UpdateKind::{Message, Plan, Thought, ToolCall, ToolCallUpdate, UserMessage};
        let kind = self.kind();
        matches!(kind, Message(_) | UserMessage(_) | Thought(_) | ToolCall(_) | ToolCallUpdate(_) | Plan(..))
    }

    /// Returns the session of the update.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.inner.session_id
    }

    /// Returns the typed contents.
    #[must_use]
    pub fn kind(&self) -> &UpdateKind {
        &self.inner.kind
    }

    /// Returns whether the update is live, replayed or history.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.inner.origin
    }

    /// Returns the raw JSON; for [`UpdateKind::Unreadable`], a string with the JSON text.
    #[must_use]
    pub fn raw(&self) -> &Value {
        self.inner.raw.get()
    }

    /// Returns the `_meta` field of the update.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw().get("_meta")
    }

    /// Returns the `_meta` field of the notification that carried the update.
    #[must_use]
    pub fn notification_meta(&self) -> Option<&Value> {
        self.inner.notification_meta.as_ref()
    }

    /// Returns the original text, if this is a chunk of the agent's message.
    ///
    /// It may contain terminal escapes; [`printable`](crate::convert::text::printable) makes it safe to
    /// print.
    #[must_use]
    pub fn message_text(&self) -> Option<&str> {
        match self.kind() {
            UpdateKind::Message(chunk) => chunk.text(),
            _ => None,
        }
    }

    /// Measures the memory of its JSON and its content, as they are stored before anything reads the JSON.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn memory(&self) -> usize {
        let raw = match &self.inner.raw {
            Raw::Value(value) => value_size(value),
            Raw::Text { params, .. } => params.as_str().len(),
        };
        raw + self.inner.kind.size() + self.inner.notification_meta.as_ref().map_or(0, value_size)
    }

    pub(crate) fn size(&self) -> usize {
        self.inner.size
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        printable(self.message_text().unwrap_or_default()).fmt(f)
    }
}

impl Serialize for Update {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("sessionId", self.session_id())?;
        map.serialize_entry("origin", &self.origin())?;
        match self.kind() {
            UpdateKind::Missed(missed) => map.serialize_entry("missed", missed)?,
            UpdateKind::Unreadable { .. } => map.serialize_entry("unreadable", self.raw())?,
            _ => map.serialize_entry("update", self.raw())?,
        }
        if let Some(meta) = self.notification_meta() {
            map.serialize_entry("_meta", meta)?;
        }
        map.end()
    }
}

/// Parses the elements of a list and skips invalid ones.
fn read_list<T>(update: &Value, member: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    Some(update.get(member)?.as_array()?.iter().filter_map(read).collect())
}

/// Returns a field as text.
fn text(value: &Value, member: &str) -> Option<String> {
    value.get(member).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the `_meta` field.
fn meta(value: &Value) -> Option<Value> {
    value.get("_meta").filter(|meta| !meta.is_null()).cloned()
}
