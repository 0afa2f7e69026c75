//! Tool calls, merged from their updates.

use std::collections::VecDeque;

use crate::update::ToolCall;
use crate::{Update, UpdateKind};

/// How many tool calls of a session are remembered, and how many bytes their updates may take.
const CALLS: usize = 64;
const BYTES: usize = 1 << 20;

/// The latest tool calls of a session. A permission request is shown with what was reported before.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    /// The oldest first, with the memory of its updates.
    calls: VecDeque<(ToolCall, usize)>,
    bytes: usize,
}

impl ToolCalls {
    /// Applies an update, if it is about a tool call.
    pub(crate) fn learn(&mut self, update: &Update) {
        let (UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call)) = update.kind() else { return };
        if update.size() > BYTES {
            return;
        }
        let known = self.calls.iter().position(|(known, _)| known.id == call.id);
        let (mut merged, bytes) = match known.and_then(|place| self.calls.remove(place)) {
            Some((mut known, bytes)) => {
                merge_tool_call(&mut known, call.clone());
                (known, bytes)
            }
            None => (call.clone(), 0),
        };
        merged.id.clone_from(&call.id);
        self.bytes += update.size();
        self.calls.push_back((merged, bytes + update.size()));
        while self.calls.len() > CALLS || self.bytes > BYTES {
            let Some((_, bytes)) = self.calls.pop_front() else { break };
            self.bytes -= bytes;
        }
    }

    /// Returns a tool call by id.
    pub(crate) fn get(&self, id: &str) -> Option<ToolCall> {
        self.calls.iter().find(|(call, _)| call.id == id).map(|(call, _)| call.clone())
    }
}

/// Merges a later update into a tool call. Fields that the update does not contain are unchanged.
pub(crate) fn merge_tool_call(call: &mut ToolCall, report: ToolCall) {
    fn replace<T>(slot: &mut Option<T>, value: Option<T>) {
        if value.is_some() {
            *slot = value;
        }
    }
    replace(&mut call.title, report.title);
    replace(&mut call.kind, report.kind);
    replace(&mut call.status, report.status);
    replace(&mut call.input, report.input);
    replace(&mut call.output, report.output);
    if !report.content.is_empty() {
        call.content = report.content;
    }
    if !report.locations.is_empty() {
        call.locations = report.locations;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BYTES, CALLS, ToolCalls};
    use crate::Update;
    use crate::event::Origin;
    use crate::update::{ToolKind, ToolStatus};

    fn report(mut update: Value, kind: &str, size: usize) -> Update {
        update["sessionUpdate"] = kind.into();
        Update::read(json!({"sessionId": "s", "update": update}), Origin::Live, size)
    }

    #[test]
    fn reports_are_merged_by_their_id_and_kept_within_bounds() {
        let mut calls = ToolCalls::default();
        let begins = json!({"toolCallId": "a", "title": "Edit", "kind": "edit", "rawInput": {"path": "/x"}});
        calls.learn(&report(begins, "tool_call", 100));
        calls.learn(&report(json!({"toolCallId": "a", "status": "in_progress"}), "tool_call_update", 100));
        let call = calls.get("a").unwrap();
        assert_eq!((call.title.as_deref(), call.kind), (Some("Edit"), Some(ToolKind::Edit)));
        assert_eq!((call.status, call.input), (Some(ToolStatus::InProgress), Some(json!({"path": "/x"}))));
        for number in 0..CALLS {
            let other = json!({"toolCallId": format!("b{number}")});
            assert_eq!(calls.get("a").is_some(), number < CALLS);
            calls.learn(&report(other, "tool_call", 10));
        }
        assert!(calls.get("a").is_none() && calls.calls.len() == CALLS);
        calls.learn(&report(json!({"toolCallId": "large"}), "tool_call", BYTES));
        assert_eq!((calls.calls.len(), calls.bytes), (1, BYTES));
        calls.learn(&report(json!({"toolCallId": "larger"}), "tool_call", BYTES + 1));
        assert!(calls.get("larger").is_none());
    }
}
