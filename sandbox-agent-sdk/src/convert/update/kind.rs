//! The kinds of updates.

use serde::Serialize;
use serde_json::Value;

use super::{
    Chunk, Command, Compaction, CompactionSummary, ConfigOption, Missed, Notice, PlanEntry, ToolCall, text,
};
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
    ToolCall(ToolCall),
    /// A change of a tool call. Fields that it does not contain are unchanged: see
    /// [`ToolCall::apply_update`].
    ToolCallUpdate(ToolCall),
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
    /// The update is valid JSON that cannot be parsed, for example due to its depth.
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

impl UpdateKind {
    /// Parses the `update` field. Invalid contents become [`UpdateKind::Other`].
    pub(super) fn read(update: &Value) -> Self {
        let name = update.get("sessionUpdate").and_then(Value::as_str).unwrap_or_default();
        let read = match name {
            "agent_message_chunk" => Chunk::read(update).map(Self::Message),
            "agent_thought_chunk" => Chunk::read(update).map(Self::Thought),
            "user_message_chunk" => Chunk::read(update).map(Self::UserMessage),
            "tool_call" => ToolCall::read(update).map(Self::ToolCall),
            "tool_call_update" => ToolCall::read(update).map(Self::ToolCallUpdate),
            "plan" => PlanEntry::read_all(update).map(Self::Plan),
            "available_commands_update" => Command::read_all(update).map(Self::Commands),
            "current_mode_update" => text(update, "currentModeId").map(|id| Self::Mode { id }),
            "config_option_update" => ConfigOption::read_all(update).map(Self::ConfigOptions),
            "session_info_update" => {
                Some(Self::Info { title: text(update, "title"), updated_at: text(update, "updatedAt") })
            }
            "usage_update" => Some(Self::Usage(ContextUsage::read(update))),
            "notice" => Notice::read(update).map(Self::Notice),
            "compaction_update" => Compaction::read(update).map(Self::Compaction),
            "compaction_summary_chunk" => CompactionSummary::read(update).map(Self::CompactionSummary),
            _ => None,
        };
        read.unwrap_or_else(|| Self::Other { kind: name.to_owned() })
    }
}
