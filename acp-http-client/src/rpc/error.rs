//! The error object of JSON-RPC.

use std::fmt;

use agent_client_protocol_schema::v1 as schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::printable::Printable;

/// An error response: code, message and data, as received.
///
/// `Display` is safe to print. The fields hold the original text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RpcError {
    /// The error code.
    pub code: i64,
    /// The error message.
    #[serde(default)]
    pub message: String,
    /// Additional data. Data that is nested too deep, or larger than
    /// [`Limits::decoded`](crate::Limits#structfield.decoded), is replaced by a string with the reason.
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
    /// The sender of the request cancelled it.
    pub const REQUEST_CANCELLED: i64 = -32800;
    /// The agent requires a login first.
    pub const AUTH_REQUIRED: i64 = -32000;

    /// Creates an error from a code and a message.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Sets the data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// Creates the error for a method that is not available.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(Self::METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// Creates the error for invalid parameters.
    pub fn invalid_params(detail: impl fmt::Display) -> Self {
        Self::new(Self::INVALID_PARAMS, format!("invalid params: {detail}"))
    }

    /// Creates the error for an internal failure.
    pub fn internal(detail: impl fmt::Display) -> Self {
        Self::new(Self::INTERNAL_ERROR, format!("internal error: {detail}"))
    }

    /// Creates the error for a cancelled request.
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
