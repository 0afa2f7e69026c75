//! The error response of an agent.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::TerminationInfo;
use crate::convert::termination::wait_status_in;
use crate::convert::text::printable;

/// How much of `data` is shown as JSON.
const DATA_CHARS: usize = 512;

/// An error response with code, message and data.
///
/// `Display` shows the message, the code and the text in `data`, or else the beginning of `data` as JSON. If the
/// response reports the end of the agent, it shows how the agent ended. It is safe to print: it
/// [escapes](crate::convert::text::printable) control characters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RpcError {
    /// The error code.
    pub code: i64,
    /// The error message.
    #[serde(default)]
    pub message: String,
    /// Additional data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// The method does not exist or is not available.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are invalid.
    pub const INVALID_PARAMS: i64 = -32602;
    /// An internal error of the responder.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// The requested resource does not exist.
    pub const NOT_FOUND: i64 = -32002;

    /// Creates an error from a code and a message.
    #[must_use]
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Sets the data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Returns the text in `data`, where some agents report the cause of a failure.
    ///
    /// The text is the data itself if it is a string, or its `details`, `detail`, `message`, `error` or
    /// `reason`.
    #[must_use]
    pub fn details(&self) -> Option<&str> {
        let data = self.data.as_ref()?;
        let member = |name: &str| data.get(name).and_then(Value::as_str);
        let names = ["details", "detail", "message", "error", "reason"];
        let words = data.as_str().or_else(|| names.into_iter().find_map(member))?;
        Some(words.trim()).filter(|words| !words.is_empty())
    }

    /// Whether the message mentions a login.
    pub(super) fn is_about_login(&self) -> bool {
        let message = self.message.to_lowercase();
        // Not "author" or "authority".
        let is_auth = |after: &str| {
            !after.starts_with("or") || ["oriz", "oris"].iter().any(|end| after.starts_with(end))
        };
        // Not "catalog in use".
        let is_word = |at: usize| !message[..at].ends_with(char::is_alphanumeric);
        message.match_indices("auth").any(|(at, found)| is_auth(&message[at + found.len()..]))
            || ["log in", "login"].iter().any(|word| message.match_indices(word).any(|(at, _)| is_word(at)))
            || message.contains("api key")
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
        if let Some(end) = self.data.as_ref().and_then(TerminationInfo::from_error_data) {
            // Some servers repeat the exit status in the message, in Rust's `Debug` format.
            let repeats =
                end.message.as_ref() == Some(&self.message) || wait_status_in(&self.message).is_some();
            let what = if repeats { "the agent has ended" } else { self.message.as_str() };
            return write!(f, "{}: {} (code {})", printable(what), end.headline(), self.code);
        }
        write!(f, "{} (code {})", printable(&self.message), self.code)?;
        let details = self.details().map(str::to_owned).or_else(|| self.data.as_ref().and_then(compact));
        match details.filter(|details| !self.message.contains(details)) {
            Some(details) => write!(f, ": {}", printable(&details)),
            None => Ok(()),
        }
    }
}

/// Returns data as compact JSON, cut if it is long; `None` if it is empty.
fn compact(data: &Value) -> Option<String> {
    let is_empty = match data {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let text = (!is_empty).then(|| data.to_string())?;
    match text.char_indices().nth(DATA_CHARS) {
        Some((end, _)) => Some(format!("{}…", &text[..end])),
        None => Some(text),
    }
}

impl std::error::Error for RpcError {}
