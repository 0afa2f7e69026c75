//! A whole turn.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::TurnOutcome;
use crate::update::{Missed, ToolCall};
use crate::{Content, Error, Update, UpdateKind};

/// Everything that an agent reported in a turn.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CollectedTurn {
    /// The agent's message.
    pub text: String,
    /// The agent's thoughts.
    pub thoughts: String,
    /// The tool calls, in the order in which they started, each in its last reported state.
    pub tool_calls: Vec<ToolCall>,
    /// The changes of files that tool calls reported, in order.
    pub changes: Vec<FileChange>,
    /// The usage in the response of the turn, as raw JSON; `None` if there is none.
    pub usage: Option<Value>,
    /// How the turn ended; `None` if the turn failed.
    pub outcome: Option<TurnOutcome>,
}

/// A change of a file that a tool call reported.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileChange {
    /// The path of the file.
    pub path: String,
    /// The text before the change; `None` if the file is new.
    pub old_text: Option<String>,
    /// The text after the change.
    pub new_text: String,
    /// The id of the tool call that reported the change.
    pub tool_call_id: String,
}

/// The error of a turn with missing parts, with everything that was received.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IncompleteTurn {
    /// What was received.
    pub collected: CollectedTurn,
    /// The missing parts; empty if the turn reached a time limit.
    pub missing: Vec<Missed>,
    /// The time limit that the turn reached, if it did.
    pub source: Option<Arc<Error>>,
}

impl CollectedTurn {
    pub(super) fn add(&mut self, update: &Update) {
        match update.kind() {
            UpdateKind::Message(chunk) => self.text.push_str(chunk.text().unwrap_or_default()),
            UpdateKind::Thought(chunk) => self.thoughts.push_str(chunk.text().unwrap_or_default()),
            UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => self.add_call(call),
            _ => {}
        }
    }

    fn add_call(&mut self, call: &ToolCall) {
        for content in &call.content {
            let Content::Diff { path, old_text, new_text, .. } = content else { continue };
            let change = FileChange {
                path: path.clone(),
                old_text: old_text.clone(),
                new_text: new_text.clone(),
                tool_call_id: call.id.clone(),
            };
            // An agent reports a change again when the call continues.
            if !self.changes.contains(&change) {
                self.changes.push(change);
            }
        }
        match self.tool_calls.iter_mut().find(|known| known.id == call.id) {
            Some(known) => {
                let earlier = std::mem::replace(known, call.clone());
                known.complete_from(&earlier);
            }
            None => self.tool_calls.push(call.clone()),
        }
    }

    pub(super) fn end(&mut self, outcome: TurnOutcome) {
        self.usage = outcome.raw.get("usage").filter(|usage| !usage.is_null()).cloned();
        self.outcome = Some(outcome);
    }
}

impl fmt::Display for IncompleteTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(_) => f.write_str("the turn reached its deadline or idle timeout before it ended"),
            None => write!(f, "updates of the turn are missing in {} places", self.missing.len()),
        }
    }
}

impl std::error::Error for IncompleteTurn {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
