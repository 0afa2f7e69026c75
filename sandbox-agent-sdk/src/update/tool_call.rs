//! Tool calls.

use serde_json::Value;

use crate::Content;
use crate::open_enum::open_enum;

open_enum! {
    /// What a tool does.
    pub enum ToolKind {
        /// Reads files or data.
        Read = "read",
        /// Changes files.
        Edit = "edit",
        /// Removes files.
        Delete = "delete",
        /// Moves or renames files.
        Move = "move",
        /// Looks for something.
        Search = "search",
        /// Runs a command.
        Execute = "execute",
        /// Thinks.
        Think = "think",
        /// Fetches something from elsewhere.
        Fetch = "fetch",
        /// Changes the mode of the session.
        SwitchMode = "switch_mode",
        /// Something that has no name.
        Unnamed = "other",
    }
}

open_enum! {
    /// How far a tool call is.
    pub enum ToolStatus {
        /// It has not begun: its input is being written, or it waits for a permission.
        Pending = "pending",
        /// It runs.
        InProgress = "in_progress",
        /// It is done.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
    }
}

/// A tool call, or what is new about one.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// What to show.
    pub title: Option<String>,
    /// What the tool does.
    pub kind: Option<ToolKind>,
    /// How far it is.
    pub status: Option<ToolStatus>,
    /// What it brought: text, changes of files, terminals, and content of other kinds as JSON.
    pub content: Vec<Content>,
    /// The files it works on.
    pub locations: Vec<ToolLocation>,
    /// What the tool was given.
    pub input: Option<Value>,
    /// What the tool gave back.
    pub output: Option<Value>,
}

/// A file that a tool works on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolLocation {
    /// Where it is.
    pub path: String,
    /// The line in it.
    pub line: Option<u64>,
}

impl ToolCall {
    /// Reads a tool call; `None` if it has no id.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let text = |member: &str| value.get(member).and_then(Value::as_str);
        let list = |member: &str| value.get(member).and_then(Value::as_array).map(Vec::as_slice);
        let given = |member: &str| value.get(member).filter(|value| !value.is_null()).cloned();
        let contents = list("content").unwrap_or_default().iter().map(|entry| match entry.get("type") {
            Some(kind) if kind == "content" => {
                Content::from_value(entry.get("content").cloned().unwrap_or_default())
            }
            _ => Content::from_value(entry.clone()),
        });
        let locations = list("locations").unwrap_or_default().iter().filter_map(|location| {
            let path = location.get("path")?.as_str()?.to_owned();
            Some(ToolLocation { path, line: location.get("line").and_then(Value::as_u64) })
        });
        Some(Self {
            id: text("toolCallId")?.to_owned(),
            title: text("title").map(str::to_owned),
            kind: text("kind").map(ToolKind::from),
            status: text("status").map(ToolStatus::from),
            content: contents.collect(),
            locations: locations.collect(),
            input: given("rawInput"),
            output: given("rawOutput"),
        })
    }
}
