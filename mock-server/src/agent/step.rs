use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::ExitStatus;

/// One action of a scripted agent in a turn.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Step {
    /// Streams one chunk of the message.
    Say(String),
    /// Streams one chunk of reasoning.
    Think(String),
    /// Announces a tool call.
    ToolCall(ToolCall),
    /// Updates an announced tool call.
    ToolUpdate {
        /// The id of the call.
        id: String,
        /// The status of the call: `pending`, `in_progress`, `completed` or `failed`.
        status: String,
        /// Text to show as the call's content.
        text: Option<String>,
    },
    /// Streams any `session/update`. The value is its `update` member.
    Update(Value),
    /// Requests a permission and waits for the response.
    AskPermission(Permission),
    /// Asks the user a question (`elicitation/create` in form mode) and streams the response as text.
    AskQuestion {
        /// The text of the question.
        message: String,
        /// The JSON schema of the answer.
        schema: Value,
    },
    /// Reads a file through the client and streams its text.
    ReadFile {
        /// The absolute path of the file.
        path: String,
    },
    /// Writes a file through the client.
    WriteFile {
        /// The absolute path of the file.
        path: String,
        /// The new text of the file.
        content: String,
    },
    /// Runs a command in a terminal of the client and streams its output as text.
    Terminal(Terminal),
    /// Streams `updates` chunks of `bytes` bytes each, as fast as possible.
    Flood {
        /// The number of updates.
        updates: usize,
        /// The bytes of text in each update.
        bytes: usize,
    },
    /// Waits. A cancel ends the turn immediately.
    Wait(Duration),
    /// Waits until the client cancels the turn.
    WaitForCancel,
    /// Sends any request to the client, waits for the response and records it.
    Request {
        /// The method of the request.
        method: String,
        /// The parameters; `sessionId` is added if it is missing.
        params: Value,
    },
    /// Sends this many permission requests at once and waits for all responses.
    FireRequests(usize),
    /// Sends any notification unchanged.
    Notify {
        /// The method of the notification.
        method: String,
        /// The parameters of the notification.
        params: Value,
    },
    /// Prints any JSON value as a line.
    Raw(Value),
    /// Writes a line to standard error.
    Stderr(String),
    /// Prints a line that is not JSON.
    Garbage(String),
    /// Crashes.
    Crash(Crash),
    /// Exits with this code, without output.
    Exit(i32),
    /// Hangs forever; even a cancel does not end the turn.
    Hang,
    /// Ends the turn with a JSON-RPC error.
    Fail {
        /// The error code.
        code: i64,
        /// The error message.
        message: String,
        /// The error data, if any.
        data: Option<Value>,
    },
    /// Ends the turn with this stop reason.
    Stop(String),
    /// Responds to the prompt with this stop reason and continues with the remaining steps.
    Answer(String),
    /// Ends the turn with this result, unchanged.
    Finish(Value),
}

impl Step {
    /// Streams `text` word by word, with a pause of `pace` between words.
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

    /// Creates a crash with this exit code and these lines on standard error.
    pub fn crash(code: i32, stderr: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Crash(Crash {
            status: ExitStatus::Code(code),
            stderr: stderr.into_iter().map(Into::into).collect(),
        })
    }

    /// Creates a crash by this signal, with these lines on standard error.
    pub fn killed(signal: i32, stderr: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Crash(Crash {
            status: ExitStatus::Signal(signal),
            stderr: stderr.into_iter().map(Into::into).collect(),
        })
    }
}

/// How a scripted agent crashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The exit code or the signal.
    pub status: ExitStatus,
    /// The lines that the agent writes to standard error.
    pub stderr: Vec<String>,
}

/// A tool call to announce.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The id that updates refer to.
    pub id: String,
    /// The display title.
    pub title: String,
    /// The kind: `read`, `edit`, `execute` and so on.
    pub kind: String,
    /// The initial status.
    pub status: String,
    /// The input of the tool.
    pub input: Value,
}

impl ToolCall {
    /// Creates a pending call that executes a command.
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

/// Returns the steps after the response to a permission request.
type Then = Arc<dyn Fn(&Value) -> Vec<Step> + Send + Sync>;

/// A permission request of the agent.
#[derive(Clone)]
pub struct Permission {
    /// The tool call that needs the permission.
    pub tool_call: ToolCall,
    /// The options to choose from.
    pub options: Vec<PermissionOption>,
    then: Option<Then>,
}

impl Permission {
    /// Creates a request with the options "allow once", "allow always" and "reject once". The agent streams the
    /// outcome as text.
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

    /// Replaces the options.
    #[must_use]
    pub fn options(mut self, options: Vec<PermissionOption>) -> Self {
        self.options = options;
        self
    }

    /// Plays these steps after the response, instead of streaming the outcome.
    ///
    /// The closure receives the `outcome` member of the response, or null if the client responded with an
    /// error.
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

/// One option of a permission request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionOption {
    /// The id that the client returns.
    pub id: String,
    /// The display name.
    pub name: String,
    /// The kind: `allow_once`, `allow_always`, `reject_once`, `reject_always`.
    pub kind: String,
}

/// A command to run in a terminal of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminal {
    /// The program.
    pub command: String,
    /// The arguments of the program.
    pub args: Vec<String>,
}

/// Returns the chosen option, `cancelled`, or `error` if there is no outcome.
fn describe(outcome: &Value) -> String {
    match outcome.get("outcome").and_then(Value::as_str) {
        Some("selected") => outcome.get("optionId").and_then(Value::as_str).unwrap_or("selected").to_owned(),
        Some(other) => other.to_owned(),
        None => "error".to_owned(),
    }
}
