//! The history of a session as text, for an agent that does not know it.

use serde_json::{Value, json};

use super::shared::Shared;
use super::store::{EventQuery, MAX_PAGE, PAGE_BYTES, StoredEvent, StoredEventKind, raw_update};
use crate::Error;

/// The first line of the history.
const INTRODUCTION: &str = "This conversation began in another session that you cannot see. What follows is its recent \
                            history, the oldest entry first; the last message after it is new and for you to answer.";

/// How many of the latest prompts are always part of it.
pub(super) const PROMPTS: usize = 3;
/// A message is not shortened to less than this many characters.
const SHORTEST: usize = 100;
/// The maximum length of an escaped character.
const ESCAPED: usize = 6;
/// How many pages of events are read at most.
pub(super) const PAGES: usize = 64;

/// The limits of transcript replay: how much of its history an agent receives as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplayLimits {
    /// The maximum number of messages. Default 50.
    pub max_messages: usize,
    /// The maximum number of characters. Default 12,000.
    pub max_chars: usize,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self { max_messages: 50, max_chars: 12_000 }
    }
}

/// One message of the conversation, joined from its chunks.
#[derive(Debug, Clone, PartialEq)]
struct Message {
    speaker: &'static str,
    content: Value,
    /// The tool call, whose updates are one message.
    tool: Option<String>,
}

impl Message {
    fn is_prompt(&self) -> bool {
        self.speaker == "user"
    }

    fn line(&self) -> String {
        json!({ self.speaker: self.content }).to_string()
    }

    fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(_) => super::compare::prompt_text(&self.content),
            other => other.to_string(),
        }
    }

    /// The beginning as a line of at most this many characters; `None` if that would be too short.
    fn shortened(&self, chars: usize) -> Option<String> {
        if chars < SHORTEST {
            return None;
        }
        let text = self.text();
        let whole = text.chars().count();
        let mut length = chars;
        loop {
            let start: String = text.chars().take(length).collect();
            let line = json!({ self.speaker: {"shortened": start, "from": whole} }).to_string();
            let over = line.chars().count().saturating_sub(chars);
            if over == 0 {
                return Some(line);
            }
            // An escaped character takes more than one character.
            length = length.checked_sub(over.div_ceil(ESCAPED)).filter(|length| *length > 0)?;
        }
    }
}

/// Messages, gathered from the newest event to the oldest.
#[derive(Debug, Default)]
struct Messages {
    newest_first: Vec<Message>,
    /// The chunks of the message of the agent that is being gathered.
    chunks: Vec<String>,
}

impl Messages {
    /// Adds the event that precedes all events so far.
    fn take(&mut self, event: &StoredEvent) {
        let payload = &event.payload;
        if event.kind == StoredEventKind::Prompt {
            let content = payload.get("prompt").cloned().unwrap_or_else(|| payload.clone());
            self.join();
            return self.newest_first.push(Message { speaker: "user", content, tool: None });
        }
        let payload = raw_update(payload);
        match payload["sessionUpdate"].as_str() {
            Some("agent_message_chunk") => {
                self.chunks.push(payload["content"]["text"].as_str().unwrap_or_default().to_owned());
            }
            Some("tool_call" | "tool_call_update") => {
                self.join();
                let tool = payload["toolCallId"].as_str().unwrap_or_default().to_owned();
                let mut call = json!({});
                for name in ["title", "kind", "status"] {
                    if let Some(value) = payload.get(name).filter(|value| !value.is_null()) {
                        call[name] = value.clone();
                    }
                }
                let known = self.newest_first.iter_mut().rev().take_while(|message| !message.is_prompt());
                let known = known.into_iter().find(|message| message.tool.as_ref() == Some(&tool));
                match known {
                    // The newer update takes precedence.
                    Some(Message { content: Value::Object(members), .. }) => {
                        let older = call.as_object().cloned().unwrap_or_default();
                        for (name, value) in older {
                            members.entry(name).or_insert(value);
                        }
                    }
                    _ => self.newest_first.push(Message { speaker: "tool", content: call, tool: Some(tool) }),
                }
            }
            _ => {}
        }
    }

