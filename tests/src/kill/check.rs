//! What has to hold of what is stored.

use std::collections::{BTreeMap, HashSet};

use sandbox_agent_sdk::StopReason;
use sandbox_agent_sdk::sessions::store::TurnEnd;
use sandbox_agent_sdk::sessions::{StoredEvent, StoredEventKind};
use sandbox_agent_sdk::update::Missed;

use super::run::Report;
use super::words::{WORDS, parse_word, session_of};

/// What may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Losses {
    /// Nothing: only programs and databases were killed, and the server has it all.
    None,
    /// What a killed server had not sent, where a gap or the end of a turn says so.
    WithTheServer,
}

/// A turn as it is stored.
#[derive(Debug, Default)]
struct Turn<'a> {
    prompt: &'a str,
    prompt_at: u64,
    /// The index and the number of each word.
    words: Vec<(u64, u32)>,
    ends: Vec<(u64, TurnEnd)>,
}

/// Checks everything that is stored of a session, oldest first.
#[must_use]
pub fn violations(session: &str, events: &[StoredEvent], losses: Losses) -> Report {
    let mut report = Report::default();
    let mut turns: BTreeMap<&str, Turn<'_>> = BTreeMap::new();
    let mut prompts = HashSet::new();
    let mut holes = Vec::new();
    let mut found = Vec::new();
    for (index, event) in (1..).zip(events) {
        if event.index != index {
            found.push(format!("index {} in place of {index}", event.index));
        }
        match &event.kind {
            StoredEventKind::Prompt => {
                let prompt = prompt_of(event);
                if session_of(prompt) != session || !prompts.insert(prompt) {
                    found.push(format!("prompt `{prompt}` of another session, or stored twice"));
                }
                let turn = turns.entry(event.turn_id.as_deref().unwrap_or_default()).or_default();
                (turn.prompt, turn.prompt_at) = (prompt, event.index);
            }
            StoredEventKind::TurnEnded => {
                let turn = turns.entry(event.turn_id.as_deref().unwrap_or_default()).or_default();
                turn.ends.extend(event.turn_end().map(|end| (event.index, end)));
            }
            StoredEventKind::Gap | StoredEventKind::Lost => holes.push(event.index),
            StoredEventKind::Update => {
                let Some(said) = event.payload["content"]["text"].as_str() else { continue };
                let turn = event.turn_id.as_deref().and_then(|turn| turns.get_mut(turn));
                match (parse_word(said), turn) {
                    (Some((prompt, number)), Some(turn)) if turn.prompt == prompt => {
                        turn.words.push((event.index, number));
                    }
                    _ => found.push(format!("{said:?} at {} in turn {:?}", event.index, event.turn_id)),
                }
            }
            _ => {}
        }
    }
    if turns.is_empty() {
        found.push("no turn is stored".to_owned());
    }
    if losses == Losses::None && !holes.is_empty() {
        found.push(format!("gaps at {holes:?}, although the server has everything"));
    }
    for turn in turns.values() {
        report.turns += 1;
        report.words += turn.words.len();
        report.failed_turns += usize::from(turn.ends.iter().any(|(_, end)| end.error.is_some()));
        found.extend(turn.violations(&holes, losses));
    }
    report.gaps = holes.len();
    report.violations = found.into_iter().map(|what| format!("{session}: {what}")).collect();
    report
}

impl Turn<'_> {
    fn violations(&self, holes: &[u64], losses: Losses) -> Vec<String> {
        let [(end_at, end)] = &self.ends[..] else {
            return vec![format!("turn `{}` has {} ends", self.prompt, self.ends.len())];
        };
        let mut found = Vec::new();
        let is_hole = |from: u64, to: u64| holes.iter().any(|hole| (from..=to).contains(hole));
        let (mut at, mut last) = (self.prompt_at, 0);
        for (index, number) in &self.words {
            let is_next = *number == last + 1;
            if *number <= last || !is_next && !is_hole(at, *index) {
                found.push(format!("word {number} of `{}` behind word {last}, at {index}", self.prompt));
            }
            (at, last) = (*index, *number);
        }
        // A response may be taken without proof of its order, and says so.
        if at > *end_at && !end.missing.contains(&Missed::Unverified) {
            found.push(format!("word {last} of `{}` behind the end of the turn, at {at}", self.prompt));
        }
        let is_complete = last == WORDS;
        // A turn of a killed program that outlasted the patience of the next one was cancelled, and says so.
        let is_named = end.error.is_some() || end.stop_reason == Some(StopReason::Cancelled);
        if !is_complete && !is_named && !is_hole(at, *end_at) {
            found.push(format!("`{}` ends behind word {last}: {end:?}", self.prompt));
        }
        if losses == Losses::None && end.error.is_some() && last > 0 {
            found.push(format!("`{}` failed behind word {last}: {:?}", self.prompt, end.error));
        }
        found
    }
}

