//! The most frequent reports: pieces of text.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::{Chunk, UpdateKind};
use crate::Content;

/// A report that is a piece of text.
pub(super) struct TextChunk {
    pub(super) session_id: String,
    pub(super) kind: UpdateKind,
    pub(super) notification_meta: Option<Value>,
}

/// The parameters of a piece of text. Anything else that they could have is read elsewhere.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Params<'a> {
    #[serde(rename = "sessionId", borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    update: Update<'a>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update<'a> {
    #[serde(rename = "sessionUpdate", borrow)]
    kind: Cow<'a, str>,
    content: Text,
    #[serde(rename = "messageId")]
    message_id: Option<String>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "type")]
    kind: Kind,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Text,
}

impl TextChunk {
    /// Reads a piece of text; `None` if it is anything else.
    pub(super) fn read(params: &str) -> Option<Self> {
        let Params { session_id, update, meta: notification_meta } = serde_json::from_str(params).ok()?;
        let Update { kind, content: Text { kind: Kind::Text, text }, message_id, meta } = update;
        let kind_of: fn(Chunk) -> UpdateKind = match &*kind {
            "agent_message_chunk" => UpdateKind::Message,
            "agent_thought_chunk" => UpdateKind::Thought,
            "user_message_chunk" => UpdateKind::UserMessage,
            _ => return None,
        };
        let kind = kind_of(Chunk { content: Content::text_of(text), message_id, meta });
        Some(Self { session_id: session_id.into_owned(), kind, notification_meta })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::TextChunk;
    use crate::Update;
    use crate::event::Origin;

    #[test]
    fn plain_text_is_read_as_it_is_elsewhere_and_anything_else_is_left_alone() {
        let chunk = |kind: &str| {
            json!({"sessionId": "s\n", "update": {"sessionUpdate": kind,
            "content": {"type": "text", "text": "a\"b"}, "messageId": "m", "_meta": {"a": 1}}, "_meta": {"b": 2}})
        };
        for kind in ["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"] {
            let read = TextChunk::read(&chunk(kind).to_string()).unwrap();
            let expected = Update::read(chunk(kind), Origin::Live, 0);
            assert_eq!((read.session_id.as_str(), &read.kind), (expected.session_id(), expected.kind()));
            assert_eq!(read.notification_meta.as_ref(), expected.notification_meta());
        }
        let with = |pointer: &str, name: &str, value: Value| {
            let mut params = chunk("agent_message_chunk");
            params.pointer_mut(pointer).unwrap()[name] = value;
            params.to_string()
        };
        let others = [
            with("", "other", json!({})),
            with("/update", "other", json!({})),
            with("/update", "sessionUpdate", json!("plan")),
            with("/update/content", "annotations", json!({})),
            with("/update/content", "type", json!("image")),
            with("/update/content", "text", json!(5)),
            with("", "sessionId", json!(null)),
            "[\"s\"]".to_owned(),
            String::new(),
        ];
        for other in others {
            assert!(TextChunk::read(&other).is_none(), "{other}");
        }
    }
}
