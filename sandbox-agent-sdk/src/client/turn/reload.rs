//! Completes a turn from the history of its session.

use super::collected::Collector;
use super::{CollectedTurn, Turn};
use crate::update::Missed;
use crate::{Update, UpdateKind};

/// Collects a turn, with what is needed to compare it with the history.
#[derive(Debug)]
pub(super) struct Received {
    collector: Collector,
    holes: Vec<Hole>,
}

/// A hole in a turn: the lengths of its text and its thoughts there, and what is missing.
#[derive(Debug)]
struct Hole {
    text: usize,
    thoughts: usize,
    missed: Missed,
}

impl Received {
    pub(super) fn new(limit: usize) -> Self {
        Self { collector: Collector::new(limit), holes: Vec::new() }
    }

    pub(super) fn add(&mut self, update: &Update) {
        if let Some(missed) = missed_in(update) {
            let (text, thoughts) = self.collector.lengths();
            self.holes.push(Hole { text, thoughts, missed });
        }
        self.collector.add(update);
    }

    /// Returns the turn, and what is missing of it because of the limit.
    pub(super) fn finish(self) -> (ReceivedTurn, Option<Missed>) {
        let (collected, excess) = self.collector.finish();
        (ReceivedTurn { collected, holes: self.holes }, excess)
    }
}

/// What was received of a turn.
#[derive(Debug)]
pub(super) struct ReceivedTurn {
    pub(super) collected: CollectedTurn,
    holes: Vec<Hole>,
}

impl ReceivedTurn {
    /// Returns what is missing, according to the updates.
    pub(super) fn missing(&self) -> Vec<Missed> {
        self.holes.iter().map(|hole| hole.missed).collect()
    }

    /// Adds what was received to a turn of the history. Agents may not replay thoughts and parts of tool calls. Returns
    /// `None` if the turns contradict each other, or have nothing in common: the history may end with an earlier turn
    /// with the same prompt.
    fn complete(&self, mut whole: CollectedTurn) -> Option<CollectedTurn> {
        let received = &self.collected;
        let has_text = !received.text.trim().is_empty();
        let has_thoughts = !received.thoughts.trim().is_empty() && !whole.thoughts.trim().is_empty();
        if !has_text && !has_thoughts && received.tool_calls.is_empty() {
            return None;
        }
        if !contains_parts(&whole.text, &received.text, self.holes.iter().map(|hole| hole.text)) {
            return None;
        }
        if !contains_parts(&whole.thoughts, &received.thoughts, self.holes.iter().map(|hole| hole.thoughts)) {
            if !received.thoughts.contains(whole.thoughts.trim()) {
                return None;
            }
            whole.thoughts.clone_from(&received.thoughts);
        }
        for call in &received.tool_calls {
            whole.tool_calls.iter_mut().find(|known| known.id == call.id)?.complete_from(call);
        }
        for change in &received.changes {
            if !whole.changes.contains(change) {
                whole.changes.push(change.clone());
            }
        }
        Some(whole)
    }
}

/// Whether a text contains the parts of another one, which is cut at these positions, in order.
fn contains_parts(whole: &str, received: &str, cuts: impl Iterator<Item = usize>) -> bool {
    let (mut start, mut rest) = (0, whole);
    for end in cuts.chain([received.len()]) {
        let part = received[start..end].trim();
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
        start = end;
    }
    true
}

impl Turn {
    /// Returns the turn from the agent's own history, completed by what was received.
    pub(super) async fn reloaded(&self, received: &ReceivedTurn) -> Option<CollectedTurn> {
        // A prompt that was sent again is in another session.
        let prompt = self.prompt.as_deref().filter(|_| *self.current.id() == *self.session.id())?;
        let reloaded = match self.session.reload().await {
            Ok(reloaded) => reloaded,
            Err(error) => {
                tracing::debug!(error = %crate::convert::text::OneLine(&error), "an incomplete turn could not be loaded again");
                return None;
            }
        };
        let mut whole = Collector::new(self.session.client().inner().options.limits.turn);
        turn_of(reloaded.history(), prompt)?.iter().for_each(|update| whole.add(update));
        let (whole, None) = whole.finish() else { return None };
        let mut whole = received.complete(whole)?;
        let mut outcome = received.collected.outcome.clone()?;
        outcome.missing.clear();
        whole.end(outcome);
        Some(whole)
    }
}

/// What is missing here, if anything is.
pub(super) fn missed_in(update: &Update) -> Option<Missed> {
    match update.kind() {
        UpdateKind::Missed(missed) => Some(*missed),
        UpdateKind::Unreadable { .. } => Some(Missed::Malformed),
        _ => None,
    }
}

/// Returns the updates after the last message of the user, if that is the prompt and the history is complete.
///
/// An agent may not have stored the turn, or replay the results of tools as messages of the user.
fn turn_of<'a>(history: &'a [Update], prompt: &str) -> Option<&'a [Update]> {
    if prompt.trim().is_empty() || history.iter().any(|update| missed_in(update).is_some()) {
        return None;
    }
    let last = history.iter().rposition(|update| matches!(update.kind(), UpdateKind::UserMessage(_)))?;
    let mut chunks = Vec::new();
    let mut id = None;
    for update in history[..=last].iter().rev().filter(|update| update.is_conversation()) {
        let UpdateKind::UserMessage(chunk) = update.kind() else { break };
        if chunk.message_id.is_some()
            && id.replace(&chunk.message_id).is_some_and(|id| *id != chunk.message_id)
        {
            break;
        }
        chunks.push(chunk.text().unwrap_or_default());
    }
    let message: String = chunks.into_iter().rev().collect();
    (message.trim() == prompt.trim()).then(|| &history[last + 1..])
}
