//! Tool calls, merged from their updates.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use crate::update::ToolCall;
use crate::{Update, UpdateKind};

/// How many tool calls of a session are remembered, and how many bytes their updates may take.
const CALLS: usize = 64;
const BYTES: usize = 1 << 20;

/// For how many calls it is remembered that their reports are not stored any more.
const FORGOTTEN: usize = 1024;

/// How many updates of a call are remembered before they are merged.
const UPDATES: usize = 64;

/// The latest tool calls of a session. A permission request includes what was reported about its call before.
///
/// Reports that take too much memory are not stored. Their call is then incomplete, without any earlier report: an older
/// value is never shown as if it were the current one.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    /// The calls; the one with the latest update is the last.
    calls: VecDeque<Call>,
    bytes: usize,
    hasher: RandomState,
    /// The hashes of the ids of calls that are not stored any more, the oldest first.
    forgotten: VecDeque<u64>,
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
        let mut call = match self.calls.iter().rposition(|call| call.id == tool_call.id) {
            Some(place) => self.calls.remove(place).unwrap_or_default(),
            None => Call {
                id: tool_call.id.clone(),
                merged: self.forgotten_call(&tool_call.id),
                ..Call::default()
            },
        };
        self.bytes -= call.bytes;
        call.add(update);
        self.bytes += call.bytes;
        self.calls.push_back(call);
        while self.calls.len() > CALLS || self.bytes > BYTES {
            let Some(oldest) = self.calls.pop_front() else { break };
            self.bytes -= oldest.bytes;
            self.forget(&oldest.id);
        }
    }

    /// Returns the size of all updates.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a tool call by id. It is incomplete if reports about it are not stored.
    pub(crate) fn get(&self, id: &str) -> Option<ToolCall> {
        match self.calls.iter().find(|call| call.id == id) {
            Some(call) => call.merge(),
            None => self.forgotten_call(id),
        }
    }

    fn forgotten_call(&self, id: &str) -> Option<ToolCall> {
        self.forgotten.contains(&self.hasher.hash_one(id)).then(|| ToolCall::incomplete(id))
    }

    fn forget(&mut self, id: &str) {
        let hash = self.hasher.hash_one(id);
        if self.forgotten.contains(&hash) {
            return;
        }
        if self.forgotten.len() == FORGOTTEN {
            self.forgotten.pop_front();
        }
        self.forgotten.push_back(hash);
    }
}

impl Call {
    /// Adds an update. If the call takes too much memory, it is incomplete from now on.
    fn add(&mut self, update: &Update) {
        self.bytes = self.bytes.saturating_add(update.size());
        self.updates.push(update.clone());
        if self.updates.len() < UPDATES && self.bytes <= BYTES {
            return;
        }
        if update.size() <= BYTES {
            self.merged = self.merge();
            self.bytes = self.merged.as_ref().map_or(0, ToolCall::size);
        }
        if self.bytes > BYTES {
            self.merged = Some(ToolCall::incomplete(&self.id));
            self.bytes = self.id.len();
        }
        self.updates.clear();
    }

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
        assert!(calls.get("a").unwrap().is_incomplete() && calls.calls.len() == CALLS);
        let mut calls = ToolCalls::default();
        calls.learn(&report(json!({"toolCallId": "small", "title": "Edit"}), "tool_call", 10));
        calls.learn(&report(json!({"toolCallId": "large", "title": "Edit"}), "tool_call", BYTES));
        assert_eq!((calls.calls.len(), calls.bytes), (1, BYTES));
        let large = calls.get("large").unwrap();
        assert_eq!((large.title.as_deref(), large.is_incomplete()), (Some("Edit"), false));
        assert!(calls.get("small").unwrap().is_incomplete());
        assert!(calls.get("never reported").is_none());
        let again = json!({"toolCallId": "small", "status": "in_progress"});
        calls.learn(&report(again, "tool_call_update", 10));
        let small = calls.get("small").unwrap();
        assert_eq!(
            (small.is_incomplete(), small.title, small.status),
            (true, None, Some(ToolStatus::InProgress))
        );
    }

    #[test]
    fn a_report_above_the_limit_hides_what_was_reported_before_and_makes_its_call_incomplete() {
        for (size, is_incomplete) in [(BYTES - 101, false), (BYTES - 100, false), (BYTES + 1, true)] {
            let mut calls = ToolCalls::default();
            assert!(calls.get("a").is_none());
            let begins = json!({"toolCallId": "a", "title": "Edit", "rawInput": {"path": "/old"}});
            calls.learn(&report(begins, "tool_call", 100));
            let changes = json!({"toolCallId": "a", "rawInput": {"path": "/new"}});
            calls.learn(&report(changes, "tool_call_update", size));
            let call = calls.get("a").unwrap();
            let input = (!is_incomplete).then(|| json!({"path": "/new"}));
            assert_eq!((call.is_incomplete(), call.input), (is_incomplete, input), "{size}");
            assert!(calls.bytes <= BYTES);
            // What is reported later is shown. The call stays incomplete.
            let later = json!({"toolCallId": "a", "status": "in_progress"});
            calls.learn(&report(later, "tool_call_update", 100));
            let call = calls.get("a").unwrap();
            assert_eq!((call.is_incomplete(), call.status), (is_incomplete, Some(ToolStatus::InProgress)));
        }
    }

    #[test]
    fn a_call_whose_reports_take_too_much_memory_together_is_incomplete() {
        let mut calls = ToolCalls::default();
        for member in ["rawInput", "rawOutput"] {
            let mut large = json!({"toolCallId": "a"});
            large[member] = "x".repeat(BYTES / 3 * 2).into();
            calls.learn(&report(large, "tool_call_update", BYTES / 3 * 2));
        }
        let call = calls.get("a").unwrap();
        assert!(call.is_incomplete() && call.input.is_none() && call.output.is_none());
        assert!(calls.bytes <= BYTES);
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
