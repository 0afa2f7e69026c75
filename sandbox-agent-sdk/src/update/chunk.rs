//! Pieces of messages.

use crate::Content;

/// A piece of a message.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Chunk {
    /// What it holds.
    pub content: Content,
    /// The message it is a piece of, if the agent tells its messages apart.
    pub message_id: Option<String>,
}

impl Chunk {
    /// The text, if it holds text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.content.text()
    }
}
