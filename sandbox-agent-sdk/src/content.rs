//! What prompts and messages are made of.

use serde_json::{Value, json};

/// A piece of a prompt or of a message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// Text.
    Text(String),
    /// An image.
    Image {
        /// The image, in base64.
        data: String,
        /// Its type, such as `image/png`.
        mime_type: String,
    },
    /// A recording.
    Audio {
        /// The recording, in base64.
        data: String,
        /// Its type, such as `audio/wav`.
        mime_type: String,
    },
    /// A link to something the agent can fetch by itself, such as a file.
    Link {
        /// Where it is.
        uri: String,
        /// What to call it.
        name: String,
    },
    /// The text of a resource, embedded.
    Resource {
        /// Where it comes from.
        uri: String,
        /// Its text.
        text: String,
    },
    /// What a tool call changes in a file.
    Diff {
        /// The file.
        path: String,
        /// What it contained; `None` for a new file.
        old_text: Option<String>,
        /// What it contains now.
        new_text: String,
    },
    /// The output of a terminal that a tool call runs in.
    Terminal {
        /// The id of the terminal.
        id: String,
    },
    /// Anything else, as JSON.
    Other(Value),
}

impl Content {
    /// Text.
    #[must_use]
    pub fn text_of(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The text, if it is text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Reads a piece; whatever has members this version would lose stays JSON.
    pub(crate) fn from_value(value: Value) -> Self {
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let read = match value.get("type").and_then(Value::as_str) {
            Some("text") => text("text").map(Self::Text),
            Some("image") => {
                text("data").zip(text("mimeType")).map(|(data, mime_type)| Self::Image { data, mime_type })
            }
            Some("audio") => {
                text("data").zip(text("mimeType")).map(|(data, mime_type)| Self::Audio { data, mime_type })
            }
            Some("resource_link") => {
                text("uri").zip(text("name")).map(|(uri, name)| Self::Link { uri, name })
            }
            Some("resource") => {
                let resource = value.get("resource").unwrap_or(&Value::Null);
                let text = |name: &str| resource.get(name).and_then(Value::as_str).map(str::to_owned);
                text("uri").zip(text("text")).map(|(uri, text)| Self::Resource { uri, text })
            }
            Some("diff") => text("path").zip(text("newText")).map(|(path, new_text)| Self::Diff {
                path,
                old_text: text("oldText"),
                new_text,
            }),
            Some("terminal") => text("terminalId").map(|id| Self::Terminal { id }),
            _ => None,
        };
        read.unwrap_or(Self::Other(value))
    }

    pub(crate) fn to_value(&self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Image { data, mime_type } => json!({"type": "image", "data": data, "mimeType": mime_type}),
            Self::Audio { data, mime_type } => json!({"type": "audio", "data": data, "mimeType": mime_type}),
            Self::Link { uri, name } => json!({"type": "resource_link", "uri": uri, "name": name}),
            Self::Resource { uri, text } => {
                json!({"type": "resource", "resource": {"uri": uri, "text": text}})
            }
            Self::Diff { path, old_text, new_text } => {
                json!({"type": "diff", "path": path, "oldText": old_text, "newText": new_text})
            }
            Self::Terminal { id } => json!({"type": "terminal", "terminalId": id}),
            Self::Other(value) => value.clone(),
        }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// What a turn is asked to do: text, or several pieces of content.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prompt {
    content: Vec<Content>,
}

impl Prompt {
    /// A prompt of several pieces.
    #[must_use]
    pub fn new(content: impl IntoIterator<Item = impl Into<Content>>) -> Self {
        Self { content: content.into_iter().map(Into::into).collect() }
    }

    /// The same prompt with a piece before everything else.
    pub(crate) fn after(mut self, content: Content) -> Self {
        self.content.insert(0, content);
        self
    }

    /// Adds a piece.
    #[must_use]
    pub fn with(mut self, content: impl Into<Content>) -> Self {
        self.content.push(content.into());
        self
    }

    /// Whether it says nothing: it has no pieces, or only empty texts.
    pub(crate) fn is_empty(&self) -> bool {
        self.content.iter().all(|content| matches!(content, Content::Text(text) if text.trim().is_empty()))
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
    fn every_kind_is_written_as_it_is_read_and_the_unknown_stays_as_it_is() {
        for value in [
            json!({"type": "text", "text": "hello"}),
            json!({"type": "image", "data": "aGk=", "mimeType": "image/png"}),
            json!({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
            json!({"type": "resource_link", "uri": "file:///a", "name": "a"}),
            json!({"type": "resource", "resource": {"uri": "file:///a", "text": "x"}}),
            json!({"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}),
            json!({"type": "diff", "path": "/a", "oldText": null, "newText": "y"}),
            json!({"type": "diff", "path": "/a"}),
            json!({"type": "terminal", "terminalId": "t-1"}),
            json!({"type": "hologram", "depth": 3}),
            json!({"type": "text"}),
            json!(5),
        ] {
            assert_eq!(Content::from_value(value.clone()).to_value(), value);
        }
        assert_eq!(Content::from_value(json!({"type": "text", "text": "a"})).text(), Some("a"));
    }

    #[test]
    fn a_prompt_is_text_or_several_pieces() {
        assert_eq!(Prompt::from("hi").to_value(), json!([{"type": "text", "text": "hi"}]));
        let link = Content::Link { uri: "file:///a".into(), name: "a".into() };
        let prompt = Prompt::from("look at").with(link.clone());
        assert_eq!(prompt, Prompt::from(vec![Content::from("look at"), link]));
    }
}
