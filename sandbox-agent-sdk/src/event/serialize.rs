//! Events as JSON, for those who pass them on.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::Event;
use crate::{ConnectionState, Error};

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_map().map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl Event {
    fn to_map(&self) -> serde_json::Result<Map<String, Value>> {
        let (kind, content) = match self {
            Self::Update(update) => ("update", serde_json::to_value(update)?),
            Self::SessionEnded(ended) => ("sessionEnded", serde_json::to_value(ended)?),
            Self::AgentUnparsed { unparsed, origin } => {
                ("agentUnparsed", json!({"error": unparsed.error, "raw": unparsed.raw, "origin": origin}))
            }
            Self::Permission(request) => (
                "permission",
                json!({"sessionId": request.session_id(), "toolCall": request.tool_call(),
                    "options": request.options(), "request": request.raw()}),
            ),
            Self::Question(request) => {
                ("question", json!({"sessionId": request.session_id(), "request": request.raw()}))
            }
            Self::QuestionCompleted { id } => ("questionCompleted", json!({ "id": id })),
            Self::Connection(state) => ("connection", connection(state)),
            Self::Reconnected { checked } => ("reconnected", json!({ "checked": checked })),
            Self::ServerRestarted => ("serverRestarted", json!({})),
            Self::Gap(gap) => ("gap", serde_json::to_value(gap)?),
            Self::Lagged(count) => ("lagged", json!({ "count": count })),
            Self::Unrecorded(unrecorded) => ("unrecorded", json!({"sessionId": unrecorded.session_id})),
            Self::TakenOver { session_id } => ("takenOver", json!({ "sessionId": session_id })),
            Self::Budget(budget) => ("budget", serde_json::to_value(budget)?),
            Self::Malformed { reason, start } => ("malformed", json!({"reason": reason, "start": start})),
            Self::AnswerLost { method, error } => {
                ("answerLost", json!({"method": method, "error": error_value(error)}))
            }
            Self::Other { method, params, origin } => {
                ("other", json!({"method": method, "params": params, "origin": origin}))
            }
        };
        let mut map = Map::new();
        map.insert("type".to_owned(), kind.into());
        if let Value::Object(members) = content {
            map.extend(members);
        }
        Ok(map)
    }
}

fn connection(state: &ConnectionState) -> Value {
    match state {
        ConnectionState::Disconnected => json!({"state": "disconnected"}),
        ConnectionState::Connecting => json!({"state": "connecting"}),
        ConnectionState::Connected => json!({"state": "connected"}),
        ConnectionState::Reconnecting { attempt } => json!({"state": "reconnecting", "attempt": attempt}),
        ConnectionState::AgentEnded(info) => json!({"state": "agentEnded", "termination": info}),
        ConnectionState::Lost(reason) => json!({"state": "lost", "reason": reason.to_string()}),
    }
}

fn error_value(error: &Error) -> Value {
    json!({"message": error.to_string(), "maybeExecuted": error.maybe_executed(), "rpc": error.rpc_error()})
}
