//! What a conversation should show when an agent's run ends.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::TerminationInfo;
use crate::convert::open_enum::open_enum;
use crate::termination::TerminationReport;

mod rules;
#[cfg(test)]
mod tests;

pub use rules::{ResultRules, Severity};

/// What every inline error starts with, so that a person scanning a thread finds them.
const INLINE_ERROR: &str = "❌ ";

open_enum! {
    /// The kind of thing a thread shows.
    pub enum ThreadEntryKind {
        /// The agent's answer.
        Response = "response",
        /// A note inside the conversation. One that tells of an error starts with `❌`.
        Thought = "thought",
        /// An error card of its own, for what stopped the run.
        Error = "error",
    }
}

/// What a thread should show for the end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ThreadEntry {
    /// The kind of entry.
    #[serde(rename = "type")]
    pub kind: ThreadEntryKind,
    /// The text to show.
    pub body: String,
    /// The subtype of the agent's result, as the agent gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_subtype: Option<String>,
    /// Whether the run was stopped by a failure, so that somebody has to step in.
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
    /// Whether the agent itself calls it an error. Agents that do not say leave it open.
    pub is_error: Option<bool>,
    /// The answer, or what the agent says about the failure.
    pub body: Option<String>,
}

impl AgentResult {
    /// A result of a subtype.
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

    /// Sets whether the agent calls it an error.
    #[must_use]
    pub fn with_is_error(mut self, is_error: bool) -> Self {
        self.is_error = Some(is_error);
        self
    }

    /// Reads a `result` entry as agents write it: `subtype`, `is_error`, and the text under `result`,
    /// `message`, `error` or `errors`. A member of another type counts as missing.
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

    /// The result that the stop reason of a turn amounts to.
    ///
    /// A turn that came to its end is a `success`, and one that used up its requests is an
    /// `error_max_turns`; every other reason is a subtype of its own.
    #[must_use]
    pub fn from_stop_reason(reason: &str) -> Self {
        Self::new(match reason {
            "end_turn" => "success",
            "max_turn_requests" => "error_max_turns",
            other => other,
        })
    }
}

/// A turn that gave no result.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TurnFailure {
    /// What went wrong, in words.
    pub message: String,
    /// What the agent or its runner says about it in a structured form.
    pub cause: Option<Value>,
    /// How the agent ended, if that is why there is no result.
    pub termination: Option<TerminationInfo>,
}

impl TurnFailure {
    /// A failure of which there are only words.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None, termination: None }
    }

    /// Adds the structured cause, such as the data of a failed call.
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

    /// Whether there is a structured cause: an object or a list that says something.
    ///
    /// The released server adds the agent's old stderr as `agentStderr` to the data of every error, which
    /// says nothing about this one.
    #[must_use]
    pub fn has_structured_cause(&self) -> bool {
        match &self.cause {
            Some(Value::Object(members)) => members.keys().any(|name| name != "agentStderr"),
            Some(Value::Array(items)) => !items.is_empty(),
            _ => false,
        }
    }

    /// How the agent ended, also when only the cause tells of it: servers put it into the data of the calls
    /// that the end made fail.
    fn end(&self) -> Option<TerminationInfo> {
        let in_cause =
            || TerminationReport::from_error_data(self.cause.as_ref()?).map(TerminationReport::into_info);
        self.termination.clone().or_else(in_cause)
    }
}

/// The end of an agent, as the failure of the turn that was running.
impl From<TerminationInfo> for TurnFailure {
    fn from(termination: TerminationInfo) -> Self {
        Self::new(format!("the agent ended before its answer: {termination}")).with_termination(termination)
    }
}

fn inline_error(text: &str) -> String {
    if text.starts_with(INLINE_ERROR.trim_end()) { text.to_owned() } else { format!("{INLINE_ERROR}{text}") }
}
