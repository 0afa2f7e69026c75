//! Content as JSON, in both directions.

use std::borrow::Cow;

use serde::de::{MapAccess, SeqAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::Content;
use super::builder::{Builder, Kind};
use crate::convert::fields::put;
use crate::convert::lenient::{self, Lenient};

impl Content {
    /// Parses a content block. If a required field is missing, it becomes [`Content::Other`].
    pub(crate) fn from_value(value: Value) -> Self {
        let kind = value.get("type").and_then(Value::as_str).and_then(Kind::of);
        match (kind, value) {
            (Some(kind), Value::Object(members)) => {
                let mut builder = Builder::new(kind);
                let members = members.into_iter().filter(|(name, _)| name != "type");
                members.for_each(|(name, value)| builder.put(Cow::Owned(name), value));
                builder.finish()
            }
            (_, other) => Self::Other(other),
        }
    }

    /// Parses an entry of a tool call's content. Entries other than diffs and terminals are wrapped in an
    /// object.
    pub(crate) fn from_tool_call(entry: Value) -> Self {
        match entry {
            Value::Object(mut members)
                if members.get("type").is_some_and(|kind| kind == WRAPPED)
                    && members.contains_key("content") =>
            {
                members.shift_remove("type");
                let content = Self::from_value(members.shift_remove("content").unwrap_or_default());
                content.wrapped_in(members)
            }
            other => Self::from_value(other),
        }
    }

    /// Adds the other fields of the object that wraps the content in a tool call.
    fn wrapped_in(mut self, wrapper: Map<String, Value>) -> Self {
        if wrapper.is_empty() {
            return self;
        }
        match self.extra_mut() {
            Some(extra) => extra.get_or_insert_default().wrapper = wrapper,
            // Content that cannot be parsed has no field for them, so the whole entry is preserved.
            None => {
                let mut entry = Map::new();
                put(&mut entry, "type", Some(WRAPPED));
                put(&mut entry, "content", Some(self.to_value()));
                entry.extend(wrapper);
                return Self::Other(entry.into());
            }
        }
        self
    }

    /// Converts the content back to an entry of a tool call's content.
    pub(crate) fn to_tool_call(&self) -> Value {
        match self {
            Self::Diff { .. } | Self::Terminal { .. } => return self.to_value(),
            Self::Other(value) => {
                // Unparsed content was either a whole entry or the content of one.
                if matches!(value["type"].as_str(), Some(WRAPPED | "diff" | "terminal")) {
                    return value.clone();
                }
            }
            _ => {}
        }
        let mut map = Map::new();
        put(&mut map, "type", Some(WRAPPED));
        put(&mut map, "content", Some(self.to_value()));
        map.extend(self.extra().map(|extra| extra.wrapper.clone()).unwrap_or_default());
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

/// The `type` of an object that wraps content in a tool call.
const WRAPPED: &str = "content";

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lenient::deserialize(deserializer).map(|content| content.unwrap_or(Self::Other(Value::Null)))
    }
}

/// Any JSON is content. Objects with a known type have a variant.
impl<'de> Lenient<'de> for Content {
    fn text(text: &str) -> Option<Self> {
        Some(Self::Other(text.into()))
    }

    fn scalar(value: Value) -> Option<Self> {
        Some(Self::Other(value))
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        Ok(Value::list(list)?.map(Self::Other))
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        match Tag::first(&mut object)? {
            Tag::Known(kind) => kind.content(object, Self::from_value),
            Tag::Other(members) => rest(members, object).map(Self::from_value),
        }
        .map(Some)
    }
}

/// An entry of a tool call's content.
pub(crate) struct ToolCallContent(pub(crate) Content);

impl<'de> Lenient<'de> for ToolCallContent {
    fn text(text: &str) -> Option<Self> {
        Some(Self(Content::Other(text.into())))
    }

    fn scalar(value: Value) -> Option<Self> {
        Content::scalar(value).map(Self)
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        Ok(Content::list(list)?.map(Self))
    }

    fn object<A: MapAccess<'de>>(mut object: A) -> Result<Option<Self>, A::Error> {
        let mut members = match Tag::first(&mut object)? {
            Tag::Known(kind) => {
                return kind.content(object, Content::from_tool_call).map(|content| Some(Self(content)));
            }
            Tag::Other(members) => members,
        };
        if members.get("type").is_some_and(|kind| kind == WRAPPED) {
            match lenient::next_name(&mut object)? {
                // The usual order: the type, then the content.
                Some(name) if name == "content" => {
                    let content = lenient::value(&mut object)?.unwrap_or(Content::Other(Value::Null));
                    let Value::Object(wrapper) = rest(Map::new(), object)? else { return Ok(None) };
                    if !wrapper.contains_key("type") && !wrapper.contains_key("content") {
                        return Ok(Some(Self(content.wrapped_in(wrapper))));
                    }
                    members.insert(name.into_owned(), content.to_value());
                    members.extend(wrapper);
                    return Ok(Some(Self(Content::from_tool_call(members.into()))));
                }
                Some(name) => drop(members.insert(name.into_owned(), object.next_value()?)),
                None => {}
            }
        }
        Ok(Some(Self(Content::from_tool_call(rest(members, object)?))))
    }
}

impl Kind {
    /// Parses the fields after the type. If the type is repeated, the last one counts, and `general` parses the
    /// object.
    fn content<'de, A: MapAccess<'de>>(
        &'static self,
        mut object: A,
        general: fn(Value) -> Content,
    ) -> Result<Content, A::Error> {
        let mut builder = Builder::new(self);
        while let Some(name) = lenient::next_name(&mut object)? {
            let value = object.next_value()?;
            if name == "type" {
                let mut members = builder.into_members();
                members.insert(name.into_owned(), value);
                return rest(members, object).map(general);
            }
            builder.put(name, value);
        }
        Ok(builder.finish())
    }
}

/// The type of content, if that is the first field.
enum Tag {
    Known(&'static Kind),
    /// What was parsed to see that it is not a known type, or not the first field.
    Other(Map<String, Value>),
}

impl Tag {
    fn first<'de, A: MapAccess<'de>>(object: &mut A) -> Result<Self, A::Error> {
        let mut members = Map::new();
        if let Some(name) = lenient::next_name(object)? {
            if name == "type" {
                let tag: Option<Self> = lenient::value(object)?;
                return Ok(tag.unwrap_or(Self::Other(members)));
            }
            members.insert(name.into_owned(), object.next_value()?);
        }
        Ok(Self::Other(members))
    }

    fn other(value: Value) -> Option<Self> {
        Some(Self::Other(Map::from_iter([("type".to_owned(), value)])))
    }
}

impl<'de> Lenient<'de> for Tag {
    fn text(text: &str) -> Option<Self> {
        Kind::of(text).map(Self::Known).or_else(|| Self::other(text.into()))
    }

    fn scalar(value: Value) -> Option<Self> {
        Self::other(value)
    }

    fn list<A: SeqAccess<'de>>(list: A) -> Result<Option<Self>, A::Error> {
        Ok(Value::list(list)?.and_then(Self::other))
    }

    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        Ok(Value::object(object)?.and_then(Self::other))
    }
}

/// Parses the remaining fields of an object as they are.
fn rest<'de, A: MapAccess<'de>>(mut members: Map<String, Value>, object: A) -> Result<Value, A::Error> {
    lenient::fields(object, |name, object| {
        members.insert(name.into_owned(), object.next_value()?);
        Ok(())
    })?;
    Ok(members.into())
}
