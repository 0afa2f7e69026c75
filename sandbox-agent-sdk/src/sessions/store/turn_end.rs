//! The stored end of a turn.

use std::error::Error as StdError;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::RecordPatch;
use crate::convert::text::printable;
use crate::error::RpcError;
use crate::sessions::status::StatusEvent;
use crate::thread::{ResultRules, TurnFailure};
use crate::update::Missed;
use crate::{Error, StopReason, TerminationInfo, TurnOutcome};

/// How a turn ended. This is the payload of an event of the kind `turn_ended`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct TurnEnd {
    /// Why the agent stopped, if it reported a reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The result's subtype: `success`, or the name of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_subtype: Option<String>,
    /// Whether a failure stopped the run, so that a user must intervene.
    pub is_terminal_error: bool,
    /// How the agent ended, if its end ended the turn.
    #[serde(skip_serializing_if = "Option::is_none", alias = "termination")]
    pub termination_info: Option<TerminationInfo>,
    /// The error, if the turn has no result.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "stored_error")]
    pub error: Option<StoredError>,
    /// Whether the agent may have executed the prompt.
    #[serde(default = "assumed")]
    pub executed: bool,
    /// Whether nothing shows that the prompt was sent: the process that stored it has ended, the agent reported nothing,
    /// and the turn did not react to a cancel. Then the prompt is not part of a transcript replay. An agent that works
    /// without reports and ignores cancels may still execute it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unheard: bool,
    /// The agent's response, as received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The updates that the turn's reader missed. If the server still had them, they may be stored nevertheless, even
    /// after this event.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "known_parts")]
    pub missing: Vec<Missed>,
}

impl TurnEnd {
    /// Creates the stored form of a turn's outcome.
    #[must_use]
    pub fn of(outcome: &Result<TurnOutcome, Error>, rules: &ResultRules) -> Self {
        match outcome {
            Ok(outcome) => {
                let result = outcome.to_result();
                let entry = rules.classify_result(&result);
                Self {
                    stop_reason: Some(outcome.stop_reason.clone()),
                    result_subtype: entry.result_subtype,
                    is_terminal_error: entry.is_terminal_error,
                    executed: outcome.sent,
                    answer: Some(outcome.raw.clone()),
                    missing: outcome.missing.clone(),
                    ..Self::default()
                }
            }
            Err(error) => {
                let termination_info = error.termination().cloned();
                let stored = StoredError::of(error);
                let mut failure = TurnFailure::new(stored.message.clone());
                failure.cause = stored.cause.clone();
                failure.termination.clone_from(&termination_info);
                Self {
                    is_terminal_error: rules.classify_failure(&failure).is_terminal_error,
                    termination_info,
                    executed: error.maybe_executed() || error.rpc_error().is_some(),
                    error: Some(stored),
                    ..Self::default()
                }
            }
        }
    }

    /// Returns the status event that the end of the turn causes, if any.
    ///
    /// A result with which the agent ends the run permanently, such as `error_max_turns`, is a fatal error. The end
    /// of an agent, a recoverable failure, and a failure outside the agent, such as a lost connection, do not change
    /// the status.
    #[must_use]
    pub fn status_event(&self) -> Option<StatusEvent> {
        match self {
            Self { termination_info: Some(_), .. } => Some(StatusEvent::AgentExited),
            Self { is_terminal_error: true, error: None, .. } => Some(StatusEvent::FatalError),
            _ => None,
        }
    }

    /// What the end of the turn changes in the record. An agent's end does not change the status, and neither does a
    /// failure that the next prompt may recover from.
    pub(in crate::sessions) fn status_patch(&self) -> RecordPatch {
        let status = self.status_event().filter(|event| *event == StatusEvent::FatalError);
        RecordPatch { status, ..RecordPatch::default() }
    }

    /// Reads the payload of an event. Members of another type count as missing.
    pub(super) fn from_payload(payload: &Value) -> Self {
        serde_json::from_value(payload.clone()).unwrap_or_else(|_| {
            // One member of another type does not hide the others.
            let member = |name: &str| payload.get(name);
            Self {
                stop_reason: member("stopReason").and_then(Value::as_str).map(StopReason::from),
                error: member("error").cloned().and_then(read_error),
                executed: member("executed").and_then(Value::as_bool).unwrap_or(true),
                unheard: member("unheard").and_then(Value::as_bool).unwrap_or_default(),
                ..Self::default()
            }
        })
    }
}

