use bytes::Bytes;
use serde_json::{Value, json};

use super::kind::Fault;
use crate::stream::Log;

/// Applies a fault with immediate effect to one log.
pub(crate) fn apply_to_log(fault: &Fault, log: &Log) {
    match fault {
        Fault::SequenceReset => log.reset_sequence(),
        Fault::ReplayBufferOverflow => overflow(log),
        Fault::StaleReplayBuffer { count } => stale(log, *count),
        Fault::OversizeEvent { bytes } => {
            log.publish(notification("_mock/oversize", json!({ "text": "x".repeat(*bytes) })));
        }
        Fault::NonObjectEvent(text) | Fault::MalformedEvent(text) => {
            log.publish(text.clone());
        }
        Fault::InvalidUtf8Event => {
            log.publish(Bytes::from_static(
                b"{\"jsonrpc\":\"2.0\",\"method\":\"_mock/invalid_utf8\",\"params\":{\"text\":\"a\xffb\"}}",
            ));
        }
        _ => {}
    }
}

/// Publishes one message more than the replay buffer holds. An unbounded buffer cannot overflow; it gets as
/// many messages as the default buffer holds.
fn overflow(log: &Log) {
    const LARGEST: usize = 65_536;
    let count = log.capacity().min(LARGEST) + 1;
    log.publish_all((0..count).map(|number| notification("_mock/overflow", json!({ "number": number }))));
}

/// Publishes old messages: responses of another client, and a permission request without a waiting agent. The
/// response ids are those that a counting client would choose.
fn stale(log: &Log, count: u64) {
    let response = |id: Value| {
        Bytes::from(json!({ "jsonrpc": "2.0", "id": id, "result": { "stale": true } }).to_string())
    };
    let numbers = (0..=count).flat_map(|id| [response(json!(id)), response(json!(id.to_string()))]);
    let request = json!({
        "jsonrpc": "2.0",
        "id": "agent_req_stale",
        "method": "session/request_permission",
        "params": {
            "sessionId": "stale-session",
            "toolCall": { "toolCallId": "stale-call", "title": "Asked and answered long ago" },
            "options": [{ "optionId": "allow", "name": "Allow", "kind": "allow_once" }],
        },
    });
    log.publish_all(numbers.chain([Bytes::from(request.to_string())]));
}

fn notification(method: &str, params: Value) -> Bytes {
    Bytes::from(json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string())
}
