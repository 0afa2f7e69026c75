//! Content as JSON, in both directions.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{Content, ContentExtra};
use crate::convert::fields::{Fields, put};

impl Content {
    /// Parses a content block. If a required field is missing, it becomes [`Content::Other`].
    pub(crate) fn from_value(value: Value) -> Self {
        match value {
            Value::Object(members) if is_whole(&members) => Self::read(members),
            other => Self::Other(other),
        }
    }

    /// Parses a content block that has all required fields.
    fn read(members: Map<String, Value>) -> Self {
        let mut fields = Fields::new(members);
        let kind = fields.string(&["type"]).unwrap_or_default();
        let mut needed = |name: &str| fields.string(&[name]).unwrap_or_default();
        match kind.as_str() {
            "text" => Self::Text { text: needed("text"), extra: ContentExtra::take(fields) },
            "image" => Self::Image {
                data: needed("data"),
                mime_type: needed("mimeType"),
                uri: fields.string(&["uri"]),
                extra: ContentExtra::take(fields),
            },
            "audio" => Self::Audio {
                data: needed("data"),
                mime_type: needed("mimeType"),
                extra: ContentExtra::take(fields),
            },
            "resource_link" => Self::Link {
                uri: needed("uri"),
                name: needed("name"),
                title: fields.string(&["title"]),
                description: fields.string(&["description"]),
                mime_type: fields.string(&["mimeType"]),
                size: fields.unsigned(&["size"]),
                extra: ContentExtra::take(fields),
            },
            "diff" => Self::Diff {
                path: needed("path"),
                new_text: needed("newText"),
                old_text: fields.string(&["oldText"]),
                extra: ContentExtra::take(fields),
            },
            "terminal" => Self::Terminal { id: needed("terminalId"), extra: ContentExtra::take(fields) },
            _ => {
                let inside = fields.object("resource").unwrap_or_default();
                Self::read_resource(Fields::new(inside), ContentExtra::take(fields))
            }
        }
    }

    fn read_resource(mut inside: Fields, extra: ContentExtra) -> Self {
        let uri = inside.string(&["uri"]).unwrap_or_default();
        let mime_type = inside.string(&["mimeType"]);
        match inside.string(&["text"]) {
            Some(text) => Self::Resource { uri, text, mime_type, resource: inside.rest(), extra },
            None => {
                let blob = inside.string(&["blob"]).unwrap_or_default();
                Self::Blob { uri, blob, mime_type, resource: inside.rest(), extra }
            }
        }
    }

    /// Parses an entry of a tool call's content. Entries other than diffs and terminals are wrapped in an
    /// object.
    pub(crate) fn from_tool_call(entry: &Value) -> Self {
        let Some(members) = entry.as_object().filter(|members| {
            members.get("type").is_some_and(|kind| kind == "content") && members.contains_key("content")
        }) else {
            return Self::from_value(entry.clone());
        };
        let mut wrapper = members.clone();
        wrapper.shift_remove("type");
        let mut content = Self::from_value(wrapper.shift_remove("content").unwrap_or_default());
        match content.extra_mut() {
            Some(extra) => extra.wrapper = wrapper,
            // If the content cannot be parsed and the wrapper has other fields, the whole entry is preserved.
            None if !wrapper.is_empty() => return Self::Other(entry.clone()),
            None => {}
        }
        content
    }

    /// Converts the content back to an entry of a tool call's content.
    pub(crate) fn to_tool_call(&self) -> Value {
        let Some(extra) = self.extra() else {
            // Unparsed content was either a whole entry or the content of one.
            let own = |value: &Value| matches!(value["type"].as_str(), Some("content" | "diff" | "terminal"));
            let value = self.to_value();
            return if own(&value) { value } else { json!({"type": "content", "content": value}) };
        };
        if matches!(self, Self::Diff { .. } | Self::Terminal { .. }) {
            return self.to_value();
        }
        let mut map = Map::new();
        put(&mut map, "type", Some("content"));
        put(&mut map, "content", Some(self.to_value()));
        map.extend(extra.wrapper.clone());
        map.into()
    }

    pub(crate) fn to_value(&self) -> Value {
        let mut map = Map::new();
        match self {
            Self::Text { text, .. } => {
                put(&mut map, "type", Some("text"));
                put(&mut map, "text", Some(text.as_str()));
            }
            Self::Image { data, mime_type, uri, .. } => {
                put(&mut map, "type", Some("image"));
                put(&mut map, "data", Some(data.as_str()));
                put(&mut map, "mimeType", Some(mime_type.as_str()));
                put(&mut map, "uri", uri.as_deref());
            }
            Self::Audio { data, mime_type, .. } => {
                put(&mut map, "type", Some("audio"));
                put(&mut map, "data", Some(data.as_str()));
                put(&mut map, "mimeType", Some(mime_type.as_str()));
            }
            Self::Link { uri, name, title, description, mime_type, size, .. } => {
                put(&mut map, "type", Some("resource_link"));
                put(&mut map, "uri", Some(uri.as_str()));
                put(&mut map, "name", Some(name.as_str()));
                put(&mut map, "title", title.as_deref());
                put(&mut map, "description", description.as_deref());
                put(&mut map, "mimeType", mime_type.as_deref());
                put(&mut map, "size", *size);
            }
            Self::Resource { uri, text: content, mime_type, resource, .. }
            | Self::Blob { uri, blob: content, mime_type, resource, .. } => {
                let name = if matches!(self, Self::Blob { .. }) { "blob" } else { "text" };
                let mut inside = Map::new();
                put(&mut inside, "uri", Some(uri.as_str()));
                put(&mut inside, name, Some(content.as_str()));
                put(&mut inside, "mimeType", mime_type.as_deref());
                inside.extend(resource.clone());
                put(&mut map, "type", Some("resource"));
                put(&mut map, "resource", Some(inside));
            }
            Self::Diff { path, old_text, new_text, .. } => {
                put(&mut map, "type", Some("diff"));
                put(&mut map, "path", Some(path.as_str()));
                map.insert("oldText".to_owned(), json!(old_text));
                put(&mut map, "newText", Some(new_text.as_str()));
            }
            Self::Terminal { id, .. } => {
                put(&mut map, "type", Some("terminal"));
                put(&mut map, "terminalId", Some(id.as_str()));
            }
            Self::Other(value) => return value.clone(),
        }
        if let Some(extra) = self.extra() {
            extra.put_into(&mut map);
        }
        map.into()
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from_value)
    }
}

/// Whether content of a known kind has all required fields.
fn is_whole(members: &Map<String, Value>) -> bool {
    let has = |members: &Map<String, Value>, name: &str| members.get(name).is_some_and(Value::is_string);
    let needed: &[&str] = match members.get("type").and_then(Value::as_str) {
        Some("text") => &["text"],
        Some("image" | "audio") => &["data", "mimeType"],
        Some("resource_link") => &["uri", "name"],
        Some("diff") => &["path", "newText"],
        Some("terminal") => &["terminalId"],
        Some("resource") => {
            let resource = members.get("resource").and_then(Value::as_object);
            return resource
                .is_some_and(|inside| has(inside, "uri") && (has(inside, "text") || has(inside, "blob")));
        }
        _ => return false,
    };
    needed.iter().all(|name| has(members, name))
}
