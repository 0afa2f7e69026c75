//! Configuration options of a session.

use serde::Serialize;
use serde_json::Value;

use super::{meta, read_list, text};
use crate::convert::open_enum::open_enum;

open_enum! {
    /// The type of a configuration option.
    pub enum ConfigKind {
        /// One of a list of values.
        Select = "select",
        /// `true` or `false`.
        Boolean = "boolean",
    }
}

/// A configuration option of a session.
///
/// Serializes to the raw JSON, with the current value.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConfigOption {
    /// The id that identifies the option.
    pub id: String,
    /// The display name.
    pub name: String,
    /// A description of the option.
    pub description: Option<String>,
    /// The purpose: `mode`, `model`, `thought_level` or another one.
    pub category: Option<String>,
    /// The type of the option.
    pub kind: ConfigKind,
    /// The current value: a string, or a boolean for [`ConfigKind::Boolean`].
    pub current: Value,
    /// The available values; empty for a boolean option.
    pub values: Vec<ConfigValue>,
    /// The raw JSON.
    pub raw: Value,
}

/// A value of a configuration option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConfigValue {
    /// The value.
    pub value: String,
    /// The display name.
    pub name: String,
    /// A description of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The group of the value, if the values are grouped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The `_meta` field.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl ConfigOption {
    /// Parses the `configOptions` of an update or a response.
    pub(crate) fn read_all(value: &Value) -> Option<Vec<Self>> {
        read_list(value, "configOptions", Self::read)
    }

    pub(crate) fn read(option: &Value) -> Option<Self> {
        let id = text(option, "id")?;
        let mut values = Vec::new();
        for entry in option.get("options").and_then(Value::as_array).into_iter().flatten() {
            match entry.get("options").and_then(Value::as_array) {
                Some(grouped) => {
                    let group = entry.get("name").or_else(|| entry.get("group")).and_then(Value::as_str);
                    values.extend(grouped.iter().filter_map(|value| ConfigValue::read(value, group)));
                }
                None => values.extend(ConfigValue::read(entry, None)),
            }
        }
        let current = option.get("currentValue").cloned().unwrap_or_default();
        let kind = text(option, "type").map(ConfigKind::from);
        Some(Self {
            name: text(option, "name").unwrap_or_else(|| id.clone()),
            id,
            description: text(option, "description"),
            category: text(option, "category"),
            kind: kind.unwrap_or(if current.is_boolean() { ConfigKind::Boolean } else { ConfigKind::Select }),
            current,
            values,
            raw: option.clone(),
        })
    }

    /// Returns the value of a boolean option; `None` for other options.
    #[must_use]
    pub fn is_on(&self) -> Option<bool> {
        self.current.as_bool()
    }

    /// Returns the `_meta` field.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.get("_meta")
    }
}

impl Serialize for ConfigOption {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = self.raw.clone();
        if let Some(members) = value.as_object_mut() {
            members.insert("currentValue".to_owned(), self.current.clone());
        }
        value.serialize(serializer)
    }
}

impl ConfigValue {
    fn read(value: &Value, group: Option<&str>) -> Option<Self> {
        let id = text(value, "value")?;
        Some(Self {
            name: text(value, "name").unwrap_or_else(|| id.clone()),
            value: id,
            description: text(value, "description"),
            group: group.map(str::to_owned),
            meta: meta(value),
        })
    }
}
