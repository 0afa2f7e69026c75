//! Tool calls.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{meta, text};
use crate::Content;
use crate::convert::fields::put;
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The kind of a tool.
    pub enum ToolKind {
        /// Reads files or data.
        Read = "read",
        /// Changes files.
        Edit = "edit",
        /// Deletes files.
        Delete = "delete",
        /// Moves or renames files.
        Move = "move",
        /// Searches files or data.
        Search = "search",
        /// Runs a command.
        Execute = "execute",
        /// Reasons without side effects.
        Think = "think",
        /// Fetches external data.
        Fetch = "fetch",
        /// Changes the mode of the session.
        SwitchMode = "switch_mode",
        /// Any other tool.
        Unnamed = "other",
    }
}

open_enum! {
    /// The status of a tool call.
    pub enum ToolStatus {
        /// Not started: its input is being generated, or it waits for a permission.
        Pending = "pending",
        /// The tool is running.
        InProgress = "in_progress",
        /// The tool has completed.
        Completed = "completed",
        /// The tool failed.
        Failed = "failed",
    }
}

/// The fields of a tool call that this version knows.
const KNOWN: &[&str] = &[
    "sessionUpdate",
    "toolCallId",
    "title",
    "name",
    "kind",
    "status",
    "content",
    "locations",
    "rawInput",
    "rawOutput",
    "_meta",
];

/// A tool call, or an update of one.
///
/// Serializes to the wire format of agents; an absent list stays absent.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// The display title.
    pub title: Option<String>,
    /// The name of the tool, for programs.
    pub name: Option<String>,
    /// The kind of the tool.
    pub kind: Option<ToolKind>,
    /// The status.
    pub status: Option<ToolStatus>,
    /// The produced content: text, file changes, terminals, and other content as JSON.
    ///
    /// Empty if the update clears it or does not contain it; [`new_content`](Self::new_content) distinguishes
    /// the two.
    pub content: Vec<Content>,
    /// The files that it works on. [`new_locations`](Self::new_locations) distinguishes an empty list from an
    /// absent one.
    pub locations: Vec<ToolLocation>,
    /// The input of the tool.
    pub input: Option<Value>,
    /// The output of the tool.
    pub output: Option<Value>,
    /// The `_meta` field.
    pub meta: Option<Value>,
    /// Unknown fields, as received.
    pub other: Map<String, Value>,
    has_content: bool,
    has_locations: bool,
}

/// A file that a tool works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ToolLocation {
    /// The path of the file.
    pub path: String,
    /// The line in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ToolCall {
    /// Parses a tool call; `None` if it has no id.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        let list = |member: &str| value.get(member).and_then(Value::as_array).map(Vec::as_slice);
        let given = |member: &str| value.get(member).filter(|value| !value.is_null()).cloned();
        let contents = list("content").unwrap_or_default().iter().map(Content::from_tool_call);
        let locations = list("locations").unwrap_or_default().iter().filter_map(|location| {
            let line = location.get("line").and_then(Value::as_u64);
            Some(ToolLocation { path: text(location, "path")?, line, meta: meta(location) })
        });
        let members = value.as_object().into_iter().flatten();
        let other = members.filter(|(name, _)| !KNOWN.contains(&name.as_str()));
        Some(Self {
            id: text(value, "toolCallId")?,
            title: text(value, "title"),
            name: text(value, "name"),
            kind: text(value, "kind").map(ToolKind::from),
            status: text(value, "status").map(ToolStatus::from),
            content: contents.collect(),
            locations: locations.collect(),
            input: given("rawInput"),
            output: given("rawOutput"),
            meta: meta(value),
            other: other.map(|(name, value)| (name.clone(), value.clone())).collect(),
            has_content: list("content").is_some(),
            has_locations: list("locations").is_some(),
        })
    }

    /// Returns the content, if the update contains it.
    ///
    /// An empty list replaces the previous content; `None` leaves it unchanged.
    #[must_use]
    pub fn new_content(&self) -> Option<&[Content]> {
        self.has_content.then_some(&self.content)
    }

    /// Returns the locations, if the update contains them.
    ///
    /// An empty list replaces the previous locations; `None` leaves them unchanged.
    #[must_use]
    pub fn new_locations(&self) -> Option<&[ToolLocation]> {
        self.has_locations.then_some(&self.locations)
    }

    /// Applies a later update of the same call. Fields that it contains replace the previous values.
    pub fn apply_update(&mut self, update: &Self) {
        fn replace<T: Clone>(place: &mut Option<T>, new: &Option<T>) {
            if new.is_some() {
                place.clone_from(new);
            }
        }
        replace(&mut self.title, &update.title);
        replace(&mut self.name, &update.name);
        replace(&mut self.kind, &update.kind);
        replace(&mut self.status, &update.status);
        replace(&mut self.input, &update.input);
        replace(&mut self.output, &update.output);
        replace(&mut self.meta, &update.meta);
        if let Some(content) = update.new_content() {
            self.content = content.to_vec();
            self.has_content = true;
        }
        if let Some(locations) = update.new_locations() {
            self.locations = locations.to_vec();
            self.has_locations = true;
        }
        self.other.extend(update.other.clone());
    }
}

impl Serialize for ToolCall {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Map::new();
        put(&mut map, "toolCallId", Some(self.id.as_str()));
        put(&mut map, "title", self.title.as_deref());
        put(&mut map, "name", self.name.as_deref());
        put(&mut map, "kind", self.kind.as_ref().map(ToolKind::as_str));
        put(&mut map, "status", self.status.as_ref().map(ToolStatus::as_str));
        let contents =
            |contents: &[Content]| -> Value { contents.iter().map(Content::to_tool_call).collect() };
        put(&mut map, "content", self.new_content().map(contents));
        let locations = self.new_locations().map(serde_json::to_value).transpose();
        put(&mut map, "locations", locations.map_err(serde::ser::Error::custom)?);
        put(&mut map, "rawInput", self.input.clone());
        put(&mut map, "rawOutput", self.output.clone());
        put(&mut map, "_meta", self.meta.clone());
        map.extend(self.other.clone());
        map.serialize(serializer)
    }
}
