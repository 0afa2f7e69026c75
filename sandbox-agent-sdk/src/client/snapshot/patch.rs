//! A change of a snapshot.

use serde_json::{Map, Value};

use super::Tool;
use crate::control::AgentMode;
use crate::convert::session_info::take_metadata;
use crate::session::{Model, SessionMetadata};
use crate::update::{Command, ConfigOption};
use crate::usage::Cost;
use crate::{Update, UpdateKind};

/// The changes of a snapshot by one message. Absent parts are unchanged.
#[derive(Debug, Default)]
pub(crate) struct Patch {
    pub(super) modes: Option<Vec<AgentMode>>,
    pub(super) mode: Option<String>,
    pub(super) models: Option<Vec<Model>>,
    pub(super) model: Option<String>,
    /// The unknown fields of the list of models.
    pub(super) about_models: Map<String, Value>,
    pub(super) options: Option<Vec<ConfigOption>>,
    pub(super) commands: Option<Vec<Command>>,
    pub(super) tools: Option<Vec<Tool>>,
    /// The inner `None` clears the title.
    pub(super) title: Option<Option<String>>,
    pub(super) last_activity: Option<Option<String>>,
    pub(super) context: Option<(Option<u64>, Option<u64>)>,
    pub(super) cost: Option<Cost>,
    pub(super) metadata: SessionMetadata,
    pub(super) other: Map<String, Value>,
    /// The fields that were parsed completely.
    pub(super) understood: Vec<&'static str>,
}

/// The fields that this version parses, completely or in part.
const KNOWN: [&str; 9] = [
    "modes",
    "models",
    "configOptions",
    "availableCommands",
    "commands",
    "tools",
    "availableTools",
    "title",
    "updatedAt",
];

impl Patch {
    /// Parses a response about a session, or the notice that it has started.
    pub(crate) fn of_state(state: &Value) -> Self {
        let Value::Object(members) = state else { return Self::default() };
        let mut rest = members.clone();
        let metadata = take_metadata(&mut rest);
        for id in ["sessionId", "session_id"] {
            rest.shift_remove(id);
        }
        let mut patch = Self { metadata, ..Self::default() };
        patch.take_modes(&mut rest);
        patch.take_models(&mut rest);
        patch.options = take_list(&mut rest, &["configOptions"], ConfigOption::read);
        patch.commands = take_list(&mut rest, &["availableCommands", "commands"], Command::read);
        patch.tools = take_list(&mut rest, &["tools", "availableTools"], Tool::read);
        patch.title = take_text(&mut rest, "title");
        patch.last_activity = take_text(&mut rest, "updatedAt");
        patch.understood = KNOWN
            .into_iter()
            .filter(|name| members.contains_key(*name) && !rest.contains_key(*name))
            .collect();
        patch.other = rest;
        patch
    }

    /// Parses a response whose unknown fields are not about the session.
    pub(crate) fn of_answer(answer: &Value) -> Self {
        Self { other: Map::new(), ..Self::of_state(answer) }
    }

    /// Parses an update of the agent; `None` if it does not change the snapshot.
    pub(crate) fn of_update(update: &Update) -> Option<Self> {
        if matches!(
            update.kind(),
            UpdateKind::Message(_)
                | UpdateKind::Thought(_)
                | UpdateKind::ToolCall(_)
                | UpdateKind::ToolCallUpdate(_)
        ) {
            // These are the most frequent ones, and do not need an empty patch.
            return None;
        }
        let mut patch = Self::default();
        match update.kind() {
            UpdateKind::Commands(commands) => patch.commands = Some(commands.clone()),
            UpdateKind::Mode { id } => patch.mode = Some(id.clone()),
            UpdateKind::ConfigOptions(options) => patch.options = Some(options.clone()),
            UpdateKind::Usage(usage) => {
                patch.context = Some((usage.used, usage.size));
                patch.cost.clone_from(&usage.cost);
            }
            UpdateKind::Info { .. } => {
                let mut members = update.raw().as_object().cloned().unwrap_or_default();
                patch.metadata = take_metadata(&mut members);
                patch.title = take_text(&mut members, "title");
                patch.last_activity = take_text(&mut members, "updatedAt");
            }
            _ => return None,
        }
        Some(patch)
    }

