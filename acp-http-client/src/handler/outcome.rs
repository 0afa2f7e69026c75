//! Responses to the agent. Those that need no decision fail closed.

use std::{
    io,
    sync::{Arc, Weak},
};

use agent_client_protocol_schema::v1::CLIENT_METHOD_NAMES;
use bytes::Bytes;
use serde_json::{json, value::RawValue};

use crate::{Json, MessageId, RpcError, client::Core, json, rpc::Outgoing};

/// A response to the agent: a result as JSON text, or an error.
pub(crate) type Outcome = Result<Box<RawValue>, RpcError>;

/// A response to the agent on its way to the connection.
#[derive(Debug)]
pub(crate) enum Reply {
    Outcome(Outcome),
    /// A result as a message, and the room that is reserved for it.
    Encoded(Bytes, Room),
    /// A result that does not fit the limit. It would take this many bytes as a message.
    TooLarge(usize),
}

impl Reply {
    /// Encodes a result. Its room is reserved first: many results may be encoded before the first one is sent.
    pub(crate) fn encode<T: serde::Serialize>(core: &Arc<Core>, id: &MessageId, result: &T) -> Self {
        let mut length = Length(0);
        let encoded = Outgoing::write_response(&mut length, id, Ok(result)).and_then(|()| {
            let Some(room) = Room::reserve(core, length.0) else { return Ok(Self::TooLarge(length.0)) };
            let mut text = Vec::with_capacity(length.0);
            Outgoing::write_response(&mut text, id, Ok(result))?;
            Ok(Self::Encoded(text.into(), room))
        });
        encoded.unwrap_or_else(|error| Self::Outcome(Err(RpcError::internal(error))))
    }
}

/// Room for the bytes of one response. Dropping it releases the room.
#[derive(Debug)]
pub(crate) struct Room {
    core: Weak<Core>,
    bytes: usize,
}

impl Room {
    fn reserve(core: &Arc<Core>, bytes: usize) -> Option<Self> {
        core.calls.reserve_response(0, bytes).then(|| Self { core: Arc::downgrade(core), bytes })
    }

    /// Returns the reserved bytes. The caller releases them.
    pub(crate) fn take(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(core) = self.core.upgrade().filter(|_| self.bytes > 0) {
            core.calls.release_response(self.bytes);
        }
    }
}

/// Counts the bytes of a text that is not stored.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn to_outcome<T: serde::Serialize>(result: Result<T, RpcError>) -> Outcome {
    serde_json::value::to_raw_value(&result?).map_err(RpcError::internal)
}

/// The response when the request or its turn was cancelled, or the responder was dropped.
pub(crate) fn cancelled(method: &str) -> Outcome {
    if method == CLIENT_METHOD_NAMES.session_request_permission {
        to_outcome(Ok(json!({"outcome": {"outcome": "cancelled"}})))
    } else if method == CLIENT_METHOD_NAMES.elicitation_create {
        to_outcome(Ok(json!({"action": "cancel"})))
    } else {
        Err(RpcError::cancelled())
    }
}

/// The response to a permission request without a decision: reject if the agent offers that, otherwise cancel.
pub(crate) fn refuse_permission(params: &[u8]) -> Outcome {
    // Unreadable options count as none, so the request is cancelled.
    let params = json::decode(params, Json::DECODED_LIMIT).unwrap_or_default();
    let options = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kinds = ["reject_once", "reject_always"];
    let reject = kinds.iter().find_map(|kind| options.iter().find(|option| option["kind"] == **kind));
    match reject.and_then(|option| option["optionId"].as_str()) {
        Some(id) => to_outcome(Ok(json!({"outcome": {"outcome": "selected", "optionId": id}}))),
        None => cancelled(CLIENT_METHOD_NAMES.session_request_permission),
    }
}

/// The response to a request without a handler.
pub(crate) fn unhandled(method: &str, params: &Bytes) -> Outcome {
    if method == CLIENT_METHOD_NAMES.session_request_permission {
        refuse_permission(params)
    } else {
        Err(RpcError::method_not_found(method))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn permissions_without_a_decision_are_refused() {
        let table = [
            (
                json!({"options": [{"optionId": "y", "kind": "allow_once"}, {"optionId": "n", "kind": "reject_once"}]}),
                Some("n"),
            ),
            (json!({"options": [{"optionId": "never", "kind": "reject_always"}]}), Some("never")),
            (json!({"options": [{"optionId": "a", "kind": "allow_always"}]}), None),
            (json!({"options": [{"optionId": "a", "kind": "brand_new"}]}), None),
            (json!({"options": "nonsense"}), None),
            (json!(null), None),
        ];
        for (params, option) in table {
            let outcome = refuse_permission(params.to_string().as_bytes()).unwrap();
            let outcome: Value = serde_json::from_str(outcome.get()).unwrap();
            match option {
                Some(id) => assert_eq!(outcome, json!({"outcome": {"outcome": "selected", "optionId": id}})),
                None => assert_eq!(outcome, json!({"outcome": {"outcome": "cancelled"}})),
            }
        }
    }
}
