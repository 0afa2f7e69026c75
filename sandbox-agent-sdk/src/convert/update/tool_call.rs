//! Tool calls.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{meta, text};
use crate::Content;
use crate::convert::fields::put;
use crate::convert::open_enum::open_enum;

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

/// The members of a tool call that have a field of their own.
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

/// A tool call, or what is new about one.
///
/// It is serialised in the form in which agents send it; an absent list stays absent.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id of the call.
    pub id: String,
    /// What to show.
    pub title: Option<String>,
    /// The name of the tool, for programs.
    pub name: Option<String>,
    /// What the tool does.
    pub kind: Option<ToolKind>,
    /// How far it is.
    pub status: Option<ToolStatus>,
    /// What it brought: text, changes of files, terminals, and content of other kinds as JSON. Empty if the report says
    /// so, and if it does not mention it; [`new_content`](Self::new_content) distinguishes the two.
    pub content: Vec<Content>,
    /// The files it works on. [`new_locations`](Self::new_locations) distinguishes an empty list from an absent one.
    pub locations: Vec<ToolLocation>,
    /// What the tool was given.
    pub input: Option<Value>,
    /// What the tool gave back.
    pub output: Option<Value>,
    /// The member `_meta`.
    pub meta: Option<Value>,
    /// Members that this version does not know, as they came.
    pub other: Map<String, Value>,
    has_content: bool,
    has_locations: bool,
}

/// A file that a tool works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ToolLocation {
    /// Where it is.
    pub path: String,
    /// The line in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The member `_meta`.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ToolCall {
    /// Reads a tool call; `None` if it has no id.
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

    /// The content, if the report mentions it: an empty list replaces what was there, `None` leaves it.
    #[must_use]
    pub fn new_content(&self) -> Option<&[Content]> {
        self.has_content.then_some(&self.content)
    }

    /// The locations, if the report mentions them: an empty list replaces what was there, `None` leaves them.
    #[must_use]
    pub fn new_locations(&self) -> Option<&[ToolLocation]> {
        self.has_locations.then_some(&self.locations)
    }

    /// Takes in a later report on the same call: what it mentions replaces what was there.
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