    /// The message of the agent is complete.
    fn join(&mut self) {
        if !self.chunks.is_empty() {
            let text: String = self.chunks.drain(..).rev().collect();
            self.newest_first.push(Message { speaker: "agent", content: text.into(), tool: None });
        }
    }

    fn has_prompts(&self) -> bool {
        self.newest_first.iter().filter(|message| message.is_prompt()).count() >= PROMPTS
    }

    fn is_enough(&self, limits: ReplayLimits) -> bool {
        self.newest_first.len() >= limits.max_messages && self.has_prompts()
    }

    /// The history as text within the limits. It has the newest messages and the latest prompts, and what is too
    /// large is shortened.
    fn text(&mut self, limits: ReplayLimits) -> Option<String> {
        self.join();
        let mut room = limits.max_chars.checked_sub(INTRODUCTION.chars().count() + 1)?;
        let messages = &self.newest_first;
        let latest = messages.iter().enumerate().filter(|(_, message)| message.is_prompt());
        let latest: Vec<usize> =
            latest.map(|(n, _)| n).take(PROMPTS.min(limits.max_messages.div_ceil(2))).collect();
        let mut lines: Vec<(usize, String)> = Vec::new();
        let share = room / 2 / PROMPTS;
        for n in &latest {
            let line = fitting(&messages[*n], share, share.min(room));
            if let Some(line) = line {
                room -= line.chars().count() + 1;
                lines.push((*n, line));
            }
        }
        for (n, message) in messages.iter().enumerate().filter(|(n, _)| !latest.contains(n)) {
            if lines.len() >= limits.max_messages {
                break;
            }
            let Some(line) = fitting(message, room, room / 2) else { break };
            room -= line.chars().count() + 1;
            lines.push((n, line));
        }
        if lines.is_empty() {
            return None;
        }
        lines.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        Some(format!("{INTRODUCTION}\n\n{}", lines.join("\n")))
    }
}

/// A message as a line that fits, shortened if necessary.
fn fitting(message: &Message, room: usize, shortened: usize) -> Option<String> {
    let line = message.line();
    match line.chars().count() < room {
        true => Some(line),
        false => message.shortened(shortened.saturating_sub(1)),
    }
}

impl Shared {
    /// The recent history of a session as text for its agent, without the prompt of this turn, and without those that the
    /// agent never got, as far as is known.
    pub(super) async fn history(&self, id: &str, but: Option<&str>) -> Result<Option<String>, Error> {
        let limits = self.options.replay;
        let mut messages = Messages::default();
        let mut skipped: Vec<String> = but.map(str::to_owned).into_iter().collect();
        let kinds = [StoredEventKind::Prompt, StoredEventKind::Update, StoredEventKind::TurnEnded];
        let mut query = EventQuery::of(id).newest_first().kinds(kinds).limit(MAX_PAGE).max_bytes(PAGE_BYTES);
        for read in 0..=PAGES {
            let page = self.events(&query).await?;
            for event in &page.events {
                let of_turn = |turn: &String| event.turn_id.as_ref() == Some(turn);
                match event.kind {
                    StoredEventKind::TurnEnded
                        if event.turn_end().is_some_and(|end| !end.executed || end.unheard) =>
                    {
                        skipped.extend(event.turn_id.clone());
                    }
                    StoredEventKind::TurnEnded => {}
                    StoredEventKind::Prompt if skipped.iter().any(of_turn) => {}
                    _ => messages.take(event),
                }
            }
            match page.next.filter(|_| !messages.is_enough(limits)) {
                // The answer is very long, so its prompt is looked up separately.
                Some(next) if read + 1 == PAGES && !messages.has_prompts() => {
                    query = query.kinds([StoredEventKind::Prompt]).limit(PROMPTS).after(next);
                }
                Some(next) if read < PAGES => query = query.after(next),
                _ => break,
            }
        }
        Ok(messages.text(limits))
    }
}

