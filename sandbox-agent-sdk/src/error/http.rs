//! Failures with an HTTP status.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::convert::text::printable;

/// The prefix of problem types of Sandbox Agent servers.
const PROBLEM_PREFIX: &str = "urn:sandbox-agent:error:";

/// A failure with an HTTP status.
///
/// `Display` is safe to print: it [escapes](crate::convert::text::printable) control characters. The fields
/// hold the original text.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HttpError {
    /// The operation that failed.
    pub what: String,
    /// The HTTP status.
    pub status: u16,
    /// The media type of the body.
    pub content_type: Option<String>,
    /// The problem report in the body, if there is one.
    pub problem: Option<Problem>,
    /// The beginning of the body.
    pub body: String,
    /// How long the server asks the client to wait (`Retry-After`), at most five minutes.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed with HTTP {}", printable(&self.what), self.status)?;
        let problem = self.problem.as_ref();
        match problem.and_then(|problem| problem.detail.as_deref().or(problem.title.as_deref())) {
            Some(text) => write!(f, ": {}", printable(text)),
            None if self.problem.is_none() && !self.body.trim().is_empty() => {
                write!(f, ": {}", printable(self.body.trim().lines().next().unwrap_or_default()))
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for HttpError {}

/// A problem report of a server (`application/problem+json`), with all its fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Problem {
    /// The problem type: a URI, such as `urn:sandbox-agent:error:timeout`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short summary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The HTTP status, as stated in the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// A description of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The URI of this occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// All other fields, such as `agent`, `sessionId` or `details`.
    #[serde(flatten)]
    pub extensions: Map<String, Value>,
}

impl Problem {
    /// Parses a problem from a body: any JSON object with one of the standard fields.
    #[must_use]
    pub fn from_json(body: &[u8]) -> Option<Self> {
        acp_http_client::Problem::from_json(body).map(Self::from_wire)
    }

    pub(super) fn from_wire(problem: acp_http_client::Problem) -> Self {
        Self {
            kind: problem.kind,
            title: problem.title,
            status: problem.status,
            detail: problem.detail,
            instance: problem.instance,
            extensions: problem.extensions,
        }
    }

    /// Returns the type without the common prefix, such as `session_not_found`.
    #[must_use]
    pub fn short_kind(&self) -> &str {
        self.kind.strip_prefix(PROBLEM_PREFIX).unwrap_or(&self.kind)
    }

    /// Returns the agent that the problem is about.
    #[must_use]
    pub fn agent(&self) -> Option<&str> {
        self.extensions.get("agent").and_then(Value::as_str)
    }

    /// Returns the session that the problem is about.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.extensions.get("sessionId").and_then(Value::as_str)
    }

    /// Returns a member of `details` by name.
    #[must_use]
    pub fn detail_of(&self, name: &str) -> Option<&Value> {
        self.extensions.get("details")?.get(name)
    }
}
