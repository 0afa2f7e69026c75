//! Tool calls, merged from their updates.

use std::collections::VecDeque;

use crate::update::ToolCall;
use crate::{Update, UpdateKind};

/// How many tool calls of a session are remembered, and how many bytes their updates may take.
const CALLS: usize = 64;
const BYTES: usize = 1 << 20;

/// How many updates of a call are remembered before they are merged.
const UPDATES: usize = 64;

/// The latest tool calls of a session. A permission request includes what was reported about its call before.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    /// The calls; the one with the latest update is the last.
    calls: VecDeque<Call>,
    bytes: usize,
}

/// A tool call. Its updates are merged when it is needed, because most calls never are.
#[derive(Debug, Default)]
struct Call {
    id: String,
    /// What was merged before.
    merged: Option<ToolCall>,
    updates: Vec<Update>,
    bytes: usize,
}

impl ToolCalls {
    /// Applies an update, if it is about a tool call.
    pub(crate) fn learn(&mut self, update: &Update) {
        let Some(tool_call) = tool_call(update) else { return };
        if update.size() > BYTES {
            return;
        }
        let mut call = match self.calls.iter().rposition(|call| call.id == tool_call.id) {
            Some(place) => self.calls.remove(place).unwrap_or_default(),
            None => Call { id: tool_call.id.clone(), ..Call::default() },
        };
        self.bytes -= call.bytes;
        call.bytes += update.size();
        call.updates.push(update.clone());
        if call.updates.len() == UPDATES || call.bytes > BYTES {
            call.merged = call.merge();
            call.updates.clear();
            call.bytes = call.merged.as_ref().map_or(0, ToolCall::size);
        }
        self.bytes += call.bytes;
        self.calls.push_back(call);
        while self.calls.len() > CALLS || self.bytes > BYTES {
            let Some(oldest) = self.calls.pop_front() else { break };
            self.bytes -= oldest.bytes;
        }
    }

    /// Returns a tool call by id.
    pub(crate) fn get(&self, id: &str) -> Option<ToolCall> {
        self.calls.iter().find(|call| call.id == id)?.merge()
    }
}

impl Call {
    /// Merges the updates, the latest first, so that nothing is copied that a later one replaces.
    fn merge(&self) -> Option<ToolCall> {
        let mut reports = self.updates.iter().rev().filter_map(tool_call).chain(&self.merged);
        let mut merged = reports.next()?.clone();
        reports.for_each(|earlier| merged.complete_from(earlier));
        Some(merged)
    }
}

fn tool_call(update: &Update) -> Option<&ToolCall> {
    match update.kind() {
        UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => Some(call),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BYTES, CALLS, ToolCalls, UPDATES};
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

    #[test]
    fn a_call_with_many_updates_is_known_with_its_first_and_its_last() {
        let mut calls = ToolCalls::default();
        calls.learn(&report(json!({"toolCallId": "a", "title": "Run", "content": []}), "tool_call", 100));
        for number in 0..10 * UPDATES {
            let output =
                json!([{"type": "content", "content": {"type": "text", "text": number.to_string()}}]);
            calls.learn(&report(
                json!({"toolCallId": "a", "content": output}),
                "tool_call_update",
                BYTES / 8,
            ));
            calls.learn(&report(json!({"toolCallId": "a", "content": []}), "tool_call_update", BYTES / 8));
            let call = calls.get("a").unwrap();
            assert_eq!(
                (call.title.as_deref(), call.content[0].text()),
                (Some("Run"), Some(&*number.to_string()))
            );
            assert!(calls.bytes <= BYTES, "{number}: {}", calls.bytes);
        }
    }
}
