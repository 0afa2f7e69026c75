//! The error object of JSON-RPC.

use std::fmt;

use agent_client_protocol_schema::v1 as schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error answer, kept as it came: code, message and data.
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
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something went wrong on the answering side.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// The request was cancelled by the side that made it.
    pub const REQUEST_CANCELLED: i64 = -32800;
    /// The agent wants the user to authenticate first.
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

    /// The answer to a method that this side does not offer.
    pub fn method_not_found(method: &str) -> Self {
        Self::new(Self::METHOD_NOT_FOUND, format!("method not found: {method}"))
    }

    /// The answer to parameters that cannot be read.
    pub fn invalid_params(detail: impl fmt::Display) -> Self {
        Self::new(Self::INVALID_PARAMS, format!("invalid params: {detail}"))
    }

    /// The answer when this side failed.
    pub fn internal(detail: impl fmt::Display) -> Self {
        Self::new(Self::INTERNAL_ERROR, format!("internal error: {detail}"))
    }

    /// The answer to a request that was cancelled.
    pub fn cancelled() -> Self {
        Self::new(Self::REQUEST_CANCELLED, "request cancelled")
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for RpcError {}

impl From<schema::Error> for RpcError {
    fn from(error: schema::Error) -> Self {
        Self { code: i32::from(error.code).into(), message: error.message, data: error.data }
    }
}
