//! The severity of results.

use std::collections::BTreeMap;

use super::{AgentResult, ThreadEntry, TurnFailure};

/// The severity of a run's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// The run completed.
    Success,
    /// The run was stopped on purpose. This is not an error.
    Stopped,
    /// Something failed, and the conversation can continue.
    Recoverable,
    /// A failure stopped the run.
    Terminal,
}

/// The rules that classify the end of a run as a thread entry.
///
/// - A result with the subtype `success` is shown as the agent's response.
/// - `error_during_execution`, `max_tokens`, `refusal`, tool errors, and subtypes that explicitly declare no error
///   are shown inline: the conversation continues.
/// - `error_max_turns`, a missing subtype, and every other subtype that does not declare "no error" stop the
///   run.
/// - A failed turn is shown inline if it has a structured cause, such as a denied tool. Without one, or if
///   the agent exited before its response, it stops the run.
/// - A requested end and the subtype `cancelled` are not errors.
///
/// The name of a subtype takes precedence over its error flag, because agents also set the flag on
/// recoverable failures. New subtypes are registered by name:
///
/// ```
/// use sandbox_agent_sdk::thread::{AgentResult, ResultRules, Severity, ThreadEntryKind};
///
/// let rules = ResultRules::default().with_subtype("error_rate_limited", Severity::Recoverable);
/// let entry = rules.classify_result(&AgentResult::new("error_rate_limited").with_body("slow down"));
/// assert_eq!(entry.kind, ThreadEntryKind::Thought);
/// assert_eq!(entry.body, "❌ slow down");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultRules {
    by_subtype: BTreeMap<String, Severity>,
}

impl ResultRules {
    /// Sets the severity of a subtype, known or unknown.
    #[must_use]
    pub fn with_subtype(mut self, subtype: impl Into<String>, severity: Severity) -> Self {
        self.by_subtype.insert(subtype.into(), severity);
        self
    }

    /// Returns the severity of a result.
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

    /// Classifies an agent's result.
    #[must_use]
    pub fn classify_result(&self, result: &AgentResult) -> ThreadEntry {
        let severity = self.severity(result);
        let fallback = || match (severity, result.subtype.as_deref()) {
            (Severity::Success, _) => String::new(),
            (_, Some(subtype)) if !subtype.trim().is_empty() => format!("the agent ended with {subtype}"),
            _ => "the agent ended without a reason".to_owned(),
        };
        let text = result.body.clone().filter(|body| !body.trim().is_empty()).unwrap_or_else(fallback);
        ThreadEntry { result_subtype: result.subtype.clone(), ..ThreadEntry::new(severity, &text) }
    }

    /// Classifies a turn that failed without a result.
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
            // Stop reasons of a turn. The next prompt can continue after the first two.
            ("max_tokens", Severity::Recoverable),
            ("refusal", Severity::Recoverable),
            ("cancelled", Severity::Stopped),
        ];
        Self {
            by_subtype: by_subtype.into_iter().map(|(name, severity)| (name.to_owned(), severity)).collect(),
        }
    }
}

/// Whether "tool" is one of the words of a subtype, as in `tool_error`, `error_tool_denied` or
/// `tool-timeout`.
fn is_about_a_tool(subtype: &str) -> bool {
    subtype.split(['_', '-', '.', '/']).any(|word| word.eq_ignore_ascii_case("tool"))
}
