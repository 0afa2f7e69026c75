//! Classifies the end of an agent's run for a conversation thread.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::TerminationInfo;
use crate::convert::open_enum::open_enum;
use crate::termination::TerminationReport;

mod rules;
#[cfg(test)]
mod tests;

pub use rules::{ResultRules, Severity};

/// The prefix of inline errors, which makes them easy to spot in a thread.
const INLINE_ERROR: &str = "❌ ";

open_enum! {
    /// The kind of a thread entry.
    pub enum ThreadEntryKind {
        /// The agent's response.
        Response = "response",
        /// A note inside the conversation. An error note starts with `❌`.
        Thought = "thought",
        /// An error card for a failure that stopped the run.
        Error = "error",
    }
}

/// The thread entry to show for the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ThreadEntry {
    /// The kind of entry.
    #[serde(rename = "type")]
    pub kind: ThreadEntryKind,
    /// The text to show.
    pub body: String,
    /// The subtype of the agent's result, as reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_subtype: Option<String>,
    /// Whether a failure stopped the run, so that a user must intervene.
    pub is_terminal_error: bool,
}

impl ThreadEntry {
    fn new(severity: Severity, text: &str) -> Self {
        let (kind, body) = match severity {
            Severity::Success => (ThreadEntryKind::Response, text.to_owned()),
            Severity::Stopped => (ThreadEntryKind::Thought, text.to_owned()),
            Severity::Recoverable => (ThreadEntryKind::Thought, inline_error(text)),
            Severity::Terminal => (ThreadEntryKind::Error, text.to_owned()),
        };
        Self { kind, body, result_subtype: None, is_terminal_error: severity == Severity::Terminal }
    }
}

/// The result with which an agent ended a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AgentResult {
    /// The kind of result: `success`, or the name of a failure.
    pub subtype: Option<String>,
    /// Whether the agent reports an error; `None` if the result has no such flag.
    pub is_error: Option<bool>,
    /// The response text, or the agent's message about the failure.
    pub body: Option<String>,
}

impl AgentResult {
    /// Creates a result with a subtype.
    #[must_use]
    pub fn new(subtype: impl Into<String>) -> Self {
        Self { subtype: Some(subtype.into()), ..Self::default() }
    }

    /// Sets the text.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets whether the agent reports an error.
    #[must_use]
    pub fn with_is_error(mut self, is_error: bool) -> Self {
        self.is_error = Some(is_error);
        self
    }

    /// Parses a `result` entry: `subtype`, `is_error`, and the text under `result`, `message`, `error` or
    /// `errors`.
    ///
    /// A field of an unexpected type counts as missing.
    #[must_use]
    pub fn from_value(entry: &Value) -> Self {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        let listed = || {
            let lines: Vec<&str> =
                entry.get("errors")?.as_array()?.iter().filter_map(Value::as_str).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        };
        Self {
            subtype: text("subtype"),
            is_error: entry.get("is_error").or_else(|| entry.get("isError")).and_then(Value::as_bool),
            body: text("result").or_else(|| text("message")).or_else(|| text("error")).or_else(listed),
        }
    }

    /// Converts the stop reason of a turn to a result.
    ///
    /// A turn that ended normally is a `success`. A turn that reached its maximum number of model requests is an
    /// `error_max_turns`. Every other reason is its own subtype.
    #[must_use]
    pub fn from_stop_reason(reason: &str) -> Self {
        Self::new(match reason {
            "end_turn" => "success",
            "max_turn_requests" => "error_max_turns",
            other => other,
        })
    }
}

/// A turn that failed without a result.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TurnFailure {
    /// The error message.
    pub message: String,
    /// Structured details from the agent or the server.
    pub cause: Option<Value>,
    /// How the agent ended, if that is the reason.
    pub termination: Option<TerminationInfo>,
}

impl TurnFailure {
    /// Creates a failure with only a message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None, termination: None }
    }

    /// Adds a structured cause, such as the data of a failed call.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Value>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Adds how the agent ended.
    #[must_use]
    pub fn with_termination(mut self, termination: TerminationInfo) -> Self {
        self.termination = Some(termination);
        self
    }

    /// Returns whether there is a structured cause: a non-empty object or list.
    ///
    /// `agentStderr` does not count: the released server adds old stderr output of the agent to the data of
    /// every error.
    #[must_use]
    pub fn has_structured_cause(&self) -> bool {
        match &self.cause {
            Some(Value::Object(members)) => members.keys().any(|name| name != "agentStderr"),
            Some(Value::Array(items)) => !items.is_empty(),
            _ => false,
        }
    }

    /// Returns how the agent ended, from the field or from the cause. Servers add it to the error data of
    /// calls that failed because of it.
    fn end(&self) -> Option<TerminationInfo> {
        let in_cause =
            || TerminationReport::from_error_data(self.cause.as_ref()?).map(TerminationReport::into_info);
        self.termination.clone().or_else(in_cause)
    }
}

/// The end of an agent as the failure of the running turn.
impl From<TerminationInfo> for TurnFailure {
    fn from(termination: TerminationInfo) -> Self {
        Self::new(format!("the agent ended before its response: {termination}")).with_termination(termination)
    }
}

fn inline_error(text: &str) -> String {
    if text.starts_with(INLINE_ERROR.trim_end()) { text.to_owned() } else { format!("{INLINE_ERROR}{text}") }
}
