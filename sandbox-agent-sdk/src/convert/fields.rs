//! Reading JSON objects whose members come in two spellings and sometimes in the wrong type.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// The members of a JSON object that have not been read yet.
///
/// Servers write one and the same member in snake case in one place and in camel case in another. Each
/// `take` names every spelling; what is never taken, or has a type nobody expected, is left over and can be
/// kept.
#[derive(Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// The first of the spellings that `read` accepts. It is used up together with the others that say the
    /// same thing in a good type, and with the first spelling, under which the value will be written again.
    ///
    /// A `null` says no more than an absent member and is used up in any case.
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
        // With one spelling, the text is moved instead of copied: it may be megabytes.
        let [name] = spellings else {
            return self.take(spellings, |value| value.as_str().map(str::to_owned));
        };
        self.0.get(*name).filter(|value| value.is_string() || value.is_null())?;
        match self.0.shift_remove(*name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// An object by its name.
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

    /// All strings of a list; what is no string among them is passed over.
    pub(crate) fn strings(&mut self, spellings: &[&str]) -> Option<Vec<String>> {
        self.take(spellings, |value| {
            Some(value.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        })
    }

    /// Everything that was not taken.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// An object came without a member that it makes no sense without.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object} without a {member}")]
#[non_exhaustive]
pub struct MissingMember {
    /// What the object is about.
    pub object: &'static str,
    /// The member that is missing or of the wrong type.
    pub member: &'static str,
}

/// Reads a member that is `null` as its default, the same as one that is absent.
pub(crate) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Writes a member unless there is nothing to write: optional members are left out rather than sent as
/// `null`.
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
