//! What an agent replays, against what is stored.

use serde_json::Value;

use super::replay::is_transcript;
use super::shared::Shared;
use super::store::{EventQuery, MAX_PAGE, StoredEventKind};
use crate::{Error, Update, UpdateKind};

/// The messages of the user in a history, each joined from its chunks.
pub(super) fn user_messages(history: &[Update]) -> Vec<String> {
    let mut messages: Vec<String> = Vec::new();
    let mut is_open = false;
    for update in history {
        match update.kind() {
            UpdateKind::UserMessage(_) => {
                let text = update.raw()["content"]["text"].as_str().unwrap_or_default();
                match messages.last_mut().filter(|_| is_open) {
                    Some(message) => message.push_str(text),
                    None => messages.push(text.to_owned()),
                }
                is_open = true;
            }
            _ => is_open = false,
        }
    }
    messages
}

/// The text of a prompt.
pub(super) fn prompt_text(prompt: &Value) -> String {
    let blocks = prompt.as_array().into_iter().flatten();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

impl Shared {
    /// How many stored prompts are not among these messages, which are in their order. Prompts that the agent never got
    /// do not count, and neither do prompts without text.
    pub(super) async fn unknown_prompts(&self, id: &str, known: &[String]) -> Result<u64, Error> {
        let mut prompts: Vec<(Option<String>, String)> = Vec::new();
        let kinds = [StoredEventKind::Prompt, StoredEventKind::TurnEnded];
        let mut query = EventQuery::of(id).kinds(kinds).limit(MAX_PAGE);
        loop {
            let page = self.events(&query).await?;
            for event in page.events {
                if event.turn_end().is_some_and(|end| !end.executed) {
                    prompts.retain(|(turn, _)| *turn != event.turn_id);
                } else if event.kind == StoredEventKind::Prompt {
                    let text = prompt_text(&event.payload["prompt"]);
                    prompts.push((event.turn_id, text.lines().next().unwrap_or_default().to_owned()));
                }
            }
            match page.next {
                Some(next) => query = query.after(next),
                None => break,
            }
        }
        let mut rest = known;
        let is_unknown = |text: &str| {
            // A transcript has many prompts in one message.
            if known.iter().any(|known| is_transcript(known) && known.contains(text)) {
                return false;
            }
            match rest.iter().position(|known| known.contains(text)) {
                Some(at) => {
                    rest = &rest[at + 1..];
                    false
                }
                None => true,
            }
        };
        let texts = prompts.iter().map(|(_, text)| text.as_str()).filter(|text| !text.is_empty());
        Ok(texts.map(is_unknown).filter(|is_unknown| *is_unknown).count() as u64)
    }
}
