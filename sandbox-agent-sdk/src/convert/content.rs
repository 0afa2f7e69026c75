//! The content of prompts and messages.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::convert::fields::{Fields, put};

mod extra;

pub use extra::{Annotations, ContentExtra};

/// A content block of a prompt, a message or a tool call.
///
/// Serializes to the wire format of agents, including unknown fields.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// Text.
    #[non_exhaustive]
    Text {
        /// The text.
        text: String,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// An image.
    #[non_exhaustive]
    Image {
        /// The image data in base64.
        data: String,
        /// The media type, such as `image/png`.
        mime_type: String,
        /// The source of the image.
        uri: Option<String>,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// An audio clip.
    #[non_exhaustive]
    Audio {
        /// The audio data in base64.
        data: String,
        /// The media type, such as `audio/wav`.
        mime_type: String,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// A link to a resource that the agent can fetch, such as a file.
    #[non_exhaustive]
    Link {
        /// The URI of the resource.
        uri: String,
        /// The name of the resource.
        name: String,
        /// The display title.
        title: Option<String>,
        /// A description of the resource.
        description: Option<String>,
        /// The media type, such as `text/plain`.
        mime_type: Option<String>,
        /// The size in bytes.
        size: Option<u64>,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// An embedded resource with text.
    #[non_exhaustive]
    Resource {
        /// The URI of the resource.
        uri: String,
        /// The text of the resource.
        text: String,
        /// The media type, such as `text/plain`.
        mime_type: Option<String>,
        /// The other fields of the resource, including its `_meta`.
        resource: Map<String, Value>,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// An embedded resource with binary data.
    #[non_exhaustive]
    Blob {
        /// The URI of the resource.
        uri: String,
        /// The data in base64.
        blob: String,
        /// The media type, such as `application/pdf`.
        mime_type: Option<String>,
        /// The other fields of the resource, including its `_meta`.
        resource: Map<String, Value>,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// A change that a tool call makes to a file.
    #[non_exhaustive]
    Diff {
        /// The path of the file.
        path: String,
        /// The old contents; `None` for a new file.
        old_text: Option<String>,
        /// The new contents.
        new_text: String,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// The output of a terminal in which a tool call runs.
    #[non_exhaustive]
    Terminal {
        /// The id of the terminal.
        id: String,
        /// Annotations, `_meta` and unknown fields.
        extra: ContentExtra,
    },
    /// Any other content, as JSON.
    Other(Value),
}

impl Content {
    /// Creates text content.
    #[must_use]
    pub fn text_of(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), extra: ContentExtra::default() }
    }

    /// Creates an image from base64 data and a media type, such as `image/png`.
    #[must_use]
    pub fn image(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Image {
            data: data.into(),
            mime_type: mime_type.into(),
            uri: None,
            extra: ContentExtra::default(),
        }
    }

    /// Creates an audio clip from base64 data and a media type, such as `audio/wav`.
    #[must_use]
    pub fn audio(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Audio { data: data.into(), mime_type: mime_type.into(), extra: ContentExtra::default() }
    }

    /// Creates a link to a resource that the agent can fetch, such as a file.
    #[must_use]
    pub fn link(uri: impl Into<String>, name: impl Into<String>) -> Self {
        Self::Link {
            uri: uri.into(),
            name: name.into(),
            title: None,
            description: None,
            mime_type: None,
            size: None,
            extra: ContentExtra::default(),
        }
    }

    /// Creates an embedded resource with text.
    #[must_use]
    pub fn resource(uri: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Resource {
            uri: uri.into(),
            text: text.into(),
            mime_type: None,
            resource: Map::new(),
            extra: ContentExtra::default(),
        }
    }

    /// Creates an embedded resource with base64 data.
    #[must_use]
    pub fn blob(uri: impl Into<String>, blob: impl Into<String>) -> Self {
        Self::Blob {
            uri: uri.into(),
            blob: blob.into(),
            mime_type: None,
            resource: Map::new(),
            extra: ContentExtra::default(),
        }
    }

    /// Creates a change of a file.
    #[must_use]
    pub fn diff(path: impl Into<String>, old_text: Option<String>, new_text: impl Into<String>) -> Self {
        let (path, new_text) = (path.into(), new_text.into());
        Self::Diff { path, old_text, new_text, extra: ContentExtra::default() }
    }

    /// Returns the original text, if this is text.
    ///
    /// It may contain terminal escapes; [`printable`](crate::convert::text::printable) makes it safe to
    /// print.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns annotations, `_meta` and unknown fields.
    ///
    /// Returns `None` for [`Content::Other`], which contains all its fields.
    #[must_use]
    pub fn extra(&self) -> Option<&ContentExtra> {
        match self {
            Self::Text { extra, .. }
            | Self::Image { extra, .. }
            | Self::Audio { extra, .. }
            | Self::Link { extra, .. }
            | Self::Resource { extra, .. }
            | Self::Blob { extra, .. }
            | Self::Diff { extra, .. }
            | Self::Terminal { extra, .. } => Some(extra),
            Self::Other(_) => None,
        }
    }

    fn extra_mut(&mut self) -> Option<&mut ContentExtra> {
        match self {
            Self::Text { extra, .. }
            | Self::Image { extra, .. }
            | Self::Audio { extra, .. }
            | Self::Link { extra, .. }
            | Self::Resource { extra, .. }
            | Self::Blob { extra, .. }
            | Self::Diff { extra, .. }
            | Self::Terminal { extra, .. } => Some(extra),
            Self::Other(_) => None,
        }
    }

    /// Adds a field that this version does not know, or `_meta`.
    #[must_use]
    pub fn with_member(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let (name, value) = (name.into(), value.into());
        match &mut self {
            Self::Other(Value::Object(members)) => drop(members.insert(name, value)),
            content => {
                if let Some(extra) = content.extra_mut() {
                    extra.other.insert(name, value);
                }
            }
        }
        self
    }

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

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::text_of(text)
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::text_of(text)
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

/// The input of a turn: text, or several content blocks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prompt {
    content: Vec<Content>,
}

impl Prompt {
    /// Creates a prompt from several content blocks.
    #[must_use]
    pub fn new(content: impl IntoIterator<Item = impl Into<Content>>) -> Self {
        Self { content: content.into_iter().map(Into::into).collect() }
    }

    #[cfg(feature = "sessions")]
    /// Inserts a content block at the beginning.
    pub(crate) fn after(mut self, content: Content) -> Self {
        self.content.insert(0, content);
        self
    }

    /// Appends a content block.
    #[must_use]
    pub fn with(mut self, content: impl Into<Content>) -> Self {
        self.content.push(content.into());
        self
    }

    /// Whether the prompt is empty: it has no blocks, or only empty texts.
    pub(crate) fn is_empty(&self) -> bool {
        self.content
            .iter()
            .all(|content| matches!(content, Content::Text { text, .. } if text.trim().is_empty()))
    }

    pub(crate) fn to_value(&self) -> Value {
        self.content.iter().map(Content::to_value).collect()
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::new([text])
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::new([text])
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Self {
        Self::new([text.as_str()])
    }
}

impl From<Content> for Prompt {
    fn from(content: Content) -> Self {
        Self::new([content])
    }
}

impl From<Vec<Content>> for Prompt {
    fn from(content: Vec<Content>) -> Self {
        Self { content }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Content, Prompt};

    #[test]
    fn every_kind_is_written_as_it_is_read_and_no_member_is_lost() {
        let extras = json!({"annotations": {"audience": ["user"], "priority": 0.5, "lastModified": "today", "new": 1,
            "_meta": {"a": 1}}, "_meta": {"b": 2}, "brandNew": [3]});
        for value in [
            json!({"type": "text", "text": "hello"}),
            json!({"type": "image", "data": "aGk=", "mimeType": "image/png", "uri": "file:///a.png"}),
            json!({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
            json!({"type": "resource_link", "uri": "file:///a", "name": "a", "title": "A", "description": "d",
                "mimeType": "text/plain", "size": 3}),
            json!({"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain",
                "_meta": {"c": 3}, "odd": 1}}),
            json!({"type": "resource", "resource": {"uri": "file:///a", "blob": "aGk="}}),
            json!({"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}),
            json!({"type": "diff", "path": "/a", "oldText": null, "newText": "y"}),
            json!({"type": "terminal", "terminalId": "t-1"}),
            json!({"type": "image", "data": "aGk=", "mimeType": "image/png", "uri": 5}),
        ] {
            let mut full = value.clone();
            for (name, member) in extras.as_object().unwrap() {
                full[name] = member.clone();
            }
            for value in [value, full] {
                let content = Content::from_value(value.clone());
                assert!(!matches!(content, Content::Other(_)), "{value}");
                assert_eq!(content.to_value(), value);
                assert_eq!(serde_json::from_value::<Content>(json!(content)).unwrap(), content);
            }
        }
        for value in [
            json!({"type": "diff", "path": "/a"}),
            json!({"type": "hologram", "depth": 3}),
            json!({"type": "resource", "resource": {"uri": "file:///a"}}),
            json!({"type": "text"}),
            json!(5),
        ] {
            assert_eq!(Content::from_value(value.clone()), Content::Other(value));
        }
        let content =
            Content::from_value(json!({"type": "text", "text": "a", "annotations": {"priority": 1}}));
        assert_eq!(content.text(), Some("a"));
        let annotations = content.extra().unwrap().annotations.as_ref().unwrap();
        assert_eq!((annotations.priority, &annotations.audience), (Some(1.0), &None));
    }

    #[test]
    fn what_wraps_content_in_a_tool_call_is_kept() {
        let entry = json!({"type": "content", "content": {"type": "text", "text": "x"}, "_meta": {"a": 1}});
        let content = Content::from_tool_call(&entry);
        assert_eq!(content.text(), Some("x"));
        assert_eq!(content.extra().unwrap().wrapper["_meta"], json!({"a": 1}));
        let odd = json!({"type": "content", "content": {"type": "hologram"}, "_meta": {"a": 1}});
        assert_eq!(Content::from_tool_call(&odd), Content::Other(odd));
        let bare = json!({"type": "content", "content": {"type": "hologram"}});
        assert_eq!(Content::from_tool_call(&bare), Content::Other(json!({"type": "hologram"})));
    }

    #[test]
    fn a_prompt_is_text_or_several_pieces() {
        assert_eq!(Prompt::from("hi").to_value(), json!([{"type": "text", "text": "hi"}]));
        let link = Content::link("file:///a", "a");
        let prompt = Prompt::from("look at").with(link.clone());
        assert_eq!(prompt, Prompt::from(vec![Content::from("look at"), link]));
    }
}
