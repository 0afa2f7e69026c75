//! What an agent is told that has to take up a session it does not know.

use serde_json::Value;

use crate::{StoredEvent, StoredEventKind};

/// What the history begins with.
const INTRODUCTION: &str = "This conversation began in another session that you cannot see. What follows is its recent \
                            history, the oldest entry first; the last message after it is new and for you to answer.";

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

/// The history as a text within the limits: the newest events are kept and the oldest dropped. `None` if nothing fits.
pub(super) fn history(events: &[StoredEvent], limits: ReplayLimits) -> Option<String> {
    let budget = limits.max_chars.checked_sub(INTRODUCTION.chars().count() + 2)?;
    let mut used = 0;
    let mut lines = Vec::new();
    let telling = events.iter().rev().filter(|event| tells(event)).take(limits.max_events);
    for event in telling {
        let line = line(event);
        used += line.chars().count() + 1;
        if used > budget {
            break;
        }
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
    let who = if event.kind == StoredEventKind::Prompt { "user" } else { "agent" };
    // Values and strings can always be written.
    serde_json::json!({ who: event.payload }).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{INTRODUCTION, ReplayLimits, history};
    use crate::{NewEvent, StoredEvent, Timestamp};

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
