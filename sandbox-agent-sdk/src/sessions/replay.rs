//! What an agent is told that has to take up a session it does not know.

use serde_json::{Value, json};

use crate::sessions::{StoredEvent, StoredEventKind};

/// What the history begins with.
const INTRODUCTION: &str = "This conversation began in another session that you cannot see. What follows is its recent \
                            history, the oldest entry first; the last message after it is new and for you to answer.";

/// An event is not shortened to less than this many characters.
const SHORTEST: usize = 100;
/// How many characters one may become when it is written.
const ESCAPED: usize = 6;

/// How much of its history an agent is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayLimits {
    /// How many events at most: 50.
    pub max_events: usize,
    /// How many characters at most: 12,000.
    pub max_chars: usize,
    /// Whether a suspended session may be taken up this way: it may not.
    pub resumes: bool,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self { max_events: 50, max_chars: 12_000, resumes: false }
    }
}

/// The history as a text within the limits: the newest events are kept and the oldest dropped. One that is too large for
/// what is left is told in a shortened form, so that older ones have a place too. `None` if nothing fits.
pub(super) fn history(events: &[StoredEvent], limits: ReplayLimits) -> Option<String> {
    let mut room = limits.max_chars.checked_sub(INTRODUCTION.chars().count() + 1)?;
    let mut lines = Vec::new();
    let telling = events.iter().rev().filter(|event| tells(event)).take(limits.max_events);
    for event in telling {
        let mut line = line(event);
        if line.chars().count() + 1 > room {
            // What is not large at all is just the oldest.
            match shortened(event, room / 2) {
                Some(short) => line = short,
                None => break,
            }
        }
        room -= line.chars().count() + 1;
        lines.push(line);
    }
    if lines.is_empty() {
        return None;
    }
    lines.reverse();
    Some(format!("{INTRODUCTION}\n\n{}", lines.join("\n")))
}

/// Whether an event tells an agent anything about the conversation.
pub(super) fn tells(event: &StoredEvent) -> bool {
    match event.kind {
        StoredEventKind::Prompt => true,
        StoredEventKind::Update => {
            let kind = event.payload.get("sessionUpdate").and_then(Value::as_str);
            !matches!(
                kind,
                Some(
                    "available_commands_update"
                        | "usage_update"
                        | "session_info_update"
                        | "config_option_update"
                )
            )
        }
        _ => false,
    }
}

/// One event as one line.
fn line(event: &StoredEvent) -> String {
    // Values and strings can always be written.
    json!({ speaker(event): event.payload }).to_string()
}

fn speaker(event: &StoredEvent) -> &'static str {
    if event.kind == StoredEventKind::Prompt { "user" } else { "agent" }
}

/// The beginning of an event as one line of so many characters at most; `None` if that would not tell much.
fn shortened(event: &StoredEvent, chars: usize) -> Option<String> {
    if chars < SHORTEST {
        return None;
    }
    let text = text_of(&event.payload).unwrap_or_else(|| event.payload.to_string());
    let whole = text.chars().count();
    let mut kept = chars;
    loop {
        let start: String = text.chars().take(kept).collect();
        let line = json!({ speaker(event): {"shortened": start, "from": whole} }).to_string();
        let over = line.chars().count().saturating_sub(chars);
        if over == 0 {
            return Some(line);
        }
        // What has to be escaped takes more room than it has characters.
        kept = kept.checked_sub(over.div_ceil(ESCAPED)).filter(|kept| *kept > 0)?;
    }
}

