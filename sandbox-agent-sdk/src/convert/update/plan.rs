//! Plans, and the commands that a user can enter.

use serde::Serialize;
use serde::de::MapAccess;
use serde_json::Value;

use super::kind::skip;
use super::{meta, read_list, text};
use crate::convert::decoded::value_size;
use crate::convert::lenient::{self, Lenient};

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
    /// Parses the entries of a plan; `None` if there is no list of entries.
    pub(super) fn read_all<'de, A: MapAccess<'de>>(object: A) -> Result<Option<Vec<Self>>, A::Error> {
        let mut entries = None;
        lenient::fields(object, |name, object| {
            match &*name {
                "entries" => entries = lenient::value(object)?,
                other => skip(other, object)?,
            }
            Ok(())
        })?;
        Ok(entries)
    }

    pub(super) fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let meta = self.meta.as_ref().map_or(0, value_size);
        size_of::<Self>() + self.content.len() + text(&self.priority) + text(&self.status) + meta
    }
}

impl<'de> Lenient<'de> for PlanEntry {
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let (mut content, mut priority, mut status, mut meta) = (None, None, None, None);
        lenient::fields(object, |name, object| {
            match &*name {
                "content" => content = lenient::value(object)?,
                "priority" => priority = lenient::value(object)?,
                "status" => status = lenient::value(object)?,
                "_meta" => meta = lenient::value(object)?,
                _ => lenient::skip(object)?,
            }
            Ok(())
        })?;
        Ok(content.map(|content| Self { content, priority, status, meta }))
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
    /// A hint about the command's argument, if it takes one.
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
