//! Parses JSON objects whose fields have two spellings and sometimes a wrong type.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The fields of a JSON object that have not been consumed yet.
///
/// Servers write the same field in snake case in one place and in camel case in another. Each `take` lists
/// every spelling. Fields that are never taken, or have an unexpected type, remain and can be preserved.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self(map)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the first spelling that `read` accepts.
    ///
    /// This also removes the other spellings that `read` accepts, and the first spelling, because the value
    /// is written back under that one. `null` counts as absent and is always removed.
    pub(crate) fn take<T>(&mut self, spellings: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let found = spellings.iter().find_map(|name| self.0.get(*name).and_then(&read));
        for (at, name) in spellings.iter().enumerate() {
            let used = self.0.get(*name).is_some_and(|value| value.is_null() || read(value).is_some());
            if used || (at == 0 && found.is_some()) {
                self.0.shift_remove(*name);
            }
        }
        found
    }

    pub(crate) fn string(&mut self, spellings: &[&str]) -> Option<String> {
        // With a single spelling the text is moved, not copied: it may be megabytes.
        let [name] = spellings else {
            return self.take(spellings, |value| value.as_str().map(str::to_owned));
        };
        self.0.get(*name).filter(|value| value.is_string() || value.is_null())?;
        match self.0.shift_remove(*name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Takes an object by name.
    pub(crate) fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        self.0.get(name).filter(|value| value.is_object())?;
        match self.0.shift_remove(name) {
            Some(Value::Object(members)) => Some(members),
            _ => None,
        }
    }

    pub(crate) fn bool(&mut self, spellings: &[&str]) -> Option<bool> {
        self.take(spellings, Value::as_bool)
    }

    pub(crate) fn unsigned(&mut self, spellings: &[&str]) -> Option<u64> {
        self.take(spellings, Value::as_u64)
    }

    pub(crate) fn integer(&mut self, spellings: &[&str]) -> Option<i64> {
        self.take(spellings, Value::as_i64)
    }

    /// Takes the strings of a list and skips other values.
    pub(crate) fn strings(&mut self, spellings: &[&str]) -> Option<Vec<String>> {
        self.take(spellings, |value| {
            Some(value.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        })
    }

    /// Returns the remaining fields.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// The error of parsing an object without a required field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object} has no valid `{member}`")]
#[non_exhaustive]
pub struct MissingMember {
    /// The kind of object.
    pub object: &'static str,
    /// The field that is missing or has the wrong type.
    pub member: &'static str,
}

/// Deserializes `null` as the default value, like an absent field.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Writes a field if there is a value: optional fields are omitted instead of sent as `null`.
pub(crate) fn put(map: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Fields;

    fn fields(value: serde_json::Value) -> Fields {
        Fields::new(value.as_object().cloned().unwrap())
    }

    #[test]
    fn the_first_spelling_of_the_right_type_is_taken_and_the_others_go_with_it() {
        let mut both = fields(json!({"exitCode": "three", "exit_code": 3, "keep": 1}));
        assert_eq!(both.integer(&["exitCode", "exit_code"]), Some(3));
        assert_eq!(serde_json::Value::from(both.rest()), json!({"keep": 1}));
    }

    #[test]
    fn a_wrong_type_is_left_over_and_a_null_is_not() {
        let mut odd = fields(json!({"exitCode": "three", "message": null}));
        assert_eq!(odd.integer(&["exitCode"]), None);
        assert_eq!(odd.string(&["message"]), None);
        assert_eq!(serde_json::Value::from(odd.rest()), json!({"exitCode": "three"}));
        let mut second = fields(json!({"exitCode": 3, "exit_code": "three"}));
        assert_eq!(second.integer(&["exitCode", "exit_code"]), Some(3));
        assert_eq!(serde_json::Value::from(second.rest()), json!({"exit_code": "three"}));
    }
}
