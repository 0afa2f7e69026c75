//! Compares the history that an agent replays with the stored history.

use std::collections::HashMap;

use serde_json::Value;

use super::replay::{PAGES, is_transcript};
use super::shared::Shared;
use super::store::{EventQuery, MAX_PAGE, StoredEvent, StoredEventKind, raw_update};
use crate::{Error, Update, UpdateKind};

/// A user message in a history and the agent's answer, without white space.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Replayed {
    prompt: String,
    answer: String,
}

/// The prompts and answers that an agent has forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unknown {
    pub(super) prompts: u64,
    /// `None` if the agent does not replay answers.
    pub(super) answers: Option<u64>,
}

/// A turn as it is stored.
#[derive(Debug, Default)]
struct StoredTurn {
    id: Option<String>,
    prompt: String,
    /// The chunks of the agent's messages. Some may be missing.
    answer: Vec<String>,
}

/// The turns in a history, joined from their chunks. Agents break lines and join the parts of a prompt in their own ways.
pub(super) fn turns(history: &[Update]) -> Vec<Replayed> {
    let mut turns: Vec<Replayed> = Vec::new();
    let mut is_open = false;
    for update in history {
        let text = without_space(update.raw()["content"]["text"].as_str().unwrap_or_default());
        match (update.kind(), turns.last_mut()) {
            (UpdateKind::UserMessage(_), Some(last)) if is_open => last.prompt.push_str(&text),
            (UpdateKind::UserMessage(_), _) => turns.push(Replayed { prompt: text, answer: String::new() }),
            (UpdateKind::Message(_), Some(last)) => last.answer.push_str(&text),
            _ => {}
        }
        is_open = matches!(update.kind(), UpdateKind::UserMessage(_));
    }
    turns
}

/// The text of a prompt.
pub(super) fn prompt_text(prompt: &Value) -> String {
    let blocks = prompt.as_array().into_iter().flatten();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Compares stored turns with those that an agent replayed, both in their order.
fn compare(stored: &[StoredTurn], replayed: &[Replayed]) -> Unknown {
    let is_said = replays_answers(replayed);
    let (mut rest, mut prompts, mut answers) = (replayed, 0, 0);
    for turn in stored.iter().filter(|turn| !turn.prompt.is_empty()) {
        // A transcript contains the beginnings of many turns in one message.
        let first = turn.prompt.lines().next().unwrap_or_default();
        let quoted = Value::from(first).to_string();
        let quoted = without_space(&quoted[1..quoted.len() - 1]);
        if replayed.iter().any(|known| is_transcript(&known.prompt) && known.prompt.contains(&quoted)) {
            continue;
        }
        let whole = without_space(&turn.prompt);
        let known = rest.iter().position(|known| known.prompt.contains(&whole));
        let answer = known.map_or("", |at| rest[at].answer.as_str());
        answers += u64::from(!has_in_order(answer, &turn.answer));
        match known {
            Some(at) => rest = &rest[at + 1..],
            None => prompts += 1,
        }
    }
    Unknown { prompts, answers: is_said.then_some(answers) }
}

/// Whether answers can be missing: the agent replays some answers, or replays nothing.
fn replays_answers(replayed: &[Replayed]) -> bool {
    replayed.is_empty() || replayed.iter().any(|turn| !turn.answer.is_empty())
}

/// Whether a text contains all chunks in order.
fn has_in_order(mut text: &str, chunks: &[String]) -> bool {
    chunks.iter().map(|chunk| without_space(chunk)).all(|chunk| match text.split_once(&chunk) {
        _ if chunk.is_empty() => true,
        Some((_, after)) => {
            text = after;
            true
        }
        None => false,
    })
}

impl Shared {
    /// Returns which prompts and answers of a stored session are not among these turns. Prompts that the agent never
    /// got do not count, and neither do prompts without text and their answers. The answers of the latest events are
    /// compared.
    pub(super) async fn unknown(&self, id: &str, replayed: &[Replayed]) -> Result<Unknown, Error> {
        let mut turns: Vec<StoredTurn> = Vec::new();
        let kinds = [StoredEventKind::Prompt, StoredEventKind::TurnEnded];
        let visit = |event: StoredEvent| {
            if event.turn_end().is_some_and(|end| !end.executed) {
                turns.retain(|turn| turn.id != event.turn_id);
            } else if event.kind == StoredEventKind::Prompt {
                let prompt = prompt_text(&event.payload["prompt"]);
                turns.push(StoredTurn { id: event.turn_id, prompt, answer: Vec::new() });
            }
            None::<()>
        };
        self.find_event(EventQuery::of(id).kinds(kinds).limit(MAX_PAGE), visit).await?;
        // Only answers that are compared are read.
        let mut answers = match replays_answers(replayed) && !turns.is_empty() {
            true => self.answers(id).await?,
            false => HashMap::new(),
        };
        for turn in &mut turns {
            turn.answer = turn.id.as_ref().and_then(|id| answers.remove(id)).unwrap_or_default();
            turn.answer.reverse();
        }
        Ok(compare(&turns, replayed))
    }

    /// The chunks of the agent's messages by turn, the newest first.
    async fn answers(&self, id: &str) -> Result<HashMap<String, Vec<String>>, Error> {
        let mut answers: HashMap<String, Vec<String>> = HashMap::new();
        let mut read = 0;
        let visit = |StoredEvent { turn_id, payload, .. }: StoredEvent| {
            let update = raw_update(&payload);
            let text = update["content"]["text"].as_str();
            if let (Some("agent_message_chunk"), Some(turn), Some(text)) =
                (update["sessionUpdate"].as_str(), turn_id, text)
            {
                answers.entry(turn).or_default().push(text.to_owned());
            }
            read += 1;
            (read == PAGES * MAX_PAGE).then_some(())
        };
        let query = EventQuery::of(id).newest_first().kinds([StoredEventKind::Update]).limit(MAX_PAGE);
        self.find_event(query, visit).await?;
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::{Replayed, StoredTurn, Unknown, compare};

    fn stored(prompt: &str, answer: &[&str]) -> StoredTurn {
        let answer = answer.iter().map(|chunk| (*chunk).to_owned()).collect();
        StoredTurn { id: None, prompt: prompt.to_owned(), answer }
    }

    fn replayed(prompt: &str, answer: &str) -> Replayed {
        Replayed { prompt: prompt.to_owned(), answer: answer.to_owned() }
    }

    #[test]
    fn whole_prompts_and_answers_are_compared() {
        let turns = [
            stored("Fix this:\n one", &["I will ", "fix it."]),
            stored("Fix this:\n two", &["Done."]),
            stored("And now?", &[]),
        ];
        let unknown = |prompts, answers| Unknown { prompts, answers };
        let first = || replayed("Fixthis:one", "Iwillfixit.");
        let table = [
            (vec![], unknown(3, Some(2))),
            (vec![first()], unknown(2, Some(1))),
            // The second prompt begins with the same line.
            (vec![replayed("Fixthis:two", "Done.")], unknown(2, Some(1))),
            (vec![first(), replayed("Fixthis:two", "")], unknown(1, Some(1))),
            (
                vec![first(), replayed("Fixthis:two", "Done."), replayed("Andnow?", "Yes.")],
                unknown(0, Some(0)),
            ),
            // This agent replays no answers.
            (vec![replayed("Fixthis:one", "")], unknown(2, None)),
        ];
        for (history, expected) in table {
            assert_eq!(compare(&turns, &history), expected, "{history:?}");
        }
    }
}
