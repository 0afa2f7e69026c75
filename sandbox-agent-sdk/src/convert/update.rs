//! What an agent reports while it works.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::event::{Class, Weight};
use crate::convert::text::printable;
use crate::event::{Gap, Origin};

mod chunk;
mod compaction;
mod config_option;
mod kind;
mod notice;
mod plan;
#[cfg(test)]
mod tests;
mod tool_call;

pub use chunk::Chunk;
pub use compaction::{Compaction, CompactionStatus, CompactionSummary, Patched};
pub use config_option::{ConfigKind, ConfigOption, ConfigValue};
pub use kind::UpdateKind;
pub use notice::{Notice, NoticeSeverity};
pub use plan::{Command, PlanEntry};
pub use tool_call::{ToolCall, ToolKind, ToolLocation, ToolStatus};

/// One report of an agent: a piece of its message, a tool call, a plan.
///
/// It is cheap to clone. The JSON it came as is always there beside the typed form, so a report of a kind that this
/// version does not know is not lost. `Display` prints the text of the agent's message and nothing of all else. It is
/// safe to print: control characters are [escaped](crate::convert::text::printable). [`message_text`](Self::message_text) gives
/// the text as it came.
///
/// It is serialised as `{"sessionId", "origin", "update"}`, where `update` is the JSON it came as. Instead of `update`
/// a hole in the stream has `missed`, and a report that cannot be read has `unreadable` with its JSON as text.
#[derive(Debug, Clone)]
pub struct Update {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session_id: String,
    kind: UpdateKind,
    origin: Origin,
    raw: Value,
    /// The member `_meta` of the notification, beside the update.
    notification_meta: Option<Value>,
    size: usize,
}

/// What is missing in a stream of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Missed {
    /// The server no longer has these events. Not all of them need be of this session.
    Gap(Gap),
    /// They came faster than they were read, and so many were dropped.
    Lagged(u64),
    /// A message could not be decoded. It need not be of this session.
    Malformed,
}

impl Update {
    /// Reads the JSON text of the parameters of a `session/update` notification.
    ///
    /// What the parser refuses, such as JSON that is nested too deep, is [`UpdateKind::Unreadable`].
    pub(crate) fn from_json(text: &str, origin: Origin, size: usize) -> Self {
        match serde_json::from_str(text) {
            Ok(params) => Self::read(params, origin, size),
            Err(error) => Self::unreadable(text, origin, error.to_string()),
        }
    }

    /// Reads the parameters of a `session/update` notification.
    pub(crate) fn read(params: Value, origin: Origin, size: usize) -> Self {
        let session_id = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = params.get("update").map(UpdateKind::read);
        let kind = kind.unwrap_or_else(|| UpdateKind::Other { kind: String::new() });
        let mut notification_meta = None;
        let raw = match params {
            Value::Object(mut members) => {
                notification_meta = members.get("_meta").cloned();
                members.remove("update").unwrap_or(Value::Object(members))
            }
            other => other,
        };
        Self { inner: Arc::new(Inner { session_id, kind, origin, raw, notification_meta, size }) }
    }

    /// A report whose outermost members are all that can be read.
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
            raw: Value::from(update.unwrap_or(text)),
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
            raw: Value::Null,
            notification_meta: None,
            size: 0,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session_id(&self) -> &str {
        &self.inner.session_id
    }

    /// What it is about.
    #[must_use]
    pub fn kind(&self) -> &UpdateKind {
        &self.inner.kind
    }

    /// Whether it is new.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.inner.origin
    }

    /// The JSON it came as; for [`UpdateKind::Unreadable`], a string that holds the JSON text.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// The member `_meta` of the report.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.inner.raw.get("_meta")
    }

    /// The member `_meta` of the notification that brought the report.
    #[must_use]
    pub fn notification_meta(&self) -> Option<&Value> {
        self.inner.notification_meta.as_ref()
    }

    /// The text as it came, if this is a piece of the agent's message. It may contain terminal escapes;
    /// [`printable`](crate::convert::text::printable) makes it safe to print.
    #[must_use]
    pub fn message_text(&self) -> Option<&str> {
        match self.kind() {
            UpdateKind::Message(chunk) => chunk.text(),
            _ => None,
        }
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

impl Weight for Update {
    fn weight(&self) -> usize {
        /// What a report takes besides its content.
        const OVERHEAD: usize = 256;
        OVERHEAD + self.size()
    }

    fn class(&self) -> Class {
        match self.kind() {
            UpdateKind::Missed(_) => Class::News,
            _ => Class::Report,
        }
    }

    fn lagged(count: u64) -> Self {
        Self::missed("", Missed::Lagged(count))
    }
}

/// The content of each member of a list that can be read.
fn read_list<T>(update: &Value, member: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    Some(update.get(member)?.as_array()?.iter().filter_map(read).collect())
}

/// The text of a member.
fn text(value: &Value, member: &str) -> Option<String> {
    value.get(member).and_then(Value::as_str).map(str::to_owned)
}

/// The member `_meta`.
fn meta(value: &Value) -> Option<Value> {
    value.get("_meta").filter(|meta| !meta.is_null()).cloned()
}
