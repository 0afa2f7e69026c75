//! Plans, and the commands a user may give.

use serde_json::Value;

use super::read_list;

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanEntry {
    /// What is to be done.
    pub content: String,
    /// How important it is: `high`, `medium` or `low`.
    pub priority: Option<String>,
    /// How far it is: `pending`, `in_progress` or `completed`.
    pub status: Option<String>,
}

impl PlanEntry {
    pub(super) fn read_all(update: &Value) -> Option<Vec<Self>> {
        read_list(update, "entries", |entry| {
            let text = |member: &str| entry.get(member).and_then(Value::as_str).map(str::to_owned);
            Some(Self { content: text("content")?, priority: text("priority"), status: text("status") })
        })
    }
}

/// A command that a user may give in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Command {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// What to write behind it, if anything.
    pub hint: Option<String>,
}

impl Command {
    pub(super) fn read_all(update: &Value) -> Option<Vec<Self>> {
        read_list(update, "availableCommands", Self::read)
    }

    pub(crate) fn read(command: &Value) -> Option<Self> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        Some(Self {
            name: text(command.get("name"))?,
            description: text(command.get("description")).unwrap_or_default(),
            hint: text(command.get("input").and_then(|input| input.get("hint"))),
        })
    }
}
