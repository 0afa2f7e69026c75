//! The error object of JSON-RPC.

use std::fmt;

use agent_client_protocol_schema::v1 as schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::printable::Printable;

/// An error response: code, message and data as they were received.
///
/// `Display` is safe to print; the text of the other side is in the fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RpcError {
    /// The kind of error.
    pub code: i64,
    /// A message for users.
    #[serde(default)]
    pub message: String,
    /// Further data. Data that is nested too deep, or larger than [`Limits::decoded`](crate::Limits#structfield.decoded),
    /// is replaced by a string that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// The method does not exist or is not offered.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Internal error of the responder.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// The request was cancelled by the side that made it.
    pub const REQUEST_CANCELLED: i64 = -32800;
    /// The agent requires authentication first.
    pub const AUTH_REQUIRED: i64 = -32000;

    /// An error with a code and a message.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Adds data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// The response to a method that this side does not offer.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(Self::METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// The response to invalid parameters.
    pub fn invalid_params(detail: impl fmt::Display) -> Self {
        Self::new(Self::INVALID_PARAMS, format!("invalid params: {detail}"))
    }

    /// The response when this side failed.
    pub fn internal(detail: impl fmt::Display) -> Self {
        Self::new(Self::INTERNAL_ERROR, format!("internal error: {detail}"))
    }

    /// The response to a request that was cancelled.
    pub fn cancelled() -> Self {
        Self::new(Self::REQUEST_CANCELLED, "request cancelled")
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", Printable(self.message.as_str()), self.code)
    }
}

impl std::error::Error for RpcError {}

impl From<schema::Error> for RpcError {
    fn from(error: schema::Error) -> Self {
        Self { code: i32::from(error.code).into(), message: error.message, data: error.data }
    }
}
