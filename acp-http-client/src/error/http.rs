//! Responses with an HTTP error status.

use std::{error::Error as StdError, fmt, time::Duration};

use crate::{Problem, printable::Printable};

/// A response with an HTTP error status.
///
/// `Display` is safe to print. The fields hold the original text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpError {
    /// What failed: a JSON-RPC method, `event stream` or `close`.
    pub what: String,
    /// The HTTP status.
    pub status: u16,
    /// The content type of the body.
    pub content_type: Option<String>,
    /// The problem report in the body, if there was one.
    pub problem: Option<Problem>,
    /// The beginning of the body as text.
    pub body: String,
    /// How long the server asks the client to wait (`Retry-After`), at most five minutes.
    pub retry_after: Option<Duration>,
}

impl HttpError {
    /// Creates an error from the parts of a response.
    pub fn new(what: impl Into<String>, status: u16, content_type: Option<String>, body: &[u8]) -> Self {
        Self {
            what: what.into(),
            status,
            content_type,
            problem: Problem::from_json(body),
            body: String::from_utf8_lossy(body).into_owned(),
            retry_after: None,
        }
    }

    /// Sets how long the server asks the client to wait.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed with HTTP {}", Printable(self.what.as_str()), self.status)?;
        let problem = self.problem.as_ref();
        match problem.and_then(|problem| problem.detail.as_deref().or(problem.title.as_deref())) {
            Some(text) => write!(f, ": {}", Printable(text)),
            None if self.problem.is_none() && !self.body.trim().is_empty() => {
                write!(f, ": {}", Printable(self.body.lines().next().unwrap_or_default()))
            }
            None => Ok(()),
        }
    }
}

impl StdError for HttpError {}
