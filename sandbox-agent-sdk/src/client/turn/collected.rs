//! A whole turn.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::TurnOutcome;
use super::limits::is_limit;
use crate::update::{Missed, ToolCall};
use crate::{Content, Error, Update, UpdateKind};

/// Everything that an agent reported in a turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
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
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
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

/// A turn that failed or has missing parts, with everything that was received.
///
/// [`Turn::collect_partial`](crate::Turn::collect_partial) returns it. If the turn failed, `?` converts it to `source`.
/// If updates are missing, or if the deadline or the idle timeout expired, `?` converts it to
/// [`Error::IncompleteTurn`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct IncompleteTurn {
    /// What was received.
    pub collected: CollectedTurn,
    /// The parts that are known to be missing. Updates that exceed
    /// [`Limits::turn`](crate::limits::Limits#structfield.turn) are [`Missed::Lagged`].
    pub missing: Vec<Missed>,
    /// Why the turn failed, for example a timeout; `None` if it ended with missing updates.
    pub source: Option<Arc<Error>>,
}

/// Collects a turn within a limit.
#[derive(Debug)]
pub(super) struct Collector {
    collected: CollectedTurn,
    /// How many more bytes fit.
    room: usize,
    /// Where each tool call is, and how many bytes it counts.
    calls: HashMap<String, (usize, usize)>,
    /// The changes, by their hashes.
    changes: HashSet<u64>,
    hasher: RandomState,
    /// How many updates did not fit.
    dropped: u64,
}

impl Collector {
    pub(super) fn new(limit: usize) -> Self {
        let (collected, hasher) = (CollectedTurn::default(), RandomState::new());
        Self { collected, room: limit, calls: HashMap::new(), changes: HashSet::new(), hasher, dropped: 0 }
    }

    pub(super) fn add(&mut self, update: &Update) {
        let fits = match update.kind() {
            UpdateKind::Message(chunk) => {
                let text = chunk.text().unwrap_or_default();
                self.reserve(text.len()) && {
                    self.collected.text.push_str(text);
                    true
                }
            }
            UpdateKind::Thought(chunk) => {
                let text = chunk.text().unwrap_or_default();
                self.reserve(text.len()) && {
                    self.collected.thoughts.push_str(text);
                    true
                }
            }
            UpdateKind::ToolCall(call) | UpdateKind::ToolCallUpdate(call) => self.add_call(call),
            _ => true,
        };
        self.dropped += u64::from(!fits);
    }

    /// Returns the lengths of the text and of the thoughts so far.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.collected.text.len(), self.collected.thoughts.len())
    }

    /// Returns the turn, and what is missing of it because of the limit.
    pub(super) fn finish(self) -> (CollectedTurn, Option<Missed>) {
        (self.collected, (self.dropped > 0).then_some(Missed::Lagged(self.dropped)))
    }

    /// Reserves memory; `false` if the limit would be exceeded.
    fn reserve(&mut self, bytes: usize) -> bool {
        let left = self.room.checked_sub(bytes);
        self.room = left.unwrap_or(self.room);
        left.is_some()
    }

    /// Adds a tool call; `false` if a part of it does not fit.
    fn add_call(&mut self, call: &ToolCall) -> bool {
        let known = self.calls.get(&call.id).copied();
        let (index, counted) = known.unwrap_or((self.collected.tool_calls.len(), 0));
        let mut merged = call.clone();
        if let Some(earlier) = self.collected.tool_calls.get(index) {
            merged.complete_from(earlier);
        }
        // The state of a call replaces the one before.
        let size = size_of::<ToolCall>() + merged.size();
        if !self.reserve(size.saturating_sub(counted)) {
            return false;
        }
        self.room += counted.saturating_sub(size);
        let mut fits = true;
        for content in &call.content {
            let Content::Diff { path, old_text, new_text, .. } = content else { continue };
            let change = FileChange {
                path: path.clone(),
                old_text: old_text.clone(),
                new_text: new_text.clone(),
                tool_call_id: call.id.clone(),
            };
            // An agent reports a change again when the call continues.
            let hash = self.hasher.hash_one(&change);
            if self.changes.contains(&hash) {
                continue;
            }
            let old_bytes = change.old_text.as_ref().map_or(0, String::len);
            if self.reserve(change.path.len() + old_bytes + change.new_text.len()) {
                self.changes.insert(hash);
                self.collected.changes.push(change);
            } else {
                fits = false;
            }
        }
        match self.collected.tool_calls.get_mut(index) {
            Some(known) => *known = merged,
            None => self.collected.tool_calls.push(merged),
        }
        self.calls.insert(call.id.clone(), (index, size));
        fits
    }
}

impl CollectedTurn {
    pub(super) fn end(&mut self, outcome: TurnOutcome) {
        self.usage = outcome.raw.get("usage").filter(|usage| !usage.is_null()).cloned();
        self.outcome = Some(outcome);
    }
}

impl fmt::Display for IncompleteTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.source, self.missing.len()) {
            (Some(error), _) if is_limit(error) => {
                f.write_str("the turn reached its deadline or idle timeout before it ended")
            }
            (Some(_), _) => f.write_str("the turn failed"),
            (None, 1) => f.write_str("updates of the turn are missing at 1 point"),
            (None, count) => write!(f, "updates of the turn are missing at {count} points"),
        }
    }
}

impl std::error::Error for IncompleteTurn {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

impl From<Box<IncompleteTurn>> for Error {
    fn from(turn: Box<IncompleteTurn>) -> Self {
        match turn.source {
            Some(error) if !is_limit(&error) => Arc::unwrap_or_clone(error),
            source => Self::IncompleteTurn(Box::new(IncompleteTurn { source, ..*turn })),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Collector;
    use crate::Update;
    use crate::event::Origin;

    fn report(fields: Value) -> Update {
        let mut update = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t"});
        update.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let update = json!({"sessionId": "s", "update": update});
        let size = update.to_string().len();
        Update::read(update, Origin::Live, size)
    }

    #[test]
    fn fields_of_a_tool_call_that_arrive_one_after_the_other_all_count() {
        let text = "x".repeat(1 << 10);
        let known = ["title", "name", "rawInput", "rawOutput", "_meta"].map(str::to_owned);
        for names in [known.to_vec(), (0..100).map(|number| format!("odd{number}")).collect()] {
            let mut collector = Collector::new(3 << 10);
            let updates: Vec<_> = names.iter().map(|name| report(json!({name: text}))).collect();
            updates.iter().for_each(|update| collector.add(update));
            let (turn, missing) = collector.finish();
            assert_eq!(turn.tool_calls.len(), 1);
            let stored = serde_json::to_string(&turn.tool_calls).unwrap().len();
            assert!(stored > 1 << 10 && stored <= 3 << 10, "{stored}");
            assert!(missing.is_some());
        }
    }

    #[test]
    fn a_field_that_is_replaced_counts_once_and_frees_what_it_took() {
        let mut collector = Collector::new(5 << 10);
        for size in [3 << 10, 4 << 10, 1, 4 << 10] {
            collector.add(&report(json!({"rawOutput": "x".repeat(size)})));
        }
        let room = collector.room;
        collector.add(&report(json!({"rawOutput": ""})));
        assert!(collector.room >= room + (4 << 10));
        assert_eq!(collector.finish().1, None);
    }
}
