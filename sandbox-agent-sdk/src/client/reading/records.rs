//! The records of messages in the log.

use acp_http_client as wire;
use serde_json::Value;

use crate::Event;
use crate::client::limits::{BodyKind, Limits};
use crate::client::stream::LogRecord;
use crate::error::RpcError;

/// The record of an agent request.
pub(in crate::client) fn request_record(
    limits: &Limits,
    id: &wire::MessageId,
    request: &wire::Notification,
) -> LogRecord {
    let admitted = limits.check(BodyKind::Message, &request.method, request.params.as_bytes());
    match admitted
        .map_err(|error| error.to_string())
        .and_then(|_| request.params.parse().map_err(|error| error.to_string()))
    {
        Ok(params) => {
            let (request_id, method) = (id_text(id), request.method.to_string());
            LogRecord::AgentRequest { request_id, method, params }
        }
        Err(reason) => LogRecord::Event(Event::Malformed { reason, start: String::new(), lost: true }),
    }
}

/// The record of a response to a request of another client. One that cannot be decoded is an error: the request has ended.
pub(in crate::client) fn response_record(
    limits: &Limits,
    id: &wire::MessageId,
    raw: &wire::Json,
) -> LogRecord {
    let undecoded = |reason: String| {
        RpcError::new(RpcError::INTERNAL_ERROR, format!("the response cannot be decoded: {reason}"))
    };
    let admitted = limits.check(BodyKind::Message, "response", raw.as_bytes());
    let message = admitted
        .map_err(|error| undecoded(error.to_string()))
        .and_then(|_| raw.parse::<Value>().map_err(|error| undecoded(error.to_string())));
    let result = message.and_then(|mut message| {
        match message.get_mut("error").map(Value::take).filter(|error| !error.is_null()) {
            Some(error) => {
                Err(serde_json::from_value(error).unwrap_or_else(|error| undecoded(error.to_string())))
            }
            None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
        }
    });
    LogRecord::Response { request_id: id_text(id), result }
}

/// The id of a request as text: a string unchanged, and any other id as JSON. A string that is itself JSON, such as
/// `"5"`, has quotes, so that it differs from the number.
pub(in crate::client) fn id_text(id: &wire::MessageId) -> String {
    match wire::json::from_str(id.as_json()) {
        Ok(Value::String(text)) if !is_json(&text) => text,
        _ => id.as_json().to_owned(),
    }
}

/// The id with this text.
pub(in crate::client) fn id_of_text(text: &str) -> Option<wire::MessageId> {
    let json = if is_json(text) { text.to_owned() } else { Value::from(text).to_string() };
    wire::json::from_str(&json).ok()
}

fn is_json(text: &str) -> bool {
    wire::json::from_str::<Value>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{id_of_text, id_text, wire};

    #[test]
    fn an_id_is_the_same_after_it_was_a_text() {
        for (json, text) in [
            ("5", "5"),
            ("\"5\"", "\"5\""),
            ("\"a-1\"", "a-1"),
            ("\"null\"", "\"null\""),
            ("\"\\\"5\\\"\"", "\"\\\"5\\\"\""),
            ("\"\"", ""),
            ("1.5", "1.5"),
        ] {
            let id: wire::MessageId = wire::json::from_str(json).unwrap();
            assert_eq!(id_text(&id), text, "{json}");
            assert_eq!(id_of_text(text).unwrap().as_json(), json, "{text}");
        }
    }
}
