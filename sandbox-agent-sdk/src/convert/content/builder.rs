//! Builds content from its fields.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{Content, ContentExtra};
use crate::convert::fields::Fields;

/// A known type of content.
#[derive(Debug)]
pub(super) struct Kind {
    name: &'static str,
    /// The fields with text, the required ones first.
    texts: &'static [&'static str],
    required: usize,
}

const KINDS: &[Kind] = &[
    Kind { name: "text", texts: &["text"], required: 1 },
    Kind { name: "diff", texts: &["path", "newText", "oldText"], required: 2 },
    Kind { name: "terminal", texts: &["terminalId"], required: 1 },
    Kind { name: "image", texts: &["data", "mimeType", "uri"], required: 2 },
    Kind { name: "audio", texts: &["data", "mimeType"], required: 2 },
    Kind { name: "resource_link", texts: &["uri", "name", "title", "description", "mimeType"], required: 2 },
    // Its fields are in a nested object.
    Kind { name: "resource", texts: &[], required: 0 },
];

/// The largest number of fields with text.
const TEXTS: usize = 5;

impl Kind {
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name)
    }
}

/// The fields of a content block.
pub(super) struct Builder {
    kind: &'static Kind,
    texts: [Option<String>; TEXTS],
    /// All other fields, and fields of an unexpected type.
    other: Map<String, Value>,
}

impl Builder {
    pub(super) fn new(kind: &'static Kind) -> Self {
        Self { kind, texts: Default::default(), other: Map::new() }
    }

    /// Adds a field. It replaces an earlier one with its name.
    pub(super) fn put(&mut self, name: Cow<'_, str>, value: Value) {
        let text = self.kind.texts.iter().position(|text| *text == name).map(|place| &mut self.texts[place]);
        match (text, value) {
            (Some(text), Value::String(value)) => {
                *text = Some(value);
                if !self.other.is_empty() {
                    self.other.shift_remove(&*name);
                }
            }
            (text, value) => {
                if let Some(text) = text {
                    *text = None;
                }
                self.other.insert(name.into_owned(), value);
            }
        }
    }

    /// Returns the fields as they were received.
    pub(super) fn into_members(self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("type".to_owned(), self.kind.name.into());
        for (name, text) in self.kind.texts.iter().zip(self.texts) {
            if let Some(text) = text {
                members.insert((*name).to_owned(), text.into());
            }
        }
        members.extend(self.other);
        members
    }

    /// Returns the content. If a required field is missing, it is [`Content::Other`].
    pub(super) fn finish(self) -> Content {
        let is_complete = match self.kind.name {
            "resource" => self.other.get("resource").is_some_and(is_resource),
            _ => self.texts[..self.kind.required].iter().all(Option::is_some),
        };
        if !is_complete {
            return Content::Other(self.into_members().into());
        }
        let mut fields = Fields::new(self.other);
        if !fields.is_empty() {
            // An optional field that is `null` is absent.
            self.kind.texts[self.kind.required..].iter().for_each(|name| drop(fields.string(&[name])));
        }
        let [first, second, third, fourth, fifth] = self.texts;
        let (first, second) = (first.unwrap_or_default(), second.unwrap_or_default());
        match self.kind.name {
            "text" => Content::Text { text: first, extra: ContentExtra::take(fields) },
            "diff" => Content::Diff {
                path: first,
                new_text: second,
                old_text: third,
                extra: ContentExtra::take(fields),
            },
            "terminal" => Content::Terminal { id: first, extra: ContentExtra::take(fields) },
            "image" => Content::Image {
                data: first,
                mime_type: second,
                uri: third,
                extra: ContentExtra::take(fields),
            },
            "audio" => Content::Audio { data: first, mime_type: second, extra: ContentExtra::take(fields) },
            "resource_link" => Content::Link {
                uri: first,
                name: second,
                title: third,
                description: fourth,
                mime_type: fifth,
                size: fields.unsigned(&["size"]),
                extra: ContentExtra::take(fields),
            },
            _ => {
                let inside = fields.object("resource").unwrap_or_default();
                resource(Fields::new(inside), ContentExtra::take(fields))
            }
        }
    }
}

/// Whether an embedded resource has all required fields.
fn is_resource(resource: &Value) -> bool {
    let has = |name: &str| resource.get(name).is_some_and(Value::is_string);
    has("uri") && (has("text") || has("blob"))
}

fn resource(mut inside: Fields, extra: Option<Box<ContentExtra>>) -> Content {
    let uri = inside.string(&["uri"]).unwrap_or_default();
    let mime_type = inside.string(&["mimeType"]);
    match inside.string(&["text"]) {
        Some(text) => Content::Resource { uri, text, mime_type, resource: inside.rest(), extra },
        None => {
            let blob = inside.string(&["blob"]).unwrap_or_default();
            Content::Blob { uri, blob, mime_type, resource: inside.rest(), extra }
        }
    }
}
