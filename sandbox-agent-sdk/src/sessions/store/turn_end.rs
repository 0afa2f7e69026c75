//! How a turn ended, as it is stored.

use std::error::Error as StdError;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    AgentResult, Error, ResultRules, RpcError, StopReason, TerminationInfo, TurnFailure, TurnOutcome,
};

/// How a turn ended: the payload of an event of the kind `turn_ended`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct TurnEnd {
    /// Why the agent stopped, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The result's subtype: `success`, or the name of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_subtype: Option<String>,
    /// Whether a failure ended the run, so that someone has to intervene.
    pub is_terminal_error: bool,
    /// How the agent ended, if that ended the turn.
    #[serde(skip_serializing_if = "Option::is_none", alias = "termination")]
    pub termination_info: Option<TerminationInfo>,
    /// Why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StoredError>,
    /// Whether the agent may have run the prompt.
    pub executed: bool,
    /// The agent's response, as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
}

impl TurnEnd {
    /// What is stored of the outcome of a turn.
    #[must_use]
    pub fn of(outcome: &Result<TurnOutcome, Error>, rules: &ResultRules) -> Self {
        match outcome {
            Ok(outcome) => {
                let result = AgentResult::from_stop_reason(outcome.stop_reason.as_str());
                let entry = rules.classify_result(&result);
                Self {
                    stop_reason: Some(outcome.stop_reason.clone()),
                    result_subtype: entry.result_subtype,
                    is_terminal_error: entry.is_terminal_error,
                    executed: true,
                    answer: Some(outcome.raw.clone()),
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

    /// Reads the payload of an event. Members of another type count as missing.
    pub(super) fn from_payload(payload: &Value) -> Self {
        serde_json::from_value(payload.clone()).unwrap_or_else(|_| {
            // One member of another type does not hide the others.
            let member = |name: &str| payload.get(name);
            Self {
                stop_reason: member("stopReason").and_then(Value::as_str).map(StopReason::from),
                error: member("error").and_then(|error| serde_json::from_value(error.clone()).ok()),
                executed: member("executed").and_then(Value::as_bool).unwrap_or(true),
                ..Self::default()
            }
        })
    }
}

/// An error as it is stored: its text, its cause and what [`Error`] says about it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", default, from = "Form")]
#[error("{message}")]
#[non_exhaustive]
pub struct StoredError {
    /// The error as text.
    pub message: String,
    /// The error's sources as text, the nearest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<String>,
    /// The structured cause: the data of an error response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Value>,
    /// The agent's error response, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<RpcError>,
    /// As [`Error::is_retryable`].
    pub is_retryable: bool,
    /// As [`Error::is_terminal`].
    pub is_terminal: bool,
    /// As [`Error::maybe_executed`].
    pub maybe_executed: bool,
    /// As [`Error::is_timeout`].
    pub is_timeout: bool,
}

impl StoredError {
    /// What is stored of an error.
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

/// The forms in which errors are stored: earlier versions stored the text alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Text(String),
    #[serde(rename_all = "camelCase")]
    Whole {
        message: String,
        #[serde(default)]
        sources: Vec<String>,
        #[serde(default)]
        cause: Option<Value>,
        #[serde(default)]
        rpc: Option<RpcError>,
        #[serde(default)]
        is_retryable: bool,
        #[serde(default)]
        is_terminal: bool,
        #[serde(default)]
        maybe_executed: bool,
        #[serde(default)]
        is_timeout: bool,
    },
}

impl From<Form> for StoredError {
    fn from(form: Form) -> Self {
        match form {
            Form::Text(message) => Self { message, ..Self::default() },
            Form::Whole {
                message,
                sources,
                cause,
                rpc,
                is_retryable,
                is_terminal,
                maybe_executed,
                is_timeout,
            } => Self { message, sources, cause, rpc, is_retryable, is_terminal, maybe_executed, is_timeout },
        }
    }
}
