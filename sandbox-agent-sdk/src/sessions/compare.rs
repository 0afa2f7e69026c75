//! What an agent replays, against what is stored.

use serde_json::Value;

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
    /// How many stored prompts are not among these messages. An agent that does not replay prompts says nothing.
    pub(super) async fn unknown_prompts(&self, id: &str, known: &[String]) -> Result<u64, Error> {
        if known.is_empty() {
            return Ok(0);
        }
        let mut unknown = 0;
        let mut query = EventQuery::of(id).kinds([StoredEventKind::Prompt]).limit(MAX_PAGE);
        loop {
            let page = self.events(&query).await?;
            for event in &page.events {
                let text = prompt_text(&event.payload["prompt"]);
                let first = text.lines().next().unwrap_or_default();
                unknown += u64::from(!known.iter().any(|known| known.contains(first)));
            }
            match page.next {
                Some(next) => query = query.after(next),
                None => return Ok(unknown),
            }
        }
    }
}
