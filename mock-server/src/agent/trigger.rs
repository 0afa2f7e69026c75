use std::time::Duration;

use super::script::Turn;
use super::step::{Permission, Step, ToolCall};

/// The pause between words if the prompt contains "slow".
const SLOW: Duration = Duration::from_millis(200);

/// The interactive behaviour: replies `mock: <text>`, and reacts to some words in the prompt.
///
/// | word | effect |
/// |---|---|
/// | `permission` | requests a permission and waits for the response |
/// | `slow` | 200 ms between words |
/// | `big` | 1,000 updates of 1 KiB |
/// | `garbage` | a line on standard output that is not JSON |
/// | `crash` | crashes with exit code 1 and two lines on standard error |
///
/// The reply is streamed word by word. Trigger words can be combined; they take effect in the order of the
/// table.
pub fn text_triggers(turn: &Turn) -> Vec<Step> {
    text_triggers_at(turn, Duration::ZERO)
}

/// Like [`text_triggers`], with this pause between words.
pub fn text_triggers_at(turn: &Turn, pace: Duration) -> Vec<Step> {
    let lower = turn.text.to_lowercase();
    let mut steps = Vec::new();
    if lower.contains("permission") {
        let call = ToolCall::new(format!("tool-call-{}", turn.number), "Run echo test");
        steps.push(Step::ToolCall(call.clone()));
        steps.push(Step::AskPermission(Permission::new(call)));
    }
    let pace = if lower.contains("slow") { SLOW } else { pace };
    if lower.contains("big") {
        steps.push(Step::Flood { updates: 1_000, bytes: 1_024 });
    }
    if lower.contains("garbage") {
        steps.push(Step::Garbage("this line is not JSON".to_owned()));
    }
    if lower.contains("crash") {
        steps.push(Step::crash(1, ["mock agent: fatal", "mock agent: giving up"]));
        return steps;
    }
    let reply = if turn.text.trim().is_empty() { "OK".to_owned() } else { format!("mock: {}", turn.text) };
    steps.extend(Step::say_words(&reply, pace));
    steps
}
