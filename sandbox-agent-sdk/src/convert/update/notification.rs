//! The parameters of a `session/update`, parsed straight into the types of frequent kinds.

use serde::de::{Error, MapAccess};
use serde_json::Value;

use super::UpdateKind;
use super::kind::NAME;
use crate::convert::lenient::{self, Lenient};

/// The parameters of a `session/update` of a frequent kind.
#[derive(Default)]
pub(super) struct Notification {
    pub(super) session_id: Option<String>,
    pub(super) kind: Option<UpdateKind>,
    pub(super) meta: Option<Value>,
}

impl Notification {
    /// Parses the parameters in place. The result has no session id or no kind if they have to be parsed as a
    /// [`Value`]: the kind is not a frequent one, a required field is missing, or the order of fields is unusual.
    pub(super) fn read(params: &str, place: &mut Option<Self>) {
        if lenient::from_str(params, place).is_err() {
            *place = None;
        }
    }
}

impl<'de> Lenient<'de> for Notification {
    fn object_into<A: MapAccess<'de>>(object: A, place: &mut Option<Self>) -> Result<(), A::Error> {
        let Self { session_id, kind, meta } = place.insert(Self::default());
        lenient::fields(object, |name, object| match &*name {
            "sessionId" => lenient::value_into(object, session_id),
            "update" => lenient::value_into(object, kind),
            "_meta" => lenient::value_into(object, meta),
            _ => lenient::skip(object),
        })
    }
}

/// The frequent kinds, with the name of the kind as the first field.
impl<'de> Lenient<'de> for UpdateKind {
    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        if lenient::next_name(&mut object)?.is_none_or(|name| name != NAME) {
            return Err(A::Error::custom("the kind is not the first field"));
        }
        let name = lenient::next_text(&mut object)?;
        Self::from_fields(&name, object)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Notification;
    use crate::Update;
    use crate::event::Origin;

    fn read(params: &str) -> Notification {
        let mut read = None;
        Notification::read(params, &mut read);
        read.unwrap_or_default()
    }

    fn frequent() -> Vec<Value> {
        let text = json!({"type": "text", "text": "a\"b", "annotations": {"priority": 1}, "new": 1});
        let chunk =
            |kind: &str| json!({"sessionUpdate": kind, "content": text, "messageId": "m", "_meta": {"a": 1}});
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "kind": "execute",
            "status": "pending", "rawInput": {"a": [1]}, "rawOutput": null, "new": {"a": 1}, "_meta": {"b": 2},
            "locations": [{"path": "/a", "line": 3, "new": 1}, {}, 5],
            "content": [{"type": "content", "content": text, "_meta": {"c": 3}}, {"content": text, "type": "content"},
                {"type": "diff", "path": "/a", "oldText": null, "newText": "b"}, {"type": "diff", "path": "/a"},
                {"type": "content", "content": {"type": "hologram"}}, {"type": "content"}, {}, 5, null, "x"]});
        vec![
            chunk("agent_message_chunk"),
            chunk("agent_thought_chunk"),
            chunk("user_message_chunk"),
            call.clone(),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "title": 5, "content": {}, "locations": null}),
            json!({"sessionUpdate": "plan", "entries": [{"content": "a", "priority": "high", "status": 5, "new": 1,
                "_meta": {"a": 1}}, {}, 5]}),
            json!({"sessionUpdate": "usage_update", "used": 5, "size": -1, "cost": {"amount": 1.5, "currency": "USD"}}),
        ]
    }

    #[test]
    fn frequent_kinds_are_read_as_they_are_by_way_of_a_value() {
        for update in frequent() {
            let params = json!({"sessionId": "s\n", "other": {}, "update": update, "_meta": {"b": 2}});
            let read = read(&params.to_string());
            let expected = Update::read(params, Origin::Live, 0);
            assert_eq!(read.session_id.as_deref(), Some(expected.session_id()));
            assert_eq!(read.kind.as_ref(), Some(expected.kind()), "{update}");
            assert_eq!(read.meta.as_ref(), expected.notification_meta());
        }
    }

    #[test]
    fn the_last_of_repeated_fields_counts() {
        let repeated = [
            r#"{"sessionUpdate":"plan","entries":[{"content":"a","content":5,"content":"b"}],"entries":[{"content":"c"}]}"#,
            r#"{"sessionUpdate":"tool_call","toolCallId":"a","title":"x","title":5,"toolCallId":"b","new":1,"new":2}"#,
            r#"{"sessionUpdate":"agent_message_chunk","content":5,"content":{"type":"text","text":"a","text":"b"}}"#,
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a","text":5}}"#,
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":5,"text":"a"}}"#,
            r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a","data":"d","mimeType":"m","type":"image"}}"#,
            r#"{"sessionUpdate":"tool_call","toolCallId":"a","content":[{"type":"content","content":{"type":"text","text":"a"},"content":5}]}"#,
            r#"{"sessionUpdate":"tool_call","toolCallId":"a","content":[{"type":"content","content":{},"type":"terminal","terminalId":"t"}]}"#,
            r#"{"sessionUpdate":"tool_call","toolCallId":"a","content":[{"type":"terminal","type":"content","content":{}}]}"#,
        ];
        for update in repeated {
            let params = format!(r#"{{"sessionId":5,"sessionId":"s","update":1,"update":{update}}}"#);
            let expected = Update::read(serde_json::from_str(&params).unwrap(), Origin::Live, 0);
            assert_eq!(read(&params).kind.as_ref(), Some(expected.kind()), "{update}");
        }
    }

    #[test]
    fn anything_unusual_is_left_to_the_general_parser() {
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        let chunk = r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"a"}}"#;
        let others = [
            format!(r#"{{"sessionId":"s","update":{chunk},"new":{deep}}}"#),
            format!(r#"{{"sessionId":"s","update":{{"sessionUpdate":"plan","entries":[],"new":{deep}}}}}"#),
            format!(r#"{{"sessionId":"s","update":{{"sessionUpdate":"tool_call","toolCallId":"t","title":{deep}}}}}"#),
            format!(r#"{{"update":{chunk}}}"#),
            format!(r#"{{"sessionId":5,"update":{chunk}}}"#),
            format!(r#"["s",{chunk},null]"#),
            r#"{"sessionId":"s"}"#.to_owned(),
            r#"{"sessionId":"s","update":{"content":{},"sessionUpdate":"agent_message_chunk"}}"#.to_owned(),
            r#"{"sessionId":"s","update":{"sessionUpdate":"plan","sessionUpdate":"tool_call","toolCallId":"t"}}"#.to_owned(),
            r#"{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk"}}"#.to_owned(),
            r#"{"sessionId":"s","update":{"sessionUpdate":"tool_call"}}"#.to_owned(),
            r#"{"sessionId":"s","update":{"sessionUpdate":"teleport"}}"#.to_owned(),
            r#"{"sessionId":"s","update":["plan",[]]}"#.to_owned(),
            r#"{"sessionId":"s","update":{"sessionUpdate":"plan","entries":[]}} "#.repeat(2),
            "{".to_owned(),
            String::new(),
        ];
        for other in others {
            let read = read(&other);
            assert!(read.session_id.is_none() || read.kind.is_none(), "{other}");
        }
    }
}
