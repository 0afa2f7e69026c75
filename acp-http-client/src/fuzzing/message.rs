//! The parser of messages, and of values within a budget.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    Json, JsonError, Limits, Typed,
    events::peek_session,
    json,
    rpc::{Body, Message},
};

/// Checks that a message has the fields that a general parser finds, that its payloads are JSON, and that a value
/// parsed within a budget equals that of a general parser.
pub fn message(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let general: Option<Value> = json::from_str(&text).ok();
    assert!(general.as_ref().is_none_or(|value| depth(value) < 128), "a value is deeper than its text");
    if let Ok(message) = Message::parse(Bytes::copy_from_slice(data), &Limits::default()) {
        check_body(&message.body, general.as_ref());
    }
    check_session(&text, general.as_ref());
    check_budget(&text, general.as_ref());
}

/// Checks that the session in these parameters is the one that a general parser finds.
fn check_session(text: &str, general: Option<&Value>) {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params {
        session_id: String,
    }
    let session = peek_session(text.as_bytes());
    match (general, serde_json::from_str::<Params>(text)) {
        (Some(Value::Object(_)), Ok(params)) => assert_eq!(session.as_deref(), Some(&*params.session_id)),
        // A text with two sessions is refused, and no order of its members is better than another.
        (Some(Value::Object(_)) | None, _) => {}
        (Some(_), _) => assert_eq!(session, None),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn check_body(body: &Body, general: Option<&Value>) {
    // The reader checks what is nested too deeply for a general parser, and updates that are not JSON.
    let Some(general) = general else { return };
    let member = |name: &str| general.get(name).cloned();
    let read = |payload: &[u8]| {
        let payload = Typed::<Value>::read(Bytes::copy_from_slice(payload));
        assert_eq!(payload.raw().as_str(), String::from_utf8_lossy(payload.raw().as_bytes()));
        payload.into_known().ok()
    };
    match body {
        Body::Update { params } => {
            assert_eq!(member("method"), Some("session/update".into()));
            assert_eq!(member("id"), None, "a request is taken for an update");
            assert_eq!(read(params), member("params"));
        }
        Body::Request { id, method, params } => {
            assert_eq!(read(id.as_json().as_bytes()), member("id"));
            assert_eq!(Some(Value::from(&**method)), member("method"));
            assert_eq!(read(params), member("params").or(Some(Value::Null)));
        }
        Body::Notification { method, params } => {
            assert_eq!(member("id"), None);
            assert_eq!(Some(Value::from(&**method)), member("method"));
            assert_eq!(read(params), member("params").or(Some(Value::Null)));
        }
        Body::Response { id, outcome } => {
            assert_eq!(read(id.as_json().as_bytes()), member("id"));
            assert_eq!(member("method").filter(|method| !method.is_null()), None);
            match outcome {
                Ok(result) => assert_eq!(read(result), member("result")),
                Err(_) => assert!(member("error").is_some_and(|error| !error.is_null())),
            }
        }
    }
}

fn check_budget(text: &str, general: Option<&Value>) {
    let json = Json::new(Bytes::copy_from_slice(text.as_bytes()));
    match json.to_value() {
        Ok(value) => assert_eq!(Some(&value), general),
        Err(JsonError::Invalid(_) | JsonError::Reserved) => assert_eq!(general, None),
        Err(JsonError::TooDeep { .. }) => {}
        Err(JsonError::TooLarge { .. }) => assert!(text.len() > 1 << 20, "a small text is too large"),
    }
    match json.to_value_within(256) {
        Ok(value) => assert_eq!(Some(&value), general),
        Err(_) if text.len() <= 1 => assert_eq!(general.filter(|value| !value.is_number()), None),
        Err(_) => {}
    }
}