/// Values of later versions are omitted.
fn known_parts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Missed>, D::Error> {
    let parts = Vec::<Value>::deserialize(deserializer)?;
    Ok(parts.into_iter().filter_map(|part| serde_json::from_value(part).ok()).collect())
}

/// Earlier versions did not store whether a prompt with a response was executed.
fn assumed() -> bool {
    true
}

/// A stored error: its text, its cause and its classification.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", default)]
#[error("{}", printable(message))]
#[non_exhaustive]
pub struct StoredError {
    /// The text of the error.
    pub message: String,
    /// The texts of the error's sources, nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The structured cause: the data of the agent's error response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Value>,
    /// The agent's error response, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcError>,
    /// The value of [`Error::is_retryable`].
    pub is_retryable: bool,
    /// The value of [`Error::is_terminal`].
    pub is_terminal: bool,
    /// The value of [`Error::maybe_executed`].
    pub maybe_executed: bool,
    /// The value of [`Error::is_timeout`].
    pub is_timeout: bool,
}

impl StoredError {
    /// Creates the stored form of an error.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        let sources = std::iter::successors(error.source(), |source| (*source).source());
        let rpc = error.rpc_error().cloned();
        Self {
            message: error.to_string(),
            sources: sources.map(ToString::to_string).collect(),
            cause: rpc.as_ref().and_then(|rpc| rpc.data.clone()),
            rpc,
            is_retryable: error.is_retryable(),
            is_terminal: error.is_terminal(),
            maybe_executed: error.maybe_executed(),
            is_timeout: error.is_timeout(),
        }
    }
}

/// Reads a stored error. Earlier versions stored the text alone.
fn read_error(value: Value) -> Option<StoredError> {
    match value {
        Value::String(message) => Some(StoredError { message, ..StoredError::default() }),
        whole => serde_json::from_value(whole).ok(),
    }
}

