//! The demonstration agent of the embedded server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mock_server::{Permission, Script, Step, ToolCall, Turn};
use serde_json::{Value, json};

/// The pause between words.
const PACE: Duration = Duration::from_millis(25);

const INTRODUCTION: &str = "I am a script that shows what this chat can do. Try one of these words: think, tool, \
    edit, ask, plan, work, long, tour, hostile or crash. Commands begin with a slash; /help lists them.";

/// The messages of each session, so that it can be loaded again.
type Histories = Arc<Mutex<HashMap<String, Vec<Value>>>>;

/// Creates an agent that reacts to some words in the prompt.
pub(super) fn showcase() -> Script {
    let histories = Histories::default();
    let replayed = Arc::clone(&histories);
    Script::new(move |turn| {
        let steps = steps(turn);
        record(&histories, turn, &steps);
        steps
    })
    .history(move |session| {
        replayed.lock().unwrap_or_else(PoisonError::into_inner).get(session).cloned().unwrap_or_default()
    })
}

/// The steps for one word.
type Part = fn(&Turn) -> Vec<Step>;

fn steps(turn: &Turn) -> Vec<Step> {
    let text = turn.text.to_lowercase();
    let tour = text.contains("tour");
    let mut steps = Vec::new();
    let parts: [(&str, Part); 7] = [
        ("think", thinking),
        ("plan", planning),
        ("tool", tool),
        ("edit", editing),
        ("ask", asking),
        ("long", long),
        ("work", working),
    ];
    for (word, part) in parts {
        if text.contains(word) || (tour && word != "work") {
            steps.extend(part(turn));
            steps.push(Step::Say("\n\n".to_owned()));
        }
    }
    if text.contains("hostile") {
        steps.extend(hostile());
    }
    if text.contains("crash") {
        steps.push(Step::Say("I have a bad feeling about this".to_owned()));
        let trace = (1..=40).map(|frame| format!("    at frame {frame}"));
        steps.push(Step::crash(
            3,
            ["showcase: fatal: asked to crash".to_owned()]
                .into_iter()
                .chain(trace)
                .chain(["showcase: giving up".to_owned()]),
        ));
    }
    if steps.is_empty() {
        steps.extend(Step::say_words(&format!("You said: {}.", turn.text), PACE));
        steps.push(Step::Say("\n\n".to_owned()));
        steps.extend(Step::say_words(INTRODUCTION, PACE));
    }
    steps
}

fn thinking(_: &Turn) -> Vec<Step> {
    let words = "The user wants to see a thought. It should look different from what I say aloud.";
    let mut steps = Vec::new();
    for word in words.split_inclusive(' ') {
        steps.extend([Step::Think(word.to_owned()), Step::Wait(PACE)]);
    }
    steps.extend(Step::say_words("I have thought about it.", PACE));
    steps
}

fn planning(_: &Turn) -> Vec<Step> {
    let names = ["Read the code", "Find the mistake", "Mend it"];
    let states = [["in_progress", "pending"], ["completed", "in_progress"], ["completed", "completed"]];
    let mut steps = Vec::new();
    for done in 0..=names.len() {
        let entries: Vec<Value> = names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let state = match index.cmp(&done) {
                    std::cmp::Ordering::Less => states[2][0],
                    std::cmp::Ordering::Equal => states[0][0],
                    std::cmp::Ordering::Greater => states[0][1],
                };
                json!({"content": name, "priority": "medium", "status": state})
            })
            .collect();
        steps.push(Step::Update(json!({"sessionUpdate": "plan", "entries": entries})));
        steps.push(Step::Wait(Duration::from_millis(400)));
    }
    steps
}

fn tool(turn: &Turn) -> Vec<Step> {
    let mut call = ToolCall::new(format!("test-{}", turn.number), "Run the tests");
    call.input = json!({"command": "cargo test"});
    let output: String = (1..=60).map(|test| format!("test case_{test} ... ok\n")).collect();
    let update = |status: &str, text: Option<String>| Step::ToolUpdate {
        id: call.id.clone(),
        status: status.to_owned(),
        text,
    };
    vec![
        Step::ToolCall(call.clone()),
        Step::Wait(Duration::from_millis(300)),
        update("in_progress", None),
        Step::Wait(Duration::from_millis(1500)),
        update("completed", Some(format!("{output}\ntest result: ok. 60 passed"))),
        Step::Say("All tests pass.".to_owned()),
    ]
}

