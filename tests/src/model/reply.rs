//! What the model answers, before any API gives it a form.

use std::time::Duration;

use serde_json::Value;

/// One response of the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    /// It says and does something.
    Steps(Vec<Step>),
    /// It fails with this HTTP status.
    Failure(u16),
}

/// One piece of a response; each is one chunk on the wire.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Text of the message.
    Text(String),
    /// Text of its reasoning.
    Thought(String),
    /// A pause before the next piece.
    Pause(Duration),
    /// A call of one of the tools that the request offered.
    Call {
        /// The tool's name.
        name: String,
        /// Its arguments: an object, or for a tool with free input a string.
        arguments: Value,
    },
}
