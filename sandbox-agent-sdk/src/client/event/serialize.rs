//! Serializes events to JSON, for example to send them to a browser.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{Event, TurnEnded};
use crate::client::turn::TurnEvent;
use crate::requests::QuestionRequest;
use crate::update::ToolCall;
use crate::{ConnectionState, Error, PermissionRequest, TurnOutcome};

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
            Self::TerminationDetails(ended) => ("terminationDetails", serde_json::to_value(ended)?),
            Self::TurnEnded(ended) => ("turnEnded", serde_json::to_value(ended)?),
            Self::AgentUnparsed { unparsed, origin } => {
                ("agentUnparsed", json!({"error": unparsed.error, "raw": unparsed.raw, "origin": origin}))
            }
            Self::Permission(request) => ("permission", permission(request)),
            Self::UnclaimedRequest(request) => (
                "unclaimedRequest",
                json!({"id": request.id(), "sessionId": request.session_id(), "method": request.method(),
                    "request": request.raw()}),
            ),
            Self::PermissionDecided(decided) => (
                "permissionDecided",
                json!({"id": decided.request.id(), "sessionId": decided.request.session_id(),
                    "request": decided.request.raw(), "outcome": decided.request.outcome(),
                    "by": decided.by}),
            ),
            Self::RequestRejected { session_id, method, reason } => {
                ("requestRejected", json!({"sessionId": session_id, "method": method, "reason": reason}))
            }
            Self::Question(request) => ("question", question(request)),
            Self::QuestionCompleted { id } => ("questionCompleted", json!({ "id": id })),
            Self::Connection(state) => ("connection", connection(state)),
            Self::Reconnected { checked } => ("reconnected", json!({ "checked": checked })),
            Self::ServerRestarted => ("serverRestarted", json!({})),
            Self::Gap(gap) => ("gap", serde_json::to_value(gap)?),
            Self::Lagged(count) => ("lagged", json!({ "count": count })),
            Self::EventsLost(lost) => ("eventsLost", serde_json::to_value(lost)?),
            Self::OwnershipLost { session_id } => ("ownershipLost", json!({ "sessionId": session_id })),
            Self::Restored { session_id, restored } => {
                ("restored", json!({"sessionId": session_id, "restored": restored}))
            }
            Self::Budget(budget) => ("budget", serde_json::to_value(budget)?),
            Self::Malformed { reason, start, lost } => {
                ("malformed", json!({"reason": reason, "start": start, "lost": lost}))
            }
            Self::ResponseLost { method, error } => {
                ("responseLost", json!({"method": method, "error": error_value(error)}))
            }
            Self::Other { method, params, origin } => {
                ("other", json!({"method": method, "params": params, "origin": origin}))
            }
        };
        Ok(tagged(kind, content))
    }
}

/// Serializes like [`Event::Permission`], without the type.
impl Serialize for PermissionRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        permission(self).serialize(serializer)
    }
}

/// Serializes like [`Event::Question`], without the type.
impl Serialize for QuestionRequest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        question(self).serialize(serializer)
    }
}

impl Serialize for TurnEnded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = outcome(&self.outcome).map_err(serde::ser::Error::custom)?;
        map.insert("sessionId".to_owned(), self.session_id.as_str().into());
        if let Some(id) = &self.request_id {
            map.insert("requestId".to_owned(), id.as_str().into());
        }
        map.serialize(serializer)
    }
}

impl Serialize for TurnEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let to_map = || -> serde_json::Result<_> {
            Ok(match self {
                Self::Update(update) => tagged("update", serde_json::to_value(update)?),
                Self::Permission(request) => tagged("permission", permission(request)),
                Self::Question(request) => tagged("question", question(request)),
                Self::Ended(ended) => tagged("turnEnded", outcome(ended)?.into()),
            })
        };
        to_map().map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// The fields of an event after its type.
fn tagged(kind: &str, content: Value) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("type".to_owned(), kind.into());
    if let Value::Object(members) = content {
        map.extend(members);
    }
    map
}

