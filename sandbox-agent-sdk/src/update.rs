//! What an agent reports while it works.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::event::{Class, Weight};
use crate::{Content, Gap, Origin};

mod chunk;
mod config_option;
mod plan;
#[cfg(test)]
mod tests;
mod tool_call;

pub use chunk::Chunk;
pub use config_option::{ConfigOption, ConfigValue};
pub use plan::{Command, PlanEntry};
pub use tool_call::{ToolCall, ToolKind, ToolLocation, ToolStatus};

/// One report of an agent: a piece of its message, a tool call, a plan.
///
/// It is cheap to clone. The JSON it came as is always there beside the typed form, so a report of a kind that this
/// version does not know is not lost. `Display` prints the text of the agent's message and nothing of all else.
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
    size: usize,
}

/// What a report is about.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum UpdateKind {
    /// A piece of the agent's message.
    Message(Chunk),
    /// A piece of the agent's thoughts.
    Thought(Chunk),
    /// A piece of a user's message: of the history, or echoed.
    UserMessage(Chunk),
    /// A tool call begins.
    ToolCall(ToolCall),
    /// A tool call goes on; what it does not mention stays as it was.
    ToolCallUpdate(ToolCall),
    /// The plan as a whole.
    Plan(Vec<PlanEntry>),
    /// The commands that a user may give.
    Commands(Vec<Command>),
    /// The mode changed.
    Mode {
        /// The mode that is in force now.
        id: String,
    },
    /// The options of the session, all of them.
    ConfigOptions(Vec<ConfigOption>),
    /// The session got another title, or says when it was last used.
    Info {
        /// The title.
        title: Option<String>,
        /// When it was last used, in the agent's own words.
        updated_at: Option<String>,
    },
    /// How much of the model's context is used.
    Usage {
        /// Tokens in use.
        used: Option<u64>,
        /// Tokens there is room for.
        size: Option<u64>,
    },
    /// Something is missing in this place.
    Missed(Missed),
    /// A kind that this version does not know, or one whose content it cannot read; see [`Update::raw`].
    Other {
        /// The name of the kind.
        kind: String,
    },
}

/// What is missing in a stream of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// Reads the parameters of a `session/update` notification.
    pub(crate) fn read(params: Value, origin: Origin, size: usize) -> Self {
        let session_id = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = params.get("update").map(UpdateKind::read);
        let kind = kind.unwrap_or_else(|| UpdateKind::Other { kind: String::new() });
        let raw = match params {
            Value::Object(mut members) => members.remove("update").unwrap_or(Value::Object(members)),
            other => other,
        };
        Self { inner: Arc::new(Inner { session_id, kind, origin, raw, size }) }
    }

    pub(crate) fn missed(session_id: &str, missed: Missed) -> Self {
        let kind = UpdateKind::Missed(missed);
        let session_id = session_id.to_owned();
        Self { inner: Arc::new(Inner { session_id, kind, origin: Origin::Live, raw: Value::Null, size: 0 }) }
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

    /// The JSON it came as.
    #[must_use]
    pub fn raw(&self) -> &Value {
        &self.inner.raw
    }

    /// The text, if this is a piece of the agent's message.
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

impl UpdateKind {
    /// Reads the `update` member; what does not fit its kind is of the kind [`UpdateKind::Other`].
    fn read(update: &Value) -> Self {
        let name = update.get("sessionUpdate").and_then(Value::as_str).unwrap_or_default();
        let text = |member: &str| update.get(member).and_then(Value::as_str).map(str::to_owned);
        let number = |member: &str| update.get(member).and_then(Value::as_u64);
        let read = match name {
            "agent_message_chunk" => Chunk::read(update).map(Self::Message),
            "agent_thought_chunk" => Chunk::read(update).map(Self::Thought),
            "user_message_chunk" => Chunk::read(update).map(Self::UserMessage),
            "tool_call" => ToolCall::read(update).map(Self::ToolCall),
            "tool_call_update" => ToolCall::read(update).map(Self::ToolCallUpdate),
            "plan" => PlanEntry::read_all(update).map(Self::Plan),
            "available_commands_update" => Command::read_all(update).map(Self::Commands),
            "current_mode_update" => text("currentModeId").map(|id| Self::Mode { id }),
            "config_option_update" => ConfigOption::read_all(update).map(Self::ConfigOptions),
            "session_info_update" => Some(Self::Info { title: text("title"), updated_at: text("updatedAt") }),
            "usage_update" => Some(Self::Usage { used: number("used"), size: number("size") }),
            _ => None,
        };
        read.unwrap_or_else(|| Self::Other { kind: name.to_owned() })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message_text().unwrap_or_default())
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

impl Chunk {
    fn read(update: &Value) -> Option<Self> {
        let content = Content::from_value(update.get("content")?.clone());
        let message_id = update.get("messageId").and_then(Value::as_str).map(str::to_owned);
        Some(Self { content, message_id })
    }
}