/// The words in a report, or in a prompt.
fn text_of(payload: &Value) -> Option<String> {
    let words = |content: &Value| content.get("text").and_then(Value::as_str).map(str::to_owned);
    if let Some(blocks) = payload.get("prompt").and_then(Value::as_array) {
        let all: Option<Vec<String>> = blocks.iter().map(words).collect();
        return all.map(|all| all.join("\n"));
    }
    payload.get("content").and_then(words)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{INTRODUCTION, ReplayLimits, history};
    use crate::session::Timestamp;
    use crate::sessions::{NewEvent, StoredEvent};

    fn events(count: u64) -> Vec<StoredEvent> {
        let event = |n| {
            let kind = if n % 5 == 1 { "prompt" } else { "update" };
            let payload =
                json!({"sessionUpdate": "agent_message_chunk", "text": format!("event {n} \u{1F600}")});
            NewEvent::new(format!("e{n}"), "s", Timestamp::from_millis(n), kind, payload).at(n)
        };
        (1..=count).map(event).collect()
    }

    fn limits(max_events: usize, max_chars: usize) -> ReplayLimits {
        ReplayLimits { max_events, max_chars, resumes: false }
    }

    #[test]
    fn an_agent_is_told_50_events_and_12_000_characters_unless_it_is_asked_for_otherwise() {
        assert_eq!(ReplayLimits::default(), limits(50, 12_000));
    }

    #[test]
    fn the_newest_are_kept_and_the_oldest_dropped() {
        let events = events(200);
        let text = history(&events, ReplayLimits::default()).unwrap();
        assert_eq!(text.lines().count(), 50 + 2);
        assert!(text.contains("event 200 ") && text.contains("event 151 ") && !text.contains("event 150 "));
        let positions: Vec<_> = (151..=200).map(|n| text.find(&format!("event {n} ")).unwrap()).collect();
        assert!(positions.is_sorted(), "in the order in which it happened");
    }

    #[test]
    fn no_limit_is_ever_crossed() {
        let events = events(60);
        for max_events in [0, 1, 7, 60, 1000] {
            for max_chars in (0..3000).step_by(13) {
                let Some(text) = history(&events, limits(max_events, max_chars)) else { continue };
                assert!(text.chars().count() <= max_chars, "{max_chars}");
                let lines = text.lines().count() - 2;
                assert!((1..=max_events).contains(&lines));
                // Whatever is told ends with the newest.
                assert!(text.lines().last().unwrap().contains("event 60 "));
                let expected = (61 - lines as u64..=60).map(|n| format!("event {n} "));
                assert!(expected.into_iter().all(|event| text.contains(&event)));
            }
        }
        assert_eq!(history(&events, limits(50, INTRODUCTION.len())), None);
        assert_eq!(history(&[], ReplayLimits::default()), None);
    }

    #[test]
    fn what_is_too_large_is_shortened_and_older_ones_are_told_too() {
        let large = |text: String| json!({"sessionUpdate": "agent_message_chunk", "content": {"text": text}});
        for text in ["x".repeat(50_000), "\"\n\u{1}".repeat(20_000), "\u{1F600}".repeat(30_000)] {
            let mut all = events(3);
            let newest = NewEvent::new("big", "s", Timestamp::from_millis(4), "update", large(text.clone()));
            all.push(newest.at(4));
            for max_chars in [600, 1_000, 12_000] {
                let told = history(&all, limits(50, max_chars)).unwrap();
                assert!(told.chars().count() <= max_chars);
                let last = told.lines().last().unwrap();
                assert!(last.contains("shortened") && last.chars().count() > 60, "{last}");
                let entry: serde_json::Value = serde_json::from_str(last).unwrap();
                let start = entry["agent"]["shortened"].as_str().unwrap();
                assert!(text.starts_with(start) && !start.is_empty());
            }
            let told = history(&all, ReplayLimits::default()).unwrap();
            assert!((1..=3).all(|n| told.contains(&format!("event {n} "))), "the older ones fit as well");
            // A large one in the middle does not hide the newest.
            let after =
                NewEvent::new("e5", "s", Timestamp::from_millis(5), "prompt", json!({"text": "five"}));
            all.push(after.at(5));
            let told = history(&all, limits(50, 1_000)).unwrap();
            assert!(told.lines().last().unwrap().contains("five") && told.contains("shortened"));
        }
    }

    #[test]
    fn what_tells_nothing_takes_no_room() {
        let mut all = events(3);
        for n in 4..100 {
            let payload = json!({"sessionUpdate": "usage_update", "used": n});
            all.push(NewEvent::new(format!("u{n}"), "s", Timestamp::from_millis(n), "update", payload).at(n));
            all.push(NewEvent::new(format!("t{n}"), "s", Timestamp::from_millis(n), "turn_ended", ()).at(n));
        }
        let text = history(&all, limits(3, 12_000)).unwrap();
        assert!((1..=3).all(|n| text.contains(&format!("event {n} "))), "{text}");
    }
}
