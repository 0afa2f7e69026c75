//! The most frequent reports: pieces of text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
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
    update: Object<Update<'a>>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Update<'a> {
    #[serde(rename = "sessionUpdate", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    content: Object<Text<'a>>,
    #[serde(rename = "messageId")]
    message_id: Option<String>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    text: String,
}

/// A value from a JSON object. A derived type reads a list as well, as its fields in their order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Members(PhantomData))
    }
}

impl TextChunk {
    /// Reads a piece of text; `None` if it is anything else.
    pub(super) fn read(params: &str) -> Option<Self> {
        let Object(params) = serde_json::from_str::<Object<Params<'_>>>(params).ok()?;
        let Params { session_id, update: Object(update), meta: notification_meta } = params;
        let Update { kind, content: Object(content), message_id, meta } = update;
        if content.kind != "text" {
            return None;
        }
        let kind_of: fn(Chunk) -> UpdateKind = match &*kind {
            "agent_message_chunk" => UpdateKind::Message,
            "agent_thought_chunk" => UpdateKind::Thought,
            "user_message_chunk" => UpdateKind::UserMessage,
            _ => return None,
        };
        let kind = kind_of(Chunk { content: Content::text_of(content.text), message_id, meta });
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
            with("/update/content", "type", json!({"text": null})),
            with("/update", "content", json!(["text", "a"])),
            with("", "update", json!(["agent_message_chunk", {"type": "text", "text": "a"}, null, null])),
            json!(["s", chunk("agent_message_chunk")["update"], null]).to_string(),
            "[\"s\"]".to_owned(),
            String::new(),
        ];
        for other in others {
            assert!(TextChunk::read(&other).is_none(), "{other}");
        }
    }
}