/// Whether a message, whose white space was removed, has a transcript before it.
pub(super) fn is_transcript(message: &str) -> bool {
    let mut letters = message.chars();
    INTRODUCTION.split_whitespace().flat_map(str::chars).all(|letter| letters.next() == Some(letter))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{INTRODUCTION, Messages, ReplayLimits};
    use crate::session::Timestamp;
    use crate::sessions::store::NewEvent;

    /// Turns of a prompt and an answer in three chunks, the newest first.
    fn turns(count: u64, said: impl Fn(u64) -> String) -> Messages {
        let mut messages = Messages::default();
        for n in (1..=count).rev() {
            let chunk = |text: String| {
                let payload = json!({"sessionUpdate": "agent_message_chunk", "content": {"text": text}});
                NewEvent::new("u", Timestamp::from_millis(n), "update", payload).stored("s", n, 1)
            };
            for text in ["!".to_owned(), said(n), format!("answer {n} ")] {
                messages.take(&chunk(text));
            }
            let prompt = json!({"prompt": [{"type": "text", "text": format!("question {n}")}]});
            messages.take(&NewEvent::new("p", Timestamp::from_millis(n), "prompt", prompt).stored("s", n, 1));
        }
        messages
    }

    fn limits(max_messages: usize, max_chars: usize) -> ReplayLimits {
        ReplayLimits { max_messages, max_chars }
    }

    #[test]
    fn an_agent_gets_50_messages_and_12_000_characters_by_default() {
        assert_eq!(ReplayLimits::default(), limits(50, 12_000));
    }

    #[test]
    fn messages_are_counted_and_not_their_chunks() {
        let text = turns(100, |_| "said".to_owned()).text(ReplayLimits::default()).unwrap();
        assert_eq!(text.lines().count(), 50 + 2);
        assert!(text.contains("question 76\"") && !text.contains("question 75\""));
        assert!(text.contains("answer 76 said!"), "chunks are joined: {text}");
        let found: Vec<_> = (76..=100).map(|n| text.find(&format!("question {n}\"")).unwrap()).collect();
        assert!(found.is_sorted(), "in the order in which it happened");
    }

    #[test]
    fn a_long_answer_never_hides_the_question() {
        for chars in [600, 1_000, 12_000] {
            for size in [1_000, 50_000, 500_000] {
                let mut text = turns(4, |n| if n == 4 { "x".repeat(size) } else { "said".to_owned() });
                let text = text.text(limits(50, chars)).unwrap();
                assert!(text.chars().count() <= chars, "{} of {chars}", text.chars().count());
                assert!((2..=4).all(|n| text.contains(&format!("question {n}"))), "{chars} {size}: {text}");
            }
        }
    }

    #[test]
    fn the_updates_of_a_tool_call_are_one_message() {
        let mut messages = Messages::default();
        for status in ["completed", "in_progress"] {
            let payload = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": status});
            messages
                .take(&NewEvent::new("u", Timestamp::from_millis(1), "update", payload).stored("s", 1, 1));
        }
        let payload = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Read"});
        messages.take(&NewEvent::new("u", Timestamp::from_millis(1), "update", payload).stored("s", 1, 1));
        let text = messages.text(ReplayLimits::default()).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.contains("Read") && text.contains("completed") && !text.contains("in_progress"));
    }

    #[test]
    fn no_limit_is_ever_exceeded() {
        for text in ["plain", "\"\n\u{1}", "\u{1F600}"] {
            let mut messages = turns(20, |n| text.repeat(usize::try_from(n).unwrap() * 7));
            for max_messages in [0, 1, 7, 60] {
                for max_chars in (0..4000).step_by(37) {
                    let Some(text) = messages.text(limits(max_messages, max_chars)) else { continue };
                    assert!(text.chars().count() <= max_chars, "{max_chars}");
                    assert!((1..=max_messages).contains(&(text.lines().count() - 2)), "{max_messages}");
                }
            }
        }
        assert_eq!(turns(3, |_| String::new()).text(limits(50, INTRODUCTION.len())), None);
        assert_eq!(Messages::default().text(ReplayLimits::default()), None);
    }
}
