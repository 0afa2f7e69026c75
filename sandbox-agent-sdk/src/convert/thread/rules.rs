//! Which result is how bad.

use std::collections::BTreeMap;

use super::{AgentResult, ThreadEntry, TurnFailure};

/// How bad the end of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The run gave its answer.
    Success,
    /// The run was stopped on purpose. Nothing is wrong.
    Stopped,
    /// Something failed, and the conversation can go on.
    Recoverable,
    /// The run was stopped by a failure.
    Terminal,
}

/// The rules by which the end of a run becomes an entry of a thread.
///
/// - `success` is the agent's answer.
/// - `error_during_execution`, errors of tools, and subtypes that say explicitly that they are no error are
///   shown inline: the conversation goes on.
/// - `error_max_turns`, a missing subtype, and every other subtype that does not say that it is no error
///   stop the run.
/// - A failed turn is shown inline when it has a structured cause, such as a denied tool. Without one, or
///   when the agent exited before its answer, it stops the run.
/// - An end that was asked for is no error.
///
/// The name of a subtype counts for more than its error flag, because agents set the flag on failures that
/// are recoverable too. New subtypes plug in by name:
///
/// ```
/// use sandbox_agent_sdk::thread::{AgentResult, ResultRules, Severity, ThreadEntryKind};
///
/// let rules = ResultRules::default().with_subtype("error_rate_limited", Severity::Recoverable);
/// let entry = rules.classify_result(&AgentResult::new("error_rate_limited").with_body("slow down"));
/// assert_eq!(entry.kind, ThreadEntryKind::Thought);
/// assert_eq!(entry.body, "❌ slow down");
/// ```
#[derive(Debug, Clone)]
pub struct ResultRules {
    by_subtype: BTreeMap<String, Severity>,
}

impl ResultRules {
    /// Says how bad a subtype is, whether this crate knows it or not.
    #[must_use]
    pub fn with_subtype(mut self, subtype: impl Into<String>, severity: Severity) -> Self {
        self.by_subtype.insert(subtype.into(), severity);
        self
    }

    /// How bad a result is.
    #[must_use]
    pub fn severity(&self, result: &AgentResult) -> Severity {
        let Some(subtype) = result.subtype.as_deref().filter(|subtype| !subtype.trim().is_empty()) else {
            return Severity::Terminal;
        };
        match self.by_subtype.get(subtype) {
            Some(severity) => *severity,
            None if is_about_a_tool(subtype) || result.is_error == Some(false) => Severity::Recoverable,
            None => Severity::Terminal,
        }
    }

    /// What to show for an agent's result.
    #[must_use]
    pub fn classify_result(&self, result: &AgentResult) -> ThreadEntry {
        let severity = self.severity(result);
        let fallback = || match (severity, result.subtype.as_deref()) {
            (Severity::Success, _) => String::new(),
            (_, Some(subtype)) if !subtype.trim().is_empty() => format!("the agent ended with {subtype}"),
            _ => "the agent ended without saying how".to_owned(),
        };
        let text = result.body.clone().filter(|body| !body.trim().is_empty()).unwrap_or_else(fallback);
        ThreadEntry { result_subtype: result.subtype.clone(), ..ThreadEntry::new(severity, &text) }
    }

    /// What to show for a turn that gave no result.
    #[must_use]
    pub fn classify_failure(&self, failure: &TurnFailure) -> ThreadEntry {
        let severity = match failure.end() {
            Some(termination) if termination.requested => Severity::Stopped,
            Some(_) => Severity::Terminal,
            None if failure.has_structured_cause() => Severity::Recoverable,
            None => Severity::Terminal,
        };
        ThreadEntry::new(severity, &failure.message)
    }
}

impl Default for ResultRules {
    fn default() -> Self {
        let by_subtype = [
            ("success", Severity::Success),
            ("error_during_execution", Severity::Recoverable),
            ("error_max_turns", Severity::Terminal),
            // Stop reasons of a turn. In the first two the agent stopped, and the next prompt may go on.
            ("max_tokens", Severity::Recoverable),
            ("refusal", Severity::Recoverable),
            ("cancelled", Severity::Stopped),
        ];
        Self {
            by_subtype: by_subtype.into_iter().map(|(name, severity)| (name.to_owned(), severity)).collect(),
        }
    }
}

/// Whether one of the words of a subtype is "tool", as in `tool_error`, `error_tool_denied` or
/// `tool-timeout`.
fn is_about_a_tool(subtype: &str) -> bool {
    subtype.split(['_', '-', '.', '/']).any(|word| word.eq_ignore_ascii_case("tool"))
}
