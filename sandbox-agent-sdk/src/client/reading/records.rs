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
            let (request_id, method) = (id_text(id), request.method.clone());
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

/// The id of a request as text.
pub(in crate::client) fn id_text(id: &wire::MessageId) -> String {
    match wire::json::from_str(id.as_json()) {
        Ok(Value::String(id)) => id,
        _ => id.as_json().to_owned(),
    }
}
