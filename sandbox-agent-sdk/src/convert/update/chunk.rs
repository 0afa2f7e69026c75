//! Message chunks.

use serde::Serialize;
use serde::de::MapAccess;
use serde_json::Value;

use super::kind::skip;
use crate::Content;
use crate::convert::decoded::value_size;
use crate::convert::lenient::{self, Lenient};

/// A chunk of a message.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Chunk {
    /// The content.
    pub content: Content,
    /// The id of the message, if the agent assigns ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The `_meta` field of the update.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

impl Chunk {
    pub(super) fn size(&self) -> usize {
        let id = self.message_id.as_ref().map_or(0, String::len);
        self.content.size() + id + self.meta.as_ref().map_or(0, value_size)
    }

    /// Returns the original text, if the content is text.
    ///
    /// [`printable`](crate::convert::text::printable) makes it safe to print.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.content.text()
    }
}

impl<'de> Lenient<'de> for Chunk {
    fn object<A: MapAccess<'de>>(object: A) -> Result<Option<Self>, A::Error> {
        let (mut content, mut message_id, mut meta) = (None, None, None);
        lenient::fields(object, |name, object| {
            match &*name {
                "content" => lenient::value_into(object, &mut content)?,
                "messageId" => message_id = lenient::value(object)?,
                "_meta" => meta = lenient::value(object)?,
                other => skip(other, object)?,
            }
            Ok(())
        })?;
        Ok(content.map(|content| Self { content, message_id, meta }))
    }
}