    /// The mode was set.
    pub(crate) fn of_mode(id: &str) -> Self {
        Self { mode: Some(id.to_owned()), ..Self::default() }
    }

    /// The model was set.
    pub(crate) fn of_model(id: &str) -> Self {
        Self { model: Some(id.to_owned()), ..Self::default() }
    }

    /// The options were set.
    pub(crate) fn of_options(options: Vec<ConfigOption>) -> Self {
        Self { options: Some(options), ..Self::default() }
    }

    /// Adds metadata that the application gave or changed. Fields of the response take precedence.
    pub(crate) fn with_metadata(mut self, metadata: SessionMetadata) -> Self {
        let answered = std::mem::replace(&mut self.metadata, metadata);
        self.metadata.merge(answered);
        if self.title.is_none() {
            self.title = self.metadata.title().map(|title| Some(title.to_owned()));
        }
        self
    }

    /// Takes the modes: an object with the list and the current one, or two fields.
    fn take_modes(&mut self, rest: &mut Map<String, Value>) {
        let mut modes = take_object(rest, "modes").unwrap_or_default();
        for place in [&mut modes, &mut *rest] {
            let list =
                take_list(place, &["availableModes"], |mode| serde_json::from_value(mode.clone()).ok());
            self.modes = self.modes.take().or(list);
            self.mode = self.mode.take().or_else(|| take_text(place, "currentModeId").flatten());
        }
        put_back(rest, "modes", modes);
    }

    fn take_models(&mut self, rest: &mut Map<String, Value>) {
        let mut models = take_object(rest, "models").unwrap_or_default();
        for place in [&mut models, &mut *rest] {
            let list =
                take_list(place, &["availableModels"], |model| serde_json::from_value(model.clone()).ok());
            self.models = self.models.take().or(list);
            self.model = self.model.take().or_else(|| take_text(place, "currentModelId").flatten());
        }
        // Entries of these two that cannot be parsed stay under the name of the field.
        let odd = ["availableModels", "currentModelId"].into_iter();
        let odd = odd.filter_map(|name| Some((name.to_owned(), models.shift_remove(name)?))).collect();
        put_back(rest, "models", odd);
        self.about_models = models;
    }
}

/// Puts back the unparsed rest of a field, if there is any.
fn put_back(members: &mut Map<String, Value>, name: &str, left: Map<String, Value>) {
    if !left.is_empty() {
        members.insert(name.to_owned(), left.into());
    }
}

fn take_object(members: &mut Map<String, Value>, name: &str) -> Option<Map<String, Value>> {
    members.get(name)?.as_object()?;
    match members.shift_remove(name) {
        Some(Value::Object(object)) => Some(object),
        _ => None,
    }
}

/// Takes the text of a field, with an inner `None` for `null`. A field of another type remains.
fn take_text(members: &mut Map<String, Value>, name: &str) -> Option<Option<String>> {
    let text = match members.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        _ => return None,
    };
    members.shift_remove(name);
    Some(text)
}

/// Takes the entries of the first field that is a list. Entries that cannot be parsed remain.
fn take_list<T>(
    members: &mut Map<String, Value>,
    names: &[&str],
    read: impl Fn(&Value) -> Option<T>,
) -> Option<Vec<T>> {
    let name = names.iter().find(|name| members.get(**name).is_some_and(Value::is_array))?;
    let Some(Value::Array(list)) = members.shift_remove(*name) else { return None };
    let mut odd = Vec::new();
    let mut entries = Vec::new();
    for entry in list {
        match read(&entry) {
            Some(read) => entries.push(read),
            None => odd.push(entry),
        }
    }
    if !odd.is_empty() {
        members.insert((*name).to_owned(), odd.into());
    }
    Some(entries)
}
