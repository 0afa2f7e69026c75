//! The kinds of updates.

use serde::Serialize;
use serde::de::value::MapDeserializer;
use serde::de::{Error, MapAccess};
use serde_json::Value;

use super::{
    Chunk, Command, Compaction, CompactionSummary, ConfigOption, Missed, Notice, PlanEntry, ToolCall, text,
};
use crate::convert::lenient::{self, Lenient};
use crate::usage::ContextUsage;

/// The typed contents of an update.
///
/// Serializes to `{"type", "value"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", content = "value", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum UpdateKind {
    /// A chunk of the agent's message.
    Message(Chunk),
    /// A chunk of the agent's reasoning.
    Thought(Chunk),
    /// A chunk of a user's message, from the history or echoed.
    UserMessage(Chunk),
    /// A new tool call.
    ToolCall(Box<ToolCall>),
    /// A change of a tool call. Fields that it does not contain are unchanged: see
    /// [`ToolCall::apply_update`].
    ToolCallUpdate(Box<ToolCall>),
    /// The complete plan.
    Plan(Vec<PlanEntry>),
    /// The commands that a user can enter.
    Commands(Vec<Command>),
    /// The mode changed.
    #[non_exhaustive]
    Mode {
        /// The id of the current mode.
        id: String,
    },
    /// All configuration options of the session.
    ConfigOptions(Vec<ConfigOption>),
    /// The session's title or its time of last use changed.
    #[non_exhaustive]
    Info {
        /// The title.
        title: Option<String>,
        /// The time of last use, as the agent formats it.
        updated_at: Option<String>,
    },
    /// The used part of the model's context, and the cost of the session.
    Usage(ContextUsage),
    /// A notice for the user that is not part of the conversation.
    Notice(Notice),
    /// A compaction of the conversation. A later update with the same id changes it.
    Compaction(Compaction),
    /// A chunk of a compaction's summary.
    CompactionSummary(CompactionSummary),
    /// Updates are missing at this point.
    Missed(Missed),
    /// The update is JSON that this client cannot decode, for example because it is nested too deep.
    ///
    /// [`Update::raw`](super::Update::raw) has its text.
    #[non_exhaustive]
    Unreadable {
        /// The name of the kind, if it could be parsed.
        kind: String,
        /// Why it cannot be parsed.
        reason: String,
    },
    /// An unknown kind, or a known kind with invalid contents. See [`Update::raw`](super::Update::raw).
    #[non_exhaustive]
    Other {
        /// The name of the kind.
        kind: String,
    },
}

/// The field with the name of the kind.
pub(super) const NAME: &str = "sessionUpdate";

impl UpdateKind {
    /// Parses the `update` field. Invalid contents become [`UpdateKind::Other`].
    pub(super) fn read(update: &Value) -> Self {
        let name = update.get(NAME).and_then(Value::as_str).unwrap_or_default();
        let read = match name {
            "available_commands_update" => Command::read_all(update).map(Self::Commands),
            "current_mode_update" => text(update, "currentModeId").map(|id| Self::Mode { id }),
            "config_option_update" => ConfigOption::read_all(update).map(Self::ConfigOptions),
            "session_info_update" => {
                Some(Self::Info { title: text(update, "title"), updated_at: text(update, "updatedAt") })
            }
            "notice" => Notice::read(update).map(Self::Notice),
            "compaction_update" => Compaction::read(update).map(Self::Compaction),
            "compaction_summary_chunk" => CompactionSummary::read(update).map(Self::CompactionSummary),
            _ => Self::from_fields(name, other_members(update)).ok().flatten(),
        };
        read.unwrap_or_else(|| Self::Other { kind: name.to_owned() })
    }

    /// Parses the fields of a frequent kind, without the name of the kind; `None` if a required field is missing.
    ///
    /// # Errors
    /// If the kind is another one, or the JSON is not valid.
    pub(super) fn from_fields<'de, A: MapAccess<'de>>(
        name: &str,
        object: A,
    ) -> Result<Option<Self>, A::Error> {
        Ok(match name {
            "agent_message_chunk" => Chunk::object(object)?.map(Self::Message),
            "agent_thought_chunk" => Chunk::object(object)?.map(Self::Thought),
            "user_message_chunk" => Chunk::object(object)?.map(Self::UserMessage),
            "tool_call" => ToolCall::object(object)?.map(|call| Self::ToolCall(Box::new(call))),
            "tool_call_update" => ToolCall::object(object)?.map(|call| Self::ToolCallUpdate(Box::new(call))),
            "plan" => PlanEntry::read_all(object)?.map(Self::Plan),
            "usage_update" => ContextUsage::object(object)?.map(Self::Usage),
            _ => return Err(A::Error::custom("the kind is not a frequent one")),
        })
    }

    /// The memory of a frequent kind, besides the value itself.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Message(chunk) | Self::Thought(chunk) | Self::UserMessage(chunk) => chunk.size(),
            Self::ToolCall(call) | Self::ToolCallUpdate(call) => call.size(),
            Self::Plan(entries) => entries.iter().map(PlanEntry::size).sum(),
            Self::Usage(usage) => usage.size(),
            _ => 0,
        }
    }
}

/// Parses a frequent kind from the fields of a value.
pub(crate) fn read_object<'de, T: Lenient<'de>>(value: &'de Value) -> Option<T> {
    T::object(other_members(value)).ok().flatten()
}

/// The fields of a value, without the name of the kind.
fn other_members(value: &Value) -> impl MapAccess<'_, Error = serde_json::Error> {
    let members = value.as_object().into_iter().flatten().filter(|(name, _)| *name != NAME);
    MapDeserializer::new(members.map(|(name, value)| (name.as_str(), value)))
}

/// Skips an unknown field.
///
/// # Errors
/// If the JSON is not valid, or the field names the kind once more: then the last name counts.
pub(crate) fn skip<'de, A: MapAccess<'de>>(name: &str, object: &mut A) -> Result<(), A::Error> {
    if name == NAME { Err(A::Error::custom("the kind is repeated")) } else { lenient::skip(object) }
}
