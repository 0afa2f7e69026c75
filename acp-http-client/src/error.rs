//! What can go wrong, by what the caller can do about it.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{ConnectionState, EndReason, Problem, RpcError, printable::Printable};

/// A cause that can be shared by every call it ended.
pub(crate) type Cause = Arc<dyn StdError + Send + Sync>;

/// Everything a call can fail with.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client was set up with something it cannot use.
    #[error("invalid configuration: {0}")]
    Config(String),
    /// The server could not be reached. Nothing was sent.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Cause),
    /// The id of a session cannot be sent in the header that names the session. Nothing was sent.
    ///
    /// Only servers with a stream for each session are concerned. Their ids have to be visible ASCII characters.
    #[error("session id `{}` cannot be sent in a header", Printable(session_id.as_str()))]
    InvalidSessionId {
        /// The id.
        session_id: String,
    },
    /// The connection broke after the message may have been sent, and no stream can bring the answer.
    #[error("the connection broke before `{method}` was answered")]
    ConnectionLost {
        /// The method that was called.
        method: String,
        /// What broke it.
        #[source]
        source: Cause,
    },
    /// The server answered with an HTTP status that means failure.
    #[error("{0}")]
    Http(Box<HttpError>),
    /// The message is larger than the server accepts: it responded with 413.
    #[error("`{}` is too large for the server ({size} bytes)", Printable(method.as_str()))]
    PayloadTooLarge {
        /// The method that was called.
        method: String,
        /// The size of the message.
        size: usize,
        /// The response of the server.
        #[source]
        source: Option<Box<HttpError>>,
    },
    /// The upload of a large message broke before the server had received all of it. It cannot have run.
    ///
    /// The connection may have been lost, or the server closed it because the message is too large for it and its
    /// response was lost.
    #[error("upload of `{}` broke after {sent} of {size} bytes", Printable(method.as_str()))]
    UploadInterrupted {
        /// The method of the message.
        method: String,
        /// How many bytes were handed over to the connection.
        sent: usize,
        /// The size of the message.
        size: usize,
        /// What broke it.
        #[source]
        source: Cause,
    },
    /// An agent request got no response: too many were waiting to be refused, see [`Limits`](crate::Limits).
    #[error("more than {limit} agent requests are waiting to be refused")]
    TooManyRequests {
        /// The limit for refusals.
        limit: usize,
    },
    /// The server points elsewhere. Redirects are not followed: a token must not travel to another place.
    #[error("the server redirects to {}", location.as_deref().unwrap_or("nowhere"))]
    Redirected {
        /// The status.
        status: u16,
        /// Where to.
        location: Option<String>,
    },
    /// The server answered with success, but the body is not what was asked for: a login page, say.
    #[error("the server answered {status} with {} instead of JSON-RPC", content_type.as_deref().unwrap_or("no content type"))]
    UnexpectedBody {
        /// The status.
        status: u16,
        /// The content type of the body.
        content_type: Option<String>,
        /// The beginning of the body.
        start: String,
    },
    /// The agent answered with an error.
    #[error("{error}")]
    Rpc {
        /// The error as it came.
        error: RpcError,
        /// The HTTP status it came with, if that meant failure too.
        status: Option<u16>,
    },
    /// The answer does not fit its type. It is kept.
    #[error("the answer to `{method}` cannot be read")]
    Decode {
        /// The method that was called.
        method: String,
        /// The result as it came: JSON.
        raw: Bytes,
        /// What does not fit.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The parameters cannot be written as JSON. Nothing was sent.
    #[error("the parameters of `{method}` cannot be written as JSON")]
    Encode {
        /// The method that was called.
        method: String,
        /// What cannot be written.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// A message from the server is larger than the limit.
    #[error("a message of at least {seen} bytes is over the limit of {limit}")]
    MessageTooLarge {
        /// The limit that is set.
        limit: usize,
        /// How much had arrived when the message was given up.
        seen: usize,
        /// The id of the event, if it is known.
        event_id: Option<String>,
    },
    /// Time ran out.
    #[error("{0}")]
    Timeout(Box<Timeout>),
    /// The server restarted (its numbering began anew) while the call was waiting.
    #[error("the server restarted before `{method}` was answered")]
    ServerRestarted {
        /// The method that was called.
        method: String,
    },
    /// The connection has ended for good.
    #[error("the connection has ended")]
    Terminated {
        /// Why.
        #[source]
        reason: EndReasonError,
        /// Whether the call was under way when it ended; otherwise nothing was sent.
        pending: bool,
    },
    /// The program ended this call with a reason of its own, see [`Verdict`](crate::Verdict).
    #[error("{0}")]
    Interrupted(Cause),
    /// The token provider failed. Nothing was sent.
    #[error("no token could be had")]
    Token(#[source] Cause),
}

/// A failure that HTTP reports.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HttpError {
    /// What was being done: a JSON-RPC method, or `event stream`, or `close`.
    pub what: String,
    /// The HTTP status.
    pub status: u16,
    /// The content type of the body.
    pub content_type: Option<String>,
    /// The problem report in the body, if there was one.
    pub problem: Option<Problem>,
    /// The beginning of the body, whatever it was.
    pub body: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl HttpError {
    /// Reads what there is to know out of a response that failed.
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

    /// Adds how long the server asks to wait.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed with HTTP {}", self.what, self.status)?;
        let problem = self.problem.as_ref();
        match problem.and_then(|problem| problem.detail.as_deref().or(problem.title.as_deref())) {
            Some(text) => write!(f, ": {text}"),
            None if self.problem.is_none() && !self.body.trim().is_empty() => {
                write!(f, ": {}", self.body.lines().next().unwrap_or_default())
            }
            None => Ok(()),
        }
    }
}

impl StdError for HttpError {}

/// A deadline that passed, with what is needed to tell why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Timeout {
    /// What was being waited for.
    pub phase: Phase,
    /// What was being done: a JSON-RPC method, or `event stream`, or `close`.
    pub what: String,
    /// How long it took until it was given up.
    pub elapsed: Duration,
    /// How long ago the last message came on the event stream; `None` if none ever did.
    pub last_event_age: Option<Duration>,
    /// The state of the connection at that time.
    pub state: ConnectionState,
    /// What had gone wrong before, if anything: a 504, say.
    pub cause: Option<Arc<Error>>,
}

