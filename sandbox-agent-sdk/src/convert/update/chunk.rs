//! Pieces of messages.

use serde::Serialize;
use serde_json::Value;

use super::{meta, text};
use crate::Content;

/// A piece of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Chunk {
    /// What it holds.
    pub content: Content,
    /// The message it is a piece of, if the agent gives its messages ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The member `_meta` of the report.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl Chunk {
    pub(super) fn read(update: &Value) -> Option<Self> {
        let content = Content::from_value(update.get("content")?.clone());
        Some(Self { content, message_id: text(update, "messageId"), meta: meta(update) })
    }

    /// The text as it came, if it holds text. [`printable`](crate::convert::text::printable) makes it safe to print.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.content.text()
    }
}