fn permission(request: &PermissionRequest) -> Value {
    let mut value = json!({"id": request.id(), "sessionId": request.session_id(), "toolCall": request.tool_call(),
        "options": request.options(), "request": request.raw()});
    if request.tool_call().is_some_and(ToolCall::is_incomplete) {
        value["isToolCallIncomplete"] = true.into();
    }
    value
}

fn question(request: &QuestionRequest) -> Value {
    json!({"id": request.id(), "sessionId": request.session_id(), "request": request.raw()})
}

fn outcome(ended: &Result<TurnOutcome, Error>) -> serde_json::Result<Map<String, Value>> {
    let (name, value) = match ended {
        Ok(outcome) => ("outcome", serde_json::to_value(outcome)?),
        Err(error) => ("error", error_value(error)),
    };
    Ok(Map::from_iter([(name.to_owned(), value)]))
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
    let mut value = json!({"message": error.to_string(), "maybeExecuted": error.maybe_executed()});
    if let Some(rpc) = error.rpc_error() {
        value["rpc"] = json!(rpc);
    }
    if let Error::LoginRequired(login) = error {
        value["loginMethods"] = json!(login.methods);
    }
    if let Some(termination) = error.termination() {
        value["termination"] = json!(termination);
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::client::login::LoginRequired;
    use crate::error::{LostReason, RpcError};
    use crate::event::{Gap, Origin, SessionEnded};
    use crate::termination::{EndReason, TerminatedBy};
    use crate::{ConnectionState, Error, Event, TerminationInfo, Update};

    #[test]
    fn every_event_is_an_object_with_a_type() {
        let info = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
        let ended = SessionEnded { session_id: "s".into(), termination: info.clone(), origin: Origin::Live };
        let rpc = Error::Rpc { error: RpcError::new(-32000, "no"), status: None, executed: false };
        let maybe_executed = rpc.maybe_executed();
        let refusal = RpcError::new(-32000, "no");
        let login = LoginRequired { methods: Vec::new(), error: refusal, executed: false };
        let login = Error::LoginRequired(Box::new(login));
        let missed = Update::missed("s", crate::update::Missed::Gap(Gap { from: 1, to: 2 }));
        let table = [
            (
                Event::Update(missed),
                json!({"type": "update", "sessionId": "s", "origin": "live", "missed": {"gap": {"from": 1, "to": 2}}}),
            ),
            (
                Event::SessionEnded(Box::new(ended)),
                json!({"type": "sessionEnded", "sessionId": "s", "origin": "live",
                    "termination": {"reason": "error", "terminatedBy": "agent"}}),
            ),
            (Event::ServerRestarted, json!({"type": "serverRestarted"})),
            (Event::Gap(Gap { from: 3, to: 5 }), json!({"type": "gap", "from": 3, "to": 5})),
            (Event::Lagged(7), json!({"type": "lagged", "count": 7})),
            (
                Event::Connection(ConnectionState::Lost(LostReason::ServerGone)),
                json!({"type": "connection", "state": "lost", "reason": LostReason::ServerGone.to_string()}),
            ),
            (
                Event::Connection(ConnectionState::AgentEnded(Box::new(info))),
                json!({"type": "connection", "state": "agentEnded",
                    "termination": {"reason": "error", "terminatedBy": "agent"}}),
            ),
            (
                Event::ResponseLost { method: "m".into(), error: rpc },
                json!({"type": "responseLost", "method": "m", "error": {"message": "no (code -32000)",
                    "maybeExecuted": maybe_executed, "rpc": {"code": -32000, "message": "no"}}}),
            ),
            (
                Event::ResponseLost { method: "m".into(), error: login },
                json!({"type": "responseLost", "method": "m", "error": {"message": "the agent requires a login",
                    "maybeExecuted": false, "rpc": {"code": -32000, "message": "no"}, "loginMethods": []}}),
            ),
            (
                Event::Other { method: "_x".into(), params: json!({"a": 1}), origin: Origin::Replayed },
                json!({"type": "other", "method": "_x", "params": {"a": 1}, "origin": "replayed"}),
            ),
        ];
        for (event, expected) in table {
            let written: Value = serde_json::to_value(&event).unwrap();
            assert_eq!(written, expected, "{event:?}");
        }
    }
}
