//! The options of a session.

use serde_json::Value;

use super::read_list;

/// An option that can be set for a session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ConfigOption {
    /// The id by which it is set.
    pub id: String,
    /// The name to show.
    pub name: String,
    /// What it is for: `mode`, `model`, `thought_level` or something else.
    pub category: Option<String>,
    /// The value in force.
    pub current: Value,
    /// The values to choose from; empty for an option that is switched on and off.
    pub values: Vec<ConfigValue>,
    /// The JSON it came as.
    pub raw: Value,
}

/// A value that an option can have.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigValue {
    /// The value.
    pub value: String,
    /// The name to show.
    pub name: String,
    /// The heading it stands under, if the values are grouped.
    pub group: Option<String>,
}

impl ConfigOption {
    /// Reads the `configOptions` of an update or of an answer.
    pub(crate) fn read_all(value: &Value) -> Option<Vec<Self>> {
        read_list(value, "configOptions", Self::read)
    }

    pub(crate) fn read(option: &Value) -> Option<Self> {
        let text = |member: &str| option.get(member).and_then(Value::as_str).map(str::to_owned);
        let id = text("id")?;
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
        Some(Self {
            name: text("name").unwrap_or_else(|| id.clone()),
            id,
            category: text("category"),
            current: option.get("currentValue").cloned().unwrap_or_default(),
            values,
            raw: option.clone(),
        })
    }
}

impl ConfigValue {
    fn read(value: &Value, group: Option<&str>) -> Option<Self> {
        let text = |member: &str| value.get(member).and_then(Value::as_str).map(str::to_owned);
        let id = text("value")?;
        Some(Self {
            name: text("name").unwrap_or_else(|| id.clone()),
            value: id,
            group: group.map(str::to_owned),
        })
    }
}
