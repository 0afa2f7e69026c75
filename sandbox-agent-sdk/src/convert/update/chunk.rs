//! Message chunks.

use serde::Serialize;
use serde_json::Value;

use super::{meta, text};
use crate::Content;

/// A chunk of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Chunk {
    /// The content.
    pub content: Content,
    /// The id of the message, if the agent assigns ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The `_meta` field of the update.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl Chunk {
    pub(super) fn read(update: &Value) -> Option<Self> {
        let content = Content::from_value(update.get("content")?.clone());
        Some(Self { content, message_id: text(update, "messageId"), meta: meta(update) })
    }

    /// Returns the original text, if the content is text.
    ///
    /// [`printable`](crate::convert::text::printable) makes it safe to print.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.content.text()
    }
}
