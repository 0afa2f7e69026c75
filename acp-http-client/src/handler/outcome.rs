//! Responses that need no decision. They fail closed.

use agent_client_protocol_schema::v1::CLIENT_METHOD_NAMES;
use bytes::Bytes;
use serde_json::{json, value::RawValue};

use crate::{Json, RpcError, json};

/// A response to the agent: a result as JSON text, or an error.
pub(crate) type Outcome = Result<Box<RawValue>, RpcError>;

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