/// What was being waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The first byte of a response to a notification or an answer.
    Headers,
    /// The answer to a request.
    Answer,
    /// The answer to a request whose POST had failed in a way that leaves open whether it ran.
    Confirmation,
    /// The event stream to open.
    StreamOpen,
    /// Bytes on the event stream.
    StreamIdle,
    /// The server to confirm that the connection is closed.
    Close,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Headers => "the response headers",
            Self::Answer => "the answer",
            Self::Confirmation => "the answer to a request that may have run",
            Self::StreamOpen => "the event stream to open",
            Self::StreamIdle => "bytes on the event stream",
            Self::Close => "the server to confirm the close",
        })
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` waited {:.1?} for {}", self.what, self.elapsed, self.phase)?;
        match self.last_event_age {
            Some(age) => write!(f, " (last event {age:.1?} ago, connection {})", self.state),
            None => write!(f, " (no event yet, connection {})", self.state),
        }
    }
}

/// [`EndReason`] as the source of an error.
#[derive(Debug, Clone)]
pub struct EndReasonError(pub EndReason);

impl fmt::Display for EndReasonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for EndReasonError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

impl Error {
    /// The error of a call that was made after the end.
    pub(crate) fn terminated(reason: EndReason) -> Self {
        Self::Terminated { reason: EndReasonError(reason), pending: false }
    }

    /// The error of a call that was under way at the end.
    pub(crate) fn cut_off(reason: EndReason) -> Self {
        Self::Terminated { reason: EndReasonError(reason), pending: true }
    }

    /// The same error for a call of which nothing was sent.
    pub(crate) fn not_sent(self) -> Self {
        match self {
            Self::Terminated { reason, .. } => Self::Terminated { reason, pending: false },
            other => other,
        }
    }

    /// Whether the same call may succeed if it is made again, and making it again does no harm.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Token(_) | Self::UploadInterrupted { .. } => true,
            Self::Http(error) => matches!(error.status, 429 | 503),
            _ => false,
        }
    }

    /// Whether the connection has ended: every later call fails too.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminated { .. })
    }

    /// Whether time ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout(_))
    }

    /// Whether the server refused the token.
    pub fn is_unauthorized(&self) -> bool {
        match self {
            Self::Http(error) => error.status == 401,
            Self::Terminated { reason: EndReasonError(reason), .. } => {
                matches!(reason, EndReason::Unauthorized(_))
            }
            _ => false,
        }
    }

    /// Whether the call may have had its effect although it failed. Such a call is never repeated by itself.
    pub fn maybe_executed(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::InvalidSessionId { .. }
            | Self::Unreachable(_)
            | Self::PayloadTooLarge { .. }
            | Self::UploadInterrupted { .. }
            | Self::TooManyRequests { .. }
            | Self::Redirected { .. }
            | Self::Encode { .. }
            | Self::Token(_) => false,
            // Refused before it ran; any other error may end a call that had begun.
            Self::Rpc { error, .. } => !matches!(error.code, -32700 | -32600 | -32601 | -32602),
            Self::Http(error) => error.status == 408 || (error.status >= 500 && error.status != 503),
            Self::Terminated { pending, .. } => *pending,
            _ => true,
        }
    }

    /// How long the server asked to wait before the next request, at most five minutes.
    pub fn retry_after(&self) -> Option<Duration> {
        self.http()?.retry_after
    }

    /// The problem report of the server, if there was one.
    pub fn problem(&self) -> Option<&Problem> {
        self.http()?.problem.as_ref()
    }

    /// The failure that HTTP reported, if it was one.
    pub fn http(&self) -> Option<&HttpError> {
        match self {
            Self::Http(error) => Some(error),
            Self::PayloadTooLarge { source, .. } => source.as_deref(),
            Self::Timeout(timeout) => timeout.cause.as_deref()?.http(),
            Self::Terminated { reason: EndReasonError(reason), .. } => {
                reason.source()?.downcast_ref::<Error>()?.http()
            }
            _ => None,
        }
    }

    /// The error answer of the agent, if it was one.
    pub fn rpc_error(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Why the connection ended, if it has.
    pub fn end_reason(&self) -> Option<&EndReason> {
        match self {
            Self::Terminated { reason: EndReasonError(reason), .. } => Some(reason),
            _ => None,
        }
    }

    /// The reason a program ended the call or the connection with, if it was of this type.
    pub fn custom<T: StdError + 'static>(&self) -> Option<&T> {
        match self {
            Self::Interrupted(reason) => reason.downcast_ref(),
            Self::Terminated { reason: EndReasonError(reason), .. } => reason.custom(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(status: u16) -> Error {
        Error::Http(Box::new(HttpError::new("session/new", status, None, b"")))
    }

    #[test]
    fn callers_can_ask_what_to_do() {
        let unreachable = Error::Unreachable(Arc::new(RpcError::internal("x")));
        let table = [
            (unreachable, true, false),
            (http(400), false, false),
            (http(429), true, false),
            (http(503), true, false),
            (http(500), false, true),
            (http(502), false, true),
            (http(408), false, true),
            (Error::Rpc { error: RpcError::cancelled(), status: None }, false, true),
            (Error::Rpc { error: RpcError::method_not_found("x"), status: None }, false, false),
            (Error::MessageTooLarge { limit: 1, seen: 2, event_id: None }, false, true),
            (Error::ServerRestarted { method: "x".into() }, false, true),
        ];
        for (error, retryable, maybe) in table {
            assert_eq!((error.is_retryable(), error.maybe_executed()), (retryable, maybe), "{error}");
        }
    }

    #[test]
    fn causes_are_not_printed_twice() {
        let error = Error::terminated(EndReason::Unauthorized(Arc::new(http(401))));
        assert_eq!(error.to_string(), "the connection has ended");
        let chain: Vec<_> = std::iter::successors(error.source(), |error| StdError::source(*error))
            .map(ToString::to_string)
            .collect();
        assert_eq!(chain, ["the server refuses the token", "`session/new` failed with HTTP 401"]);
        assert!(error.is_unauthorized() && error.is_terminal());
    }
}
