//! Completes a turn from the history of its session.

use super::collected::Collector;
use super::{CollectedTurn, Turn};
use crate::update::Missed;
use crate::{Update, UpdateKind};

/// Collects a turn, with what is needed to compare it with the history.
#[derive(Debug)]
pub(super) struct Received {
    collector: Collector,
    holes: Vec<(usize, Missed)>,
}

impl Received {
    pub(super) fn new(limit: usize) -> Self {
        Self { collector: Collector::new(limit), holes: Vec::new() }
    }

    pub(super) fn add(&mut self, update: &Update) {
        if let Some(missed) = missed_in(update) {
            self.holes.push((self.collector.text_length(), missed));
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
    /// Where its text has holes, and what is missing there.
    holes: Vec<(usize, Missed)>,
}

impl ReceivedTurn {
    /// Returns what is missing, as far as the updates say.
    pub(super) fn missing(&self) -> Vec<Missed> {
        self.holes.iter().map(|(_, missed)| *missed).collect()
    }

    /// Whether a turn contains everything that was received, in order.
    fn is_part_of(&self, whole: &CollectedTurn) -> bool {
        let (mut start, mut rest) = (0, whole.text.as_str());
        for end in self.holes.iter().map(|(end, _)| *end).chain([self.collected.text.len()]) {
            let part = self.collected.text[start..end].trim();
            let Some(found) = rest.find(part) else { return false };
            rest = &rest[found + part.len()..];
            start = end;
        }
        let calls = &self.collected.tool_calls;
        calls.iter().all(|call| whole.tool_calls.iter().any(|known| known.id == call.id))
    }
}

impl Turn {
    /// Returns the turn from the agent's own history, if that has all of it.
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
        let (mut whole, None) = whole.finish() else { return None };
        if !received.is_part_of(&whole) {
            return None;
        }
        let mut outcome = received.collected.outcome.clone()?;
        outcome.missing.clear();
        whole.end(outcome);
        Some(whole)
    }
}

/// What is missing here, if anything is.
fn missed_in(update: &Update) -> Option<Missed> {
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