fn editing(turn: &Turn) -> Vec<Step> {
    let mut call = ToolCall::new(format!("edit-{}", turn.number), "Edit src/greeting.rs");
    call.kind = "edit".to_owned();
    call.input = json!({"path": "src/greeting.rs"});
    let id = call.id.clone();
    let permission = Permission::new(call.clone()).then(move |outcome| {
        let allowed = outcome["optionId"].as_str().is_some_and(|option| option.starts_with("allow"));
        if !allowed {
            let failed = Step::ToolUpdate { id: id.clone(), status: "failed".to_owned(), text: None };
            return vec![failed, Step::Say("Then I leave it as it is.".to_owned())];
        }
        let diff = json!({
            "type": "diff", "path": "src/greeting.rs",
            "oldText": "fn greet() {\n    println!(\"Hello\");\n}\n",
            "newText": "fn greet(name: &str) {\n    println!(\"Hello, {name}\");\n}\n",
        });
        let done = json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed", "content": [diff],
        });
        vec![Step::Update(done), Step::Say("It greets by name now.".to_owned())]
    });
    vec![Step::ToolCall(call), Step::AskPermission(permission)]
}

fn asking(_: &Turn) -> Vec<Step> {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Your name"},
            "colour": {"type": "string", "title": "Colour", "enum": ["red", "green", "blue"]},
            "sure": {"type": "boolean", "title": "Are you sure?", "default": true},
        },
        "required": ["name", "colour"],
    });
    vec![Step::AskQuestion { message: "I need to know a few things.".to_owned(), schema }]
}

fn long(_: &Turn) -> Vec<Step> {
    let line =
        "A long line with wide letters, 日本語 and ünïcödé, goes on and on until it has to break somewhere. ";
    vec![Step::Say(line.repeat(4)), Step::Say(format!("\n{}\n", "unbroken".repeat(30)))]
}

fn working(turn: &Turn) -> Vec<Step> {
    let call = ToolCall::new(format!("work-{}", turn.number), "Compile everything");
    let id = call.id.clone();
    let update = |status: &str| Step::ToolUpdate { id: id.clone(), status: status.to_owned(), text: None };
    vec![
        Step::Say("This takes a while; Ctrl-C cancels it.".to_owned()),
        Step::ToolCall(call.clone()),
        update("in_progress"),
        Step::Wait(Duration::from_secs(60)),
        update("completed"),
    ]
}

/// Text with control sequences that try to affect the terminal.
fn hostile() -> Vec<Step> {
    vec![
        Step::Say("This is red: \u{1b}[31mnot\u{1b}[0m; the screen is \u{1b}[2J\u{1b}[H".to_owned()),
        Step::Say("still here; title \u{1b}]0;OWNED\u{7}; half a sequence \u{1b}".to_owned()),
        Step::Say("[8mhidden; clipboard \u{1b}]52;c;T1dORUQ=\u{1b}\\; alternate \u{1b}[?1049h".to_owned()),
        Step::Say(
            "; \u{9b}5mblink; bell \u{7}; backspaces\u{8}\u{8}\u{8}; reverse \u{202e}txet; end.".to_owned(),
        ),
        Step::ToolCall(ToolCall::new("evil", "Title with \u{1b}[2J an\nescape")),
        Step::ToolUpdate {
            id: "evil".to_owned(),
            status: "completed".to_owned(),
            text: Some("output \u{1b}[5;31m with escapes\u{1b}c".to_owned()),
        },
    ]
}

/// Records the text of the turn.
fn record(histories: &Histories, turn: &Turn, steps: &[Step]) {
    let said: String = steps
        .iter()
        .filter_map(|step| match step {
            Step::Say(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    let chunk =
        |kind: &str, text: &str| json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}});
    let mut histories = histories.lock().unwrap_or_else(PoisonError::into_inner);
    let history = histories.entry(turn.session_id.clone()).or_default();
    history.push(chunk("user_message_chunk", &turn.text));
    history.push(chunk("agent_message_chunk", &said));
}