/// The text of a prompt; a transcript is not stored with it.
fn prompt_of(event: &StoredEvent) -> &str {
    let blocks = event.payload["prompt"].as_array().map(Vec::as_slice).unwrap_or_default();
    blocks.last().and_then(|block| block["text"].as_str()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use sandbox_agent_sdk::session::Timestamp;
    use sandbox_agent_sdk::sessions::store::NewEvent;
    use serde_json::{Value, json};

    use super::super::words::word;
    use super::{Losses, StoredEvent, WORDS, violations};

    fn event(kind: &str, payload: Value, turn: &str) -> NewEvent {
        NewEvent::new("key", Timestamp::from_millis(1), kind, payload).turn_id(turn)
    }

    fn prompt(text: &str, turn: &str) -> NewEvent {
        event("prompt", json!({"prompt": [{"type": "text", "text": text}]}), turn)
    }

    fn said(prompt: &str, number: u32, turn: &str) -> NewEvent {
        let content = json!({"type": "text", "text": word(prompt, number)});
        event("update", json!({"sessionUpdate": "agent_message_chunk", "content": content}), turn)
    }

    fn answer(prompt: &str, turn: &str) -> Vec<NewEvent> {
        (1..=WORDS).map(|number| said(prompt, number, turn)).collect()
    }

    fn end(turn: &str) -> NewEvent {
        event("turn_ended", json!({"stopReason": "end_turn"}), turn)
    }

    fn failed(turn: &str) -> NewEvent {
        event("turn_ended", json!({"error": {"message": "interrupted"}}), turn)
    }

    fn found(parts: Vec<Vec<NewEvent>>, losses: Losses) -> usize {
        let events = (1..).zip(parts.concat()).map(|(index, event)| event.stored("s01", index, 1));
        violations("s01", &events.collect::<Vec<StoredEvent>>(), losses).violations.len()
    }

    fn assert_found(count: usize, parts: Vec<Vec<NewEvent>>) {
        assert_eq!(found(parts.clone(), Losses::WithTheServer), count, "{parts:?}");
    }

    #[test]
    fn complete_turns_and_named_losses_are_no_violations() {
        let (one, two) = ("s01.0.0", "s01.0.1");
        let whole = vec![
            vec![prompt(one, "a")],
            answer(one, "a"),
            vec![end("a"), prompt(two, "b")],
            answer(two, "b"),
        ];
        let whole = [whole, vec![vec![end("b")]]].concat();
        assert_eq!(found(whole, Losses::None), 0);
        let unsent = vec![vec![prompt(one, "a"), failed("a")]];
        assert_eq!(found(unsent, Losses::None), 0);
        let gap = event("gap", json!({}), "a");
        assert_found(0, vec![vec![prompt(one, "a"), said(one, 1, "a"), failed("a")]]);
        assert_found(0, vec![vec![prompt(one, "a"), gap.clone(), said(one, WORDS, "a"), end("a")]]);
        assert_found(0, vec![vec![prompt(one, "a"), said(one, 1, "a"), gap, end("a")]]);
    }

    #[test]
    fn each_kind_of_damage_is_a_violation() {
        let (one, two) = ("s01.0.0", "s01.0.1");
        let begun = || vec![prompt(one, "a")];
        let missing = || answer(one, "a").into_iter().skip(1).collect::<Vec<_>>();
        let twice = || [answer(one, "a"), vec![said(one, WORDS, "a")]].concat();
        let mut swapped = answer(one, "a");
        swapped.swap(3, 4);
        assert_found(1, vec![begun(), missing(), vec![end("a")]]);
        assert_found(1, vec![begun(), twice(), vec![end("a")]]);
        assert_ne!(found(vec![begun(), swapped, vec![end("a")]], Losses::WithTheServer), 0);
        assert_found(1, vec![]);
        assert_found(1, vec![begun(), answer(one, "a")]);
        assert_found(1, vec![begun(), answer(one, "a"), vec![end("a"), end("a")]]);
        assert_found(1, vec![begun(), vec![said(one, 1, "a"), end("a")]]);
        // A word of another session, of another turn, of no turn, and behind the end of its turn.
        assert_found(1, vec![begun(), vec![said("s02.0.0", 1, "a")], answer(one, "a"), vec![end("a")]]);
        assert_found(1, vec![begun(), vec![said(two, 1, "a")], answer(one, "a"), vec![end("a")]]);
        assert_found(1, vec![begun(), vec![said(one, 1, "b")], answer(one, "a"), vec![end("a")]]);
        assert_found(1, vec![begun(), vec![end("a")], answer(one, "a")]);
        // A prompt of another session, and one that is stored twice.
        assert_found(1, vec![vec![prompt("s02.0.0", "a"), failed("a")]]);
        assert_found(1, vec![vec![prompt(one, "a"), failed("a"), prompt(one, "b"), failed("b")]]);
    }

    #[test]
    fn without_a_killed_server_nothing_may_be_missing() {
        let one = "s01.0.0";
        let gap = event("gap", json!({}), "a");
        let parts = vec![vec![prompt(one, "a"), gap], answer(one, "a"), vec![end("a")]];
        assert_eq!(found(parts, Losses::None), 1);
        let parts = vec![vec![prompt(one, "a"), said(one, 1, "a"), failed("a")]];
        assert_eq!(found(parts, Losses::None), 1);
    }
}
