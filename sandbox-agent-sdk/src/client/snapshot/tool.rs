//! The tools of an agent.

use serde::Serialize;
use serde_json::Value;

/// A tool that an agent has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Tool {
    /// The name of the tool.
    pub name: String,
    /// A description of the tool.
    pub description: Option<String>,
    /// The raw JSON: an object, or a string with the name.
    pub raw: Value,
}

impl Tool {
    pub(super) fn read(value: &Value) -> Option<Self> {
        let text = |member: &str| value.get(member).and_then(Value::as_str).map(str::to_owned);
        let name = value.as_str().map(str::to_owned).or_else(|| text("name")).or_else(|| text("id"))?;
        Some(Self { name, description: text("description"), raw: value.clone() })
    }
}
