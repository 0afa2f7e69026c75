//! Plans, and the commands that a user can enter.

use serde::Serialize;
use serde_json::Value;

use super::{meta, read_list, text};

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlanEntry {
    /// The task.
    pub content: String,
    /// The priority: `high`, `medium` or `low`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// The status: `pending`, `in_progress` or `completed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl PlanEntry {
    pub(super) fn read_all(update: &Value) -> Option<Vec<Self>> {
        read_list(update, "entries", |entry| {
            Some(Self {
                content: text(entry, "content")?,
                priority: text(entry, "priority"),
                status: text(entry, "status"),
                meta: meta(entry),
            })
        })
    }
}

/// A command that a user can enter in a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Command {
    /// The name of the command.
    pub name: String,
    /// A description of the command.
    pub description: String,
    /// A hint about its argument, if it takes one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl Command {
    pub(super) fn read_all(update: &Value) -> Option<Vec<Self>> {
        read_list(update, "availableCommands", Self::read)
    }

    pub(crate) fn read(command: &Value) -> Option<Self> {
        Some(Self {
            name: text(command, "name")?,
            description: text(command, "description").unwrap_or_default(),
            hint: command.get("input").and_then(|input| text(input, "hint")),
            meta: meta(command),
        })
    }
}
