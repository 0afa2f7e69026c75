//! The error with which an agent answers.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::convert::text::printable;

/// An error response, kept as it came: code, message and data.
///
/// `Display` shows the message, the code and what `data` says in words. It is safe to print: control characters are
/// [escaped](crate::convert::text::printable).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RpcError {
    /// The number that says what kind of error this is.
    pub code: i64,
    /// One sentence for people.
    #[serde(default)]
    pub message: String,
    /// Whatever else the other side had to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// The method does not exist or is not offered.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters cannot be used.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Whoever answers has failed.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// What was asked for does not exist.
    pub const NOT_FOUND: i64 = -32002;

    /// An error with a code and a message.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Adds data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// What `data` says in words: the data itself if it is a string, or its `details`, `detail`, `message`, `error` or
    /// `reason`. Some agents put the cause of a failure only there.
    #[must_use]
    pub fn details(&self) -> Option<&str> {
        let data = self.data.as_ref()?;
        let member = |name: &str| data.get(name).and_then(Value::as_str);
        let names = ["details", "detail", "message", "error", "reason"];
        let words = data.as_str().or_else(|| names.into_iter().find_map(member))?;
        Some(words.trim()).filter(|words| !words.is_empty())
    }

    pub(crate) fn into_wire(self) -> acp_http_client::RpcError {
        let error = acp_http_client::RpcError::new(self.code, self.message);
        match self.data {
            Some(data) => error.with_data(data),
            None => error,
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", printable(&self.message), self.code)?;
        match self.details().filter(|details| !self.message.contains(details)) {
            Some(details) => write!(f, ": {}", printable(details)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RpcError {}
