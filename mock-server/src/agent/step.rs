use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ExitStatus;

/// One thing a scripted agent does in a turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Step {
    /// Streams one chunk of the answer.
    Say(String),
    /// Streams one chunk of thought.
    Think(String),
    /// Announces a tool call.
    ToolCall(ToolCall),
    /// Reports on a tool call announced before.
    ToolUpdate {
        /// The id of the call.
        id: String,
        /// Its status: `pending`, `in_progress`, `completed` or `failed`.
        status: String,
        /// Text to show as the call's content.
        text: Option<String>,
    },
    /// Streams any `session/update`; the value is its `update` member.
    Update(Value),
    /// Asks for a permission and waits for the answer.
    AskPermission(Permission),
    /// Asks the user a question (`elicitation/create` in form mode) and says what was answered.
    AskQuestion {
        /// The question.
        message: String,
        /// The JSON schema of the answer.
        schema: Value,
    },
    /// Reads a file through the client and says its text.
    ReadFile {
        /// The absolute path.
        path: String,
    },
    /// Writes a file through the client.
    WriteFile {
        /// The absolute path.
        path: String,
        /// The new text.
        content: String,
    },
    /// Runs a command in a terminal of the client, waits for its end and says its output.
    Terminal(Terminal),
    /// Streams `updates` chunks of `bytes` bytes each, as fast as it can.
    Flood {
        /// How many updates.
        updates: usize,
        /// How many bytes of text in each.
        bytes: usize,
    },
    /// Waits. A cancel ends the turn at once.
    Wait(Duration),
    /// Waits until the client cancels the turn, which then ends as cancelled.
    WaitForCancel,
    /// Sends any request to the client, waits for the answer and records it.
    Request {
        /// The method.
        method: String,
        /// The parameters; `sessionId` is added when it is missing.
        params: Value,
    },
    /// Sends this many permission requests at once and waits for all answers.
    FireRequests(usize),
    /// Sends any notification, as it stands.
    Notify {
        /// The method.
        method: String,
        /// The parameters.
        params: Value,
    },
    /// Prints any JSON value as a line.
    Raw(Value),
    /// Writes a line to standard error.
    Stderr(String),
    /// Prints a line that is not JSON.
    Garbage(String),
    /// Dies.
    Crash(Crash),
    /// Exits with this code and without a word.
    Exit(i32),
    /// Does nothing for ever; not even a cancel ends the turn.
    Hang,
    /// Ends the turn with a JSON-RPC error.
    Fail {
        /// The code.
        code: i64,
        /// The message.
        message: String,
        /// The data, if any.
        data: Option<Value>,
    },
    /// Ends the turn with this stop reason.
    Stop(String),
    /// Answers the prompt with this stop reason and goes on with the steps after it.
    Answer(String),
    /// Ends the turn with this result, as it stands.
    Finish(Value),
}

impl Step {
    /// Says `text` word by word, waiting `pace` between the words.
    pub fn say_words(text: &str, pace: Duration) -> Vec<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let last = words.len().saturating_sub(1);
        let mut steps = Vec::new();
        for (index, word) in words.iter().enumerate() {
            let end = if index == last { "" } else { " " };
            steps.push(Self::Say(format!("{word}{end}")));
            if index != last && !pace.is_zero() {
                steps.push(Self::Wait(pace));
            }
        }
        steps
    }

    /// Dies with this exit code and these lines on standard error.
    pub fn crash(code: i32, stderr: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Crash(Crash {
            status: ExitStatus::Code(code),
            stderr: stderr.into_iter().map(Into::into).collect(),
        })
    }

    /// Dies by this signal and with these lines on standard error.
    pub fn killed(signal: i32, stderr: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Crash(Crash {
            status: ExitStatus::Signal(signal),
            stderr: stderr.into_iter().map(Into::into).collect(),
        })
    }
}

/// How a scripted agent dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// The lines it wrote to standard error in its life.
    pub stderr: Vec<String>,
}

/// A tool call as it is announced.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The id under which it is updated.
    pub id: String,
    /// What a user sees.
    pub title: String,
    /// The kind: `read`, `edit`, `execute` and so on.
    pub kind: String,
    /// The status it starts with.
    pub status: String,
    /// What the tool was given.
    pub input: Value,
}

impl ToolCall {
    /// A pending call that executes a command.
    pub fn new(id: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            kind: "execute".to_owned(),
            status: "pending".to_owned(),
            input: json!({ "command": "echo test" }),
        }
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "toolCallId": self.id,
            "title": self.title,
            "kind": self.kind,
            "status": self.status,
            "rawInput": self.input,
        })
    }
}

/// What the agent does once a permission was answered.
type Then = Arc<dyn Fn(&Value) -> Vec<Step> + Send + Sync>;

/// A permission the agent asks for.
#[derive(Clone)]
pub struct Permission {
    /// The tool call it is about.
    pub tool_call: ToolCall,
    /// The choices.
    pub options: Vec<PermissionOption>,
    then: Option<Then>,
}

impl Permission {
    /// Asks about one call with the choices allow once, allow always and reject once, and says the outcome.
    pub fn new(tool_call: ToolCall) -> Self {
        let option = |id: &str, name: &str, kind: &str| PermissionOption {
            id: id.to_owned(),
            name: name.to_owned(),
            kind: kind.to_owned(),
        };
        let options = vec![
            option("allow_once", "Allow once", "allow_once"),
            option("allow_always", "Always allow", "allow_always"),
            option("reject_once", "Reject", "reject_once"),
        ];
        Self { tool_call, options, then: None }
    }

    /// Offers these choices instead.
    #[must_use]
    pub fn options(mut self, options: Vec<PermissionOption>) -> Self {
        self.options = options;
        self
    }

    /// Does these steps after the answer, instead of saying the outcome. The closure gets the `outcome`
    /// member of the answer, or null if the client answered with an error.
    #[must_use]
    pub fn then(mut self, then: impl Fn(&Value) -> Vec<Step> + Send + Sync + 'static) -> Self {
        self.then = Some(Arc::new(then));
        self
    }

    pub(super) fn follow_up(&self, outcome: &Value) -> Vec<Step> {
        match &self.then {
            Some(then) => then(outcome),
            None => vec![Step::Say(format!("permission: {}", describe(outcome)))],
        }
    }

    pub(super) fn params(&self, session_id: &str) -> Value {
        let options: Vec<Value> = self
            .options
            .iter()
            .map(|option| json!({ "optionId": option.id, "name": option.name, "kind": option.kind }))
            .collect();
        json!({ "sessionId": session_id, "toolCall": self.tool_call.to_value(), "options": options })
    }
}

impl fmt::Debug for Permission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permission")
            .field("tool_call", &self.tool_call)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// One choice of a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    /// The id the client answers with.
    pub id: String,
    /// What a user sees.
    pub name: String,
    /// The kind: `allow_once`, `allow_always`, `reject_once`, `reject_always`.
    pub kind: String,
}

/// A command to run in a terminal of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// The program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
}

/// The chosen option, `cancelled`, or `error` when there was no outcome at all.
fn describe(outcome: &Value) -> String {
    match outcome.get("outcome").and_then(Value::as_str) {
        Some("selected") => outcome.get("optionId").and_then(Value::as_str).unwrap_or("selected").to_owned(),
        Some(other) => other.to_owned(),
        None => "error".to_owned(),
    }
}
