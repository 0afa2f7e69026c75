//! Tool calls.

use serde::Serialize;
use serde::de::MapAccess;
use serde_json::{Map, Value};

use super::kind::{NAME, read_object, skip};
use crate::Content;
use crate::convert::content::ToolCallContent;
use crate::convert::decoded::{members_size, value_size};
use crate::convert::fields::put;
use crate::convert::lenient::{self, Lenient};
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
    /// The machine-readable name of the tool.
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
    /// The files that the tool works on. [`new_locations`](Self::new_locations) distinguishes an empty list from an
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
    is_incomplete: bool,
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
    /// Creates a call of which only the id is known, because earlier reports are not stored.
    pub(crate) fn incomplete(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            title: None,
            name: None,
            kind: None,
            status: None,
            content: Vec::new(),
            locations: Vec::new(),
            input: None,
            output: None,
            meta: None,
            other: Map::new(),
            has_content: false,
            has_locations: false,
            is_incomplete: true,
        }
    }

    /// Returns whether this value lacks reports of the agent about the call, because they exceed a memory limit.
    ///
    /// This can happen in a [permission request](crate::PermissionRequest::tool_call), which includes earlier reports.
    /// The updates of the session contain the missing reports.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Parses a tool call; `None` if it has no id.
    pub(crate) fn read(value: &Value) -> Option<Self> {
        read_object(value)
    }

    /// The memory of the call, besides the value itself.
    pub(crate) fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let value = |value: &Option<Value>| value.as_ref().map_or(0, value_size);
        let contents = self.content.iter().map(|content| size_of::<Content>() + content.size());
        let locations = self
            .locations
            .iter()
            .map(|location| size_of::<ToolLocation>() + location.path.len() + value(&location.meta));
        self.id.len()
            + text(&self.title)
            + text(&self.name)
            + contents.sum::<usize>()
            + locations.sum::<usize>()
            + value(&self.input)
            + value(&self.output)
            + value(&self.meta)
            + members_size(&self.other)
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

    /// Fills in what an earlier update of the same call contains and this one does not.
    ///
    /// Agents repeat a call with empty lists. Unlike in [`apply_update`](Self::apply_update), these do not hide what was
    /// reported before.
    pub(crate) fn complete_from(&mut self, earlier: &Self) {
        fn fill<T: Clone>(place: &mut Option<T>, earlier: &Option<T>) {
            if place.is_none() {
                place.clone_from(earlier);
            }
        }
        fill(&mut self.title, &earlier.title);
        fill(&mut self.name, &earlier.name);
        fill(&mut self.kind, &earlier.kind);
        fill(&mut self.status, &earlier.status);
        fill(&mut self.input, &earlier.input);
        fill(&mut self.output, &earlier.output);
        fill(&mut self.meta, &earlier.meta);
        if self.content.is_empty() {
            self.content.clone_from(&earlier.content);
            self.has_content |= earlier.has_content;
        }
        if self.locations.is_empty() {
            self.locations.clone_from(&earlier.locations);
            self.has_locations |= earlier.has_locations;
        }
        self.is_incomplete |= earlier.is_incomplete;
        for (name, value) in &earlier.other {
            if !self.other.contains_key(name) {
                self.other.insert(name.clone(), value.clone());
            }
        }
    }
}

impl<'de> Lenient<'de> for ToolCall {
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let (mut id, mut title, mut name, mut kind, mut status) = (None, None, None, None, None);
        let (mut content, mut locations) = (None::<Vec<ToolCallContent>>, None);
        let (mut input, mut output, mut meta, mut other) = (None, None, None, Map::new());
        lenient::fields(object, |field, object| {
            match &*field {
                "toolCallId" => id = lenient::value(object)?,
                "title" => title = lenient::value(object)?,
                "name" => name = lenient::value(object)?,
                "kind" => kind = lenient::value(object)?,
                "status" => status = lenient::value(object)?,
                "content" => content = lenient::value(object)?,
                "locations" => locations = lenient::value(object)?,
                "rawInput" => input = lenient::value(object)?,
                "rawOutput" => output = lenient::value(object)?,
                "_meta" => meta = lenient::value(object)?,
                NAME => skip(NAME, object)?,
                _ => drop(other.insert(field.into_owned(), object.next_value()?)),
            }
            Ok(())
        })?;
        Ok(id.map(|id| Self {
            id,
            title,
            name,
            kind,
            status,
            has_content: content.is_some(),
            has_locations: locations.is_some(),
            is_incomplete: false,
            content: content.into_iter().flatten().map(|ToolCallContent(content)| content).collect(),
            locations: locations.unwrap_or_default(),
            input,
            output,
            meta,
            other,
        }))
    }
}

impl<'de> Lenient<'de> for ToolLocation {
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let (mut path, mut line, mut meta) = (None, None, None);
        lenient::fields(object, |name, object| {
            match &*name {
                "path" => path = lenient::value(object)?,
                "line" => line = lenient::value(object)?,
                "_meta" => meta = lenient::value(object)?,
                _ => lenient::skip(object)?,
            }
            Ok(())
        })?;
        Ok(path.map(|path| Self { path, line, meta }))
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
