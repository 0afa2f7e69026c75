//! The most frequent update: a chunk of text.

use std::{borrow::Cow, fmt, marker::PhantomData};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, SessionId, SessionNotification, SessionUpdate, TextContent,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

/// Reads the parameters of an update if they are a chunk of text and nothing else.
///
/// The schema types select the kind of an update by a member that may be anywhere, so they first parse each update
/// into a tree. This function takes a third of the time. It returns `None` for anything else, which the schema types
/// then parse.
pub(super) fn read(params: &str) -> Option<SessionNotification> {
    let Object(Params { session_id, update }) = serde_json::from_str(params).ok()?;
    let Object(Chunk { session_update, content, message_id }) = update;
    let Object(Text { kind: TextKind::Text, text }) = content;
    let mut chunk = ContentChunk::new(ContentBlock::Text(TextContent::new(text)));
    chunk.message_id = message_id.map(|id| id.into_owned().into());
    let update = match session_update {
        ChunkKind::UserMessage => SessionUpdate::UserMessageChunk(chunk),
        ChunkKind::AgentMessage => SessionUpdate::AgentMessageChunk(chunk),
        ChunkKind::AgentThought => SessionUpdate::AgentThoughtChunk(chunk),
    };
    Some(SessionNotification::new(SessionId::new(&*session_id), update))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    update: Object<Chunk<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Chunk<'a> {
    session_update: ChunkKind,
    content: Object<Text>,
    #[serde(borrow, default)]
    message_id: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
enum ChunkKind {
    #[serde(rename = "user_message_chunk")]
    UserMessage,
    #[serde(rename = "agent_message_chunk")]
    AgentMessage,
    #[serde(rename = "agent_thought_chunk")]
    AgentThought,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "type")]
    kind: TextKind,
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum TextKind {
    Text,
}

/// A struct in the form of an object. The derived implementation reads arrays too, with other rules than the schema.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn schema(params: &str) -> Option<SessionNotification> {
        serde_json::from_str(params).ok()
    }

    #[test]
    fn a_chunk_of_text_is_read_as_the_schema_reads_it() {
        for kind in ["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"] {
            for (session, text) in [("s", "words "), ("", ""), ("é\"\\", "a \u{1b} \" \\ \n 💡 \u{7f}")] {
                for id in [None, Some(Value::Null), Some(json!("m-\"1"))] {
                    let mut params = json!({"sessionId": session, "update": {
                        "sessionUpdate": kind, "content": {"type": "text", "text": text}}});
                    if let Some(id) = id {
                        params["update"]["messageId"] = id;
                    }
                    let params = params.to_string();
                    let read = read(&params);
                    assert!(read.is_some(), "{params}");
                    assert_eq!(read, schema(&params), "{params}");
                }
            }
        }
        let reordered = r#" {"update":{"content":{"text":"t","type":"text"},"sessionUpdate":"agent_message_chunk"},"sessionId":"s"} "#;
        assert_eq!(read(reordered), schema(reordered));
        assert!(read(reordered).is_some());
    }

    #[test]
    fn everything_else_is_left_to_the_schema() {
        let table = [
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"}},"_meta":{"a":1}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"},"_meta":{}}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t","annotations":null}}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"},"messageId":7}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"image","data":"","mimeType":"x"}}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"plan","entries":[]}}"#,
            r#"{"sessionId":"s","sessionId":"t","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"}}}"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"t"}}} x"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text"}}}"#,
            r#"{"sessionId":"s"}"#,
            r#"["s",["agent_message_chunk",["text","t"],null]]"#,
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":["text","t"]}}"#,
            "null",
            "",
        ];
        for params in table {
            // Whatever this function accepts, the schema types parse to the same value.
            if let Some(read) = read(params) {
                assert_eq!(Some(read), schema(params), "{params}");
            }
        }
        assert!(table[..8].iter().all(|params| read(params).is_none()));
    }
}
