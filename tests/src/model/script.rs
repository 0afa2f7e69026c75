//! What the words of a prompt make the model do.

use std::time::Duration;

use serde_json::Value;

use super::{
    reply::{Reply, Step},
    request::ModelRequest,
    tool,
};

/// What the model writes into files.
pub const WRITTEN: &str = "written by the model\nin two lines\n";

/// The line that `edit` replaces, and the line that it writes instead.
pub const EDITED: (&str, &str) = ("the old line", "the new line");

/// The pause between two chunks of `slow`.
const PAUSE: Duration = Duration::from_millis(100);

/// The words that begin a command.
const WORDS: [&str; 10] =
    ["say", "think", "tool", "write", "read", "edit", "slow", "error", "call", "repeat"];

/// What the model answers to a request.
pub(super) fn reply(request: &ModelRequest) -> Reply {
    if request.is_side_request() {
        return Reply::Steps(vec![Step::Text(side_text(&request.body))]);
    }
    let prompt = &request.prompt;
    let Some((word, rest)) = command(prompt) else {
        return text(format!("echo: {prompt}"));
    };
    let number = || rest.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(1);
    if matches!(word, "tool" | "write" | "read" | "edit" | "call")
        && let Some(result) = request.tool_results.last()
    {
        return text(format!("tool said: {}", result.trim()));
    }
    let call = match word {
        "say" => return Reply::Steps((0..number()).map(|number| Step::Text(format!("{number} "))).collect()),
        "think" => {
            let thoughts = (0..number()).map(|number| Step::Thought(format!("thought {number} ")));
            return Reply::Steps(thoughts.chain([Step::Text("thought about it".to_owned())]).collect());
        }
        "slow" => {
            let chunk = |number| [Step::Text(format!("{number} ")), Step::Pause(PAUSE)];
            return Reply::Steps((0..number()).flat_map(chunk).collect());
        }
        "error" => return Reply::Failure(u16::try_from(number()).unwrap_or(500)),
        "repeat" => return text(request.earlier_prompts.join(" | ")),
        "tool" => tool::run(&request.tools, rest),
        "write" => tool::write(&request.tools, rest, WRITTEN),
        "read" => tool::read(&request.tools, rest),
        "edit" => tool::edit(&request.tools, rest, EDITED),
        _ => {
            let (name, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
            let arguments = serde_json::from_str(arguments).unwrap_or(Value::Null);
            tool::named(&request.tools, name, arguments)
        }
    };
    match call {
        Some(call) => Reply::Steps(vec![call]),
        None => text(format!("there is no tool for: {word} {rest}")),
    }
}

/// The first line of a prompt that is a command, as its word and the rest.
pub(super) fn command(prompt: &str) -> Option<(&str, &str)> {
    prompt.lines().find_map(|line| {
        let (word, rest) = line.trim().split_once(' ')?;
        WORDS.contains(&word).then(|| (word, rest.trim()))
    })
}

fn text(text: String) -> Reply {
    Reply::Steps(vec![Step::Text(text)])
}

/// Agents ask for titles, topics and "who speaks next" in separate requests, some of them for JSON.
fn side_text(body: &Value) -> String {
    let wants_json = body.pointer("/generationConfig/responseMimeType").is_some()
        || body.pointer("/response_format/type").is_some_and(|kind| kind != "text")
        || body.pointer("/output_config/format").is_some();
    if wants_json {
        let member = r#""reasoning":"scripted","next_speaker":"user","model_choice":"flash","title":"A scripted title","confidence":1"#;
        return format!("{{{member}}}");
    }
    "A scripted title".to_owned()
}
