//! The kinds of reports.

use serde::Serialize;
use serde_json::Value;

use super::{
    Chunk, Command, Compaction, CompactionSummary, ConfigOption, Missed, Notice, PlanEntry, ToolCall, text,
};
use crate::usage::ContextUsage;

/// What a report is about.
///
/// It is serialised as `{"type", "value"}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", content = "value", rename_all = "snake_case", rename_all_fields = "camelCase")]
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
    /// A tool call continues; members that it does not mention stay as they were:
    /// [`ToolCall::apply_update`].
    ToolCallUpdate(ToolCall),
    /// The plan as a whole.
    Plan(Vec<PlanEntry>),
    /// The commands that a user may give.
    Commands(Vec<Command>),
    /// The mode changed.
    #[non_exhaustive]
    Mode {
        /// The id of the current mode.
        id: String,
    },
    /// The options of the session, all of them.
    ConfigOptions(Vec<ConfigOption>),
    /// The session has another title, or says when it was last used.
    #[non_exhaustive]
    Info {
        /// The title.
        title: Option<String>,
        /// When it was last used, as the agent writes it.
        updated_at: Option<String>,
    },
    /// How much of the model's context is used, and what the session has cost.
    Usage(ContextUsage),
    /// Information for the user that is not part of the conversation.
    Notice(Notice),
    /// The agent compacts the conversation; a later report with the same id changes it.
    Compaction(Compaction),
    /// A piece of the summary of a compaction.
    CompactionSummary(CompactionSummary),
    /// Something is missing in this place.
    Missed(Missed),
    /// The report is valid JSON that cannot be read, such as JSON that is nested too deep. [`Update::raw`](super::Update::raw)
    /// is its text.
    #[non_exhaustive]
    Unreadable {
        /// The name of the kind, if that could be read.
        kind: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// A kind that this version does not know, or one whose content it cannot read; see [`Update::raw`](super::Update::raw).
    #[non_exhaustive]
    Other {
        /// The name of the kind.
        kind: String,
    },
}

impl UpdateKind {
    /// Reads the `update` member; what does not fit its kind is of the kind [`UpdateKind::Other`].
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
