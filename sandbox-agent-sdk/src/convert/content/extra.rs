//! Common and unknown fields of content.

use serde_json::{Map, Value};

use crate::convert::decoded::{members_size, value_size};
use crate::convert::fields::{Fields, put};

/// The common fields of all content kinds, and unknown fields.
///
/// Serializing parsed content preserves every field.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ContentExtra {
    /// Hints for using and displaying the content.
    pub annotations: Option<Annotations>,
    /// The `_meta` field.
    pub meta: Option<Value>,
    /// Unknown fields, as received.
    pub other: Map<String, Value>,
    /// Fields of the object that wraps the content in a tool call, such as its `_meta`.
    pub wrapper: Map<String, Value>,
}

impl ContentExtra {
    /// Collects the fields that were not consumed; `None` if there are none.
    pub(super) fn take(mut fields: Fields) -> Option<Box<Self>> {
        if fields.is_empty() {
            return None;
        }
        let annotations = fields.take(&["annotations"], Annotations::read);
        let meta = fields.take(&["_meta"], |meta| Some(meta.clone()));
        let extra = Self { annotations, meta, other: fields.rest(), wrapper: Map::new() };
        (extra != Self::default()).then(|| Box::new(extra))
    }

    /// The memory of the fields.
    pub(super) fn size(&self) -> usize {
        let annotations = self.annotations.as_ref().map_or(0, |annotations| {
            let audience =
                annotations.audience.iter().flatten().map(|entry| size_of::<String>() + entry.len());
            let modified = annotations.last_modified.as_ref().map_or(0, String::len);
            audience.sum::<usize>() + modified + members_size(&annotations.other)
        });
        let meta = self.meta.as_ref().map_or(0, value_size);
        size_of::<Self>() + annotations + meta + members_size(&self.other) + members_size(&self.wrapper)
    }

    pub(super) fn put_into(&self, map: &mut Map<String, Value>) {
        put(map, "annotations", self.annotations.clone().map(Map::from));
        put(map, "_meta", self.meta.clone());
        map.extend(self.other.clone());
    }
}

/// Hints for using and displaying content.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Annotations {
    /// The intended audience: `user`, `assistant`.
    pub audience: Option<Vec<String>>,
    /// The time of the last change, as the agent formats it.
    pub last_modified: Option<String>,
    /// The importance, from 0 to 1.
    pub priority: Option<f64>,
    /// Unknown fields and `_meta`.
    pub other: Map<String, Value>,
}

impl Annotations {
    fn read(value: &Value) -> Option<Self> {
        let mut fields = Fields::new(value.as_object()?.clone());
        let audience = fields.take(&["audience"], |value| {
            value.as_array()?.iter().map(|entry| entry.as_str().map(str::to_owned)).collect()
        });
        Some(Self {
            audience,
            last_modified: fields.string(&["lastModified"]),
            priority: fields.take(&["priority"], Value::as_f64),
            other: fields.rest(),
        })
    }
}

impl From<Annotations> for Map<String, Value> {
    fn from(annotations: Annotations) -> Self {
        let mut map = Self::new();
        put(&mut map, "audience", annotations.audience);
        put(&mut map, "lastModified", annotations.last_modified);
        put(&mut map, "priority", annotations.priority);
        map.extend(annotations.other);
        map
    }
}
