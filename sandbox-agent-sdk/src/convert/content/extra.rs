//! What a piece of content says besides what it is.

use serde_json::{Map, Value};

use crate::convert::fields::{Fields, put};

/// Members that every kind of content can have, and those without a field of their own.
///
/// Nothing is dropped: content that is read and written again has every member it came with.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ContentExtra {
    /// Hints on how to use and show it.
    pub annotations: Option<Annotations>,
    /// The member `_meta`.
    pub meta: Option<Value>,
    /// Members that this version does not know, as they came.
    pub other: Map<String, Value>,
    /// Members of the object that wraps the content in a tool call, such as its `_meta`.
    pub wrapper: Map<String, Value>,
}

impl ContentExtra {
    /// Takes whatever the fields of the content have left over.
    pub(super) fn take(mut fields: Fields) -> Self {
        let annotations = fields.take(&["annotations"], Annotations::read);
        let meta = fields.take(&["_meta"], |meta| Some(meta.clone()));
        Self { annotations, meta, other: fields.rest(), wrapper: Map::new() }
    }

    pub(super) fn put_into(&self, map: &mut Map<String, Value>) {
        put(map, "annotations", self.annotations.clone().map(Map::from));
        put(map, "_meta", self.meta.clone());
        map.extend(self.other.clone());
    }
}

/// Hints on how to use and show a piece of content.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Annotations {
    /// Who it is for: `user`, `assistant`.
    pub audience: Option<Vec<String>>,
    /// When it was last changed, as the agent writes it.
    pub last_modified: Option<String>,
    /// How important it is, from 0 to 1.
    pub priority: Option<f64>,
    /// Members that this version does not know, and `_meta`.
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
