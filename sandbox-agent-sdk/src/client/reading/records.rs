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
        .and_then(|_| serde_json::from_str(request.params.as_str()).map_err(|error| error.to_string()))
    {
        Ok(params) => {
            let (request_id, method) = (id_text(id), request.method.clone());
            LogRecord::AgentRequest { request_id, method, params }
        }
        Err(reason) => LogRecord::Event(Event::Malformed { reason, start: String::new(), lost: true }),
    }
}

/// The record of a response to a request of another client.
pub(in crate::client) fn response_record(
    limits: &Limits,
    id: &wire::MessageId,
    raw: &wire::Json,
) -> Option<LogRecord> {
    limits.check(BodyKind::Message, "response", raw.as_bytes()).ok()?;
    let mut message: Value = serde_json::from_str(raw.as_str()).ok()?;
    let result = match message.get_mut("error").map(Value::take).filter(|error| !error.is_null()) {
        Some(error) => {
            let unknown = RpcError::new(RpcError::INTERNAL_ERROR, "the error cannot be decoded");
            Err(serde_json::from_value(error).unwrap_or(unknown))
        }
        None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
    };
    Some(LogRecord::Response { request_id: id_text(id), result })
}

/// The id of a request as text.
pub(in crate::client) fn id_text(id: &wire::MessageId) -> String {
    match serde_json::from_str(id.as_json()) {
        Ok(Value::String(id)) => id,
        _ => id.as_json().to_owned(),
    }
}
