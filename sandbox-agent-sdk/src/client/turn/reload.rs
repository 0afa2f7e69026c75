//! Completes a turn from the history of its session.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::OnceLock;

use super::collected::Collector;
use super::{CollectedTurn, Turn};
use crate::update::Missed;
use crate::{Update, UpdateKind};

/// How many message ids of a turn are remembered.
const MESSAGES: usize = 64;

/// What is needed to find a turn in the history of its session.
#[derive(Debug)]
pub(super) struct Reload {
    /// The text of the prompt.
    pub(super) prompt: String,
    /// How many earlier prompts of the session had the same text, if all of them are known.
    pub(super) earlier: OnceLock<usize>,
}

impl Reload {
    pub(super) fn of(prompt: String) -> Self {
        Self { prompt, earlier: OnceLock::new() }
    }

    /// Returns the updates after the last message of the user, if they are certainly those of the turn and the history is
    /// complete.
    ///
    /// An agent may not have stored the turn, or replay the results of tools as messages of the user. The text of the
    /// prompt alone proves nothing: an earlier turn may have the same one.
    fn turn_in<'a>(&self, history: &'a [Update], received: &ReceivedTurn) -> Option<&'a [Update]> {
        let prompt = self.prompt.trim();
        if prompt.is_empty() || history.iter().any(|update| missed_in(update).is_some()) {
            return None;
        }
        let messages = user_messages(history);
        let last = messages.last().filter(|last| last.text.trim() == prompt)?;
        let same = messages.iter().filter(|message| message.text.trim() == prompt).count();
        let has_more = self.earlier.get().is_some_and(|earlier| same > *earlier);
        let shares_message = || {
            history[last.at.start..].iter().filter_map(message_id).any(|id| received.messages.contains(id))
        };
        (has_more || shares_message()).then(|| &history[last.at.end..])
    }
}

/// Collects a turn, with what is needed to compare it with the history.
#[derive(Debug)]
pub(super) struct Received {
    collector: Collector,
    holes: Vec<Hole>,
    messages: MessageIds,
}

/// The ids of the messages of a turn, by their hashes.
#[derive(Debug, Default)]
struct MessageIds {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl MessageIds {
    fn add(&mut self, id: &str) {
        if self.hashes.len() < MESSAGES {
            self.hashes.insert(self.hasher.hash_one(id));
        }
    }

    fn contains(&self, id: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(id))
    }
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
        Self { collector: Collector::new(limit), holes: Vec::new(), messages: MessageIds::default() }
    }

    pub(super) fn add(&mut self, update: &Update) {
        if let Some(missed) = missed_in(update) {
            let (text, thoughts) = self.collector.lengths();
            self.holes.push(Hole { text, thoughts, missed });
        }
        if let Some(id) = message_id(update) {
            self.messages.add(id);
        }
        self.collector.add(update);
    }

    /// Returns the turn, and what is missing of it because of the limit.
    pub(super) fn finish(self) -> (ReceivedTurn, Option<Missed>) {
        let (collected, excess) = self.collector.finish();
        (ReceivedTurn { collected, holes: self.holes, messages: self.messages }, excess)
    }
}

/// What was received of a turn.
#[derive(Debug)]
pub(super) struct ReceivedTurn {
    pub(super) collected: CollectedTurn,
    holes: Vec<Hole>,
    messages: MessageIds,
}

impl ReceivedTurn {
    /// Returns what is missing, according to the updates.
    pub(super) fn missing(&self) -> Vec<Missed> {
        self.holes.iter().map(|hole| hole.missed).collect()
    }

    /// Adds what was received to a turn of the history. Agents may not replay thoughts and parts of tool calls. Returns
    /// `None` if the turns contradict each other, or have nothing in common.
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
        let reload = self.reload.as_deref().filter(|_| *self.current.id() == *self.session.id())?;
        let reloaded = match self.session.reload().await {
            Ok(reloaded) => reloaded,
            Err(error) => {
                tracing::debug!(error = %crate::convert::text::OneLine(&error), "an incomplete turn could not be loaded again");
                return None;
            }
        };
        let mut whole = Collector::new(self.session.client().inner().options.limits.turn);
        reload.turn_in(reloaded.history(), received)?.iter().for_each(|update| whole.add(update));
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

/// A message of the user in a history.
struct UserMessage<'a> {
    id: Option<&'a str>,
    text: String,
    /// Where it begins, and where what follows begins.
    at: Range<usize>,
}

/// Returns the messages of the user. Chunks without an id between them belong to one message.
fn user_messages(history: &[Update]) -> Vec<UserMessage<'_>> {
    let mut messages: Vec<UserMessage<'_>> = Vec::new();
    let mut continues = false;
    for (index, update) in history.iter().enumerate().filter(|(_, update)| update.is_conversation()) {
        let UpdateKind::UserMessage(chunk) = update.kind() else {
            continues = false;
            continue;
        };
        let (id, text) = (chunk.message_id.as_deref(), chunk.text().unwrap_or_default());
        let last = messages.last_mut().filter(|_| continues);
        match last.filter(|last| last.id.is_none() || id.is_none() || last.id == id) {
            Some(last) => {
                last.text.push_str(text);
                (last.id, last.at.end) = (last.id.or(id), index + 1);
            }
            None => messages.push(UserMessage { id, text: text.to_owned(), at: index..index + 1 }),
        }
        continues = true;
    }
    messages
}

/// The id of the message that an update belongs to, if it has one.
fn message_id(update: &Update) -> Option<&str> {
    match update.kind() {
        UpdateKind::Message(chunk) | UpdateKind::Thought(chunk) | UpdateKind::UserMessage(chunk) => {
            chunk.message_id.as_deref()
        }
        _ => None,
    }
}