fn stored_error<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<StoredError>, D::Error> {
    Value::deserialize(deserializer).map(read_error)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{StoredError, TurnEnd};
    use crate::error::RpcError;
    use crate::sessions::status::{SessionStatus, StatusEvent};
    use crate::termination::{EndReason, TerminatedBy};
    use crate::thread::ResultRules;
    use crate::{Error, StopReason, TerminationInfo, TurnOutcome};

    fn ended(reason: &str) -> Result<TurnOutcome, Error> {
        let raw = json!({"stopReason": reason, "_meta": {"n": 1}});
        Ok(TurnOutcome::read(raw, Vec::new()))
    }

    /// The members of a result in a response decide, because a stop reason says less.
    #[test]
    fn the_members_of_a_result_decide_how_a_turn_ended() {
        let table = [
            (json!({"subtype": "success"}), Some("success"), false),
            (json!({"subtype": "error_during_execution"}), Some("error_during_execution"), false),
            (json!({"subtype": "error_max_turns"}), Some("error_max_turns"), true),
            (json!({"subtype": "error_new", "is_error": true}), Some("error_new"), true),
            (json!({"subtype": "error_new", "is_error": false}), Some("error_new"), false),
            (json!({"is_error": true}), None, true),
            (json!({"is_error": false}), Some("success"), false),
            (json!({"subtype": 7, "is_error": "no"}), Some("success"), false),
            (
                json!({"stopReason": "cancelled", "subtype": "error_new", "is_error": true}),
                Some("cancelled"),
                false,
            ),
        ];
        for (mut raw, subtype, is_terminal) in table {
            if raw.get("stopReason").is_none() {
                raw["stopReason"] = "end_turn".into();
            }
            let end = TurnEnd::of(&Ok(TurnOutcome::read(raw.clone(), Vec::new())), &ResultRules::default());
            assert_eq!(end.result_subtype.as_deref(), subtype, "{raw}");
            assert_eq!(end.is_terminal_error, is_terminal, "{raw}");
        }
    }

    fn refused(data: Option<Value>) -> Error {
        let mut error = RpcError::new(-32603, "no");
        error.data = data;
        Error::Rpc { error, status: None, executed: true }
    }

    #[test]
    fn the_end_of_a_turn_moves_the_session_as_specified() {
        let crash = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
        let fatal = Some(StatusEvent::FatalError);
        let exited = Some(StatusEvent::AgentExited);
        let table = [
            (ended("end_turn"), Some("success"), false, None),
            (ended("max_turn_requests"), Some("error_max_turns"), true, fatal),
            (ended("something_new"), Some("something_new"), true, fatal),
            (ended("refusal"), Some("refusal"), false, None),
            (ended("max_tokens"), Some("max_tokens"), false, None),
            (ended("cancelled"), Some("cancelled"), false, None),
            (Err(refused(Some(json!({"tool": "x"})))), None, false, None),
            (Err(refused(None)), None, true, None),
            (Err(Error::NotConnected), None, true, None),
            (Err(Error::ended(Some("s"), crash, true)), None, true, exited),
        ];
        for (outcome, subtype, is_terminal, event) in table {
            let end = TurnEnd::of(&outcome, &ResultRules::default());
            assert_eq!(end.result_subtype.as_deref(), subtype, "{outcome:?}");
            assert_eq!((end.is_terminal_error, end.status_event()), (is_terminal, event), "{outcome:?}");
            let after = event.map_or(Ok(SessionStatus::Active), |event| SessionStatus::Active.after(event));
            let is_moved = event == Some(StatusEvent::FatalError);
            assert_eq!(after.unwrap() == SessionStatus::Error, is_moved, "{outcome:?}");
        }
    }

    #[test]
    fn an_end_is_read_as_it_was_stored() {
        let crash = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
        for outcome in [
            ended("end_turn"),
            Err(refused(Some(json!({"tool": "x"})))),
            Err(Error::ended(None, crash, true)),
            Err(Error::NotConnected),
        ] {
            let end = TurnEnd::of(&outcome, &ResultRules::default());
            let payload = serde_json::to_value(&end).unwrap();
            assert_eq!(TurnEnd::from_payload(&payload), end, "{payload}");
            assert_eq!(payload["isTerminalError"], end.is_terminal_error);
            assert_eq!(payload.get("terminationInfo").is_some(), end.termination_info.is_some());
        }
    }

    #[test]
    fn a_stored_error_keeps_its_cause_and_flags() {
        let error = refused(Some(json!({"tool": "x"})));
        let stored = StoredError::of(&error);
        assert_eq!(stored.cause, Some(json!({"tool": "x"})));
        assert_eq!(stored.rpc.as_ref().map(|rpc| rpc.code), Some(-32603));
        assert!(stored.maybe_executed && !stored.is_retryable && !stored.is_terminal);
        assert_eq!(stored.to_string(), error.to_string());
        let lost = StoredError::of(&Error::NotConnected);
        assert!(lost.is_terminal && !lost.maybe_executed);
    }

    #[test]
    fn ends_of_earlier_versions_are_read() {
        let old = json!({"stopReason": "end_turn", "answer": {"stopReason": "end_turn"}});
        let end = TurnEnd::from_payload(&old);
        assert_eq!((end.stop_reason, end.answer.is_some()), (Some(StopReason::from("end_turn")), true));
        assert!(end.executed);
        let old = json!({"error": "it broke", "termination": {"reason": "error", "exitCode": 3}, "executed": false});
        let end = TurnEnd::from_payload(&old);
        assert_eq!(end.error.map(|error| error.message).as_deref(), Some("it broke"));
        assert_eq!(end.termination_info.and_then(|info| info.exit_code), Some(3));
        assert!(!end.executed);
        for damaged in [json!(7), json!(null), json!({"stopReason": 7, "error": "x", "executed": true})] {
            TurnEnd::from_payload(&damaged);
        }
        let end =
            TurnEnd::from_payload(&json!({"answer": 1, "isTerminalError": "no", "stopReason": "refusal"}));
        assert_eq!(end.stop_reason, Some(StopReason::from("refusal")));
    }
}
