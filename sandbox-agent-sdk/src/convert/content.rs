//! The content of prompts and messages.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::convert::decoded::{members_size, value_size};

mod builder;
mod codec;
mod extra;

pub(crate) use codec::ToolCallContent;
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
    },
    /// An audio clip.
    #[non_exhaustive]
    Audio {
        /// The audio data in base64.
        data: String,
        /// The media type, such as `audio/wav`.
        mime_type: String,
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
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
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
    },
    /// The output of a terminal in which a tool call runs.
    #[non_exhaustive]
    Terminal {
        /// The id of the terminal.
        id: String,
        /// Annotations, `_meta` and unknown fields, if there are any.
        extra: Option<Box<ContentExtra>>,
    },
    /// Any other content, as JSON.
    Other(Value),
}

impl Content {
    /// Creates text content.
    #[must_use]
    pub fn text_of(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), extra: None }
    }

    /// Creates an image from base64 data and a media type, such as `image/png`.
    #[must_use]
    pub fn image(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Image { data: data.into(), mime_type: mime_type.into(), uri: None, extra: None }
    }

    /// Creates an audio clip from base64 data and a media type, such as `audio/wav`.
    #[must_use]
    pub fn audio(data: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::Audio { data: data.into(), mime_type: mime_type.into(), extra: None }
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
            extra: None,
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
            extra: None,
        }
    }

    /// Creates an embedded resource with base64 data.
    #[must_use]
    pub fn blob(uri: impl Into<String>, blob: impl Into<String>) -> Self {
        Self::Blob { uri: uri.into(), blob: blob.into(), mime_type: None, resource: Map::new(), extra: None }
    }

    /// Creates a change of a file.
    #[must_use]
    pub fn diff(path: impl Into<String>, old_text: Option<String>, new_text: impl Into<String>) -> Self {
        let (path, new_text) = (path.into(), new_text.into());
        Self::Diff { path, old_text, new_text, extra: None }
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

    /// Returns annotations, `_meta` and unknown fields, if there are any.
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
            | Self::Terminal { extra, .. } => extra.as_deref(),
            Self::Other(_) => None,
        }
    }

    fn extra_mut(&mut self) -> Option<&mut Option<Box<ContentExtra>>> {
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

    /// The memory of the content, besides the value itself.
    pub(crate) fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let fields = match self {
            Self::Text { text, .. } => text.len(),
            Self::Image { data, mime_type, uri, .. } => data.len() + mime_type.len() + text(uri),
            Self::Audio { data, mime_type, .. } => data.len() + mime_type.len(),
            Self::Link { uri, name, title, description, mime_type, .. } => {
                uri.len() + name.len() + text(title) + text(description) + text(mime_type)
            }
            Self::Resource { uri, text: content, mime_type, resource, .. }
            | Self::Blob { uri, blob: content, mime_type, resource, .. } => {
                uri.len() + content.len() + text(mime_type) + members_size(resource)
            }
            Self::Diff { path, old_text, new_text, .. } => path.len() + text(old_text) + new_text.len(),
            Self::Terminal { id, .. } => id.len(),
            Self::Other(value) => value_size(value),
        };
        fields + self.extra().map_or(0, ContentExtra::size)
    }

    /// Adds a field that this version does not know, or `_meta`.
    #[must_use]
    pub fn with_member(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        let (name, value) = (name.into(), value.into());
        match &mut self {
            Self::Other(Value::Object(members)) => drop(members.insert(name, value)),
            content => {
                if let Some(extra) = content.extra_mut() {
                    extra.get_or_insert_default().other.insert(name, value);
                }
            }
        }
        self
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

/// The input of a turn: text, or several content blocks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Prompt {
    pub(crate) content: Vec<Content>,
}

impl Prompt {
    /// Creates a prompt from several content blocks.
    #[must_use]
    pub fn new(content: impl IntoIterator<Item = impl Into<Content>>) -> Self {
        Self { content: content.into_iter().map(Into::into).collect() }
    }

    /// Appends a content block.
    #[must_use]
    pub fn with(mut self, content: impl Into<Content>) -> Self {
        self.content.push(content.into());
        self
    }

    /// Whether the prompt is empty: it has no blocks, or only empty texts.
    fn is_empty(&self) -> bool {
        self.content
            .iter()
            .all(|content| matches!(content, Content::Text { text, .. } if text.trim().is_empty()))
    }

    /// Checks that it has content, before anything is sent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.is_empty() { Err(Error::config("a prompt needs content")) } else { Ok(()) }
    }

    /// Returns the text of its blocks, joined.
    pub(crate) fn text(&self) -> String {
        self.content.iter().filter_map(Content::text).collect()
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
        let content = Content::from_tool_call(entry);
        assert_eq!(content.text(), Some("x"));
        assert_eq!(content.extra().unwrap().wrapper["_meta"], json!({"a": 1}));
        let odd = json!({"type": "content", "content": {"type": "hologram"}, "_meta": {"a": 1}});
        assert_eq!(Content::from_tool_call(odd.clone()), Content::Other(odd));
        let bare = json!({"type": "content", "content": {"type": "hologram"}});
        assert_eq!(Content::from_tool_call(bare), Content::Other(json!({"type": "hologram"})));
    }

    #[test]
    fn a_prompt_is_text_or_several_pieces() {
        assert_eq!(Prompt::from("hi").to_value(), json!([{"type": "text", "text": "hi"}]));
        let link = Content::link("file:///a", "a");
        let prompt = Prompt::from("look at").with(link.clone());
        assert_eq!(prompt, Prompt::from(vec![Content::from("look at"), link]));
    }
}
