//! Errors, classified by what the caller can do about them.

mod http;
mod timeout;

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use bytes::Bytes;

pub use self::{
    http::HttpError,
    timeout::{Phase, Timeout},
};
use crate::{EndReason, EventId, Problem, RpcError, SessionId, printable::Printable};

/// A cause that is shared by every request that failed with it.
pub(crate) type Cause = Arc<dyn StdError + Send + Sync>;

/// The error of a request.
///
/// `Display` is safe to print: it escapes control characters in text from the network. The fields hold the original
/// text.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of the client is invalid.
    #[error("invalid configuration: {0}")]
    Config(String),
    /// The server is unreachable. Nothing was sent.
    #[error("server is unreachable")]
    Unreachable(#[source] Cause),
    /// The session id cannot be sent in an HTTP header. Nothing was sent.
    ///
    /// This happens only on servers with one stream per session, whose session ids must be visible ASCII characters.
    #[error("session id `{session_id}` cannot be sent in a header")]
    InvalidSessionId {
        /// The id of the session.
        session_id: SessionId,
    },
    /// The connection was lost before the response. The message may have been executed.
    ///
    /// No stream can deliver the response.
    #[error("connection was lost before the response to `{}`", Printable(method.as_str()))]
    ConnectionLost {
        /// The method of the message.
        method: String,
        /// The network error.
        #[source]
        source: Cause,
    },
    /// The server responded with an HTTP error status.
    #[error("{0}")]
    Http(Box<HttpError>),
    /// The message is larger than the server accepts. The server responded with 413.
    #[error("`{}` is too large for the server ({size} bytes)", Printable(method.as_str()))]
    PayloadTooLarge {
        /// The method of the message.
        method: String,
        /// The size of the message in bytes.
        size: usize,
        /// The response of the server.
        #[source]
        source: Option<Box<HttpError>>,
    },
    /// The upload of a large message was interrupted before the server had received all of it. It was not executed.
    ///
    /// The connection was lost, or the server closed it because the message is too large and its response was lost.
    #[error("upload of `{}` was interrupted after {sent} of {size} bytes", Printable(method.as_str()))]
    UploadInterrupted {
        /// The method of the message.
        method: String,
        /// How many bytes were handed to the connection.
        sent: usize,
        /// The size of the message in bytes.
        size: usize,
        /// The network error.
        #[source]
        source: Cause,
    },
    /// An agent request got no response because too many refusals were queued. See [`Limits`](crate::Limits).
    #[error("more than {limit} agent requests are waiting to be refused")]
    TooManyRequests {
        /// The limit of queued refusals.
        limit: usize,
    },
    /// A response to the agent exceeded [`Limits::response_bytes`](crate::Limits#structfield.response_bytes). The agent
    /// received an error instead.
    #[error("response to the agent is {size} bytes; the limit for all responses being sent is {limit}")]
    ResponseTooLarge {
        /// The size of the response in bytes.
        size: usize,
        /// The limit in bytes, for all responses that are being sent.
        limit: usize,
    },
    /// The server responded with a redirect. Redirects are not followed, because the token must not reach another
    /// server.
    #[error("server redirects to {}", Printable(location.as_deref().unwrap_or("an unknown location")))]
    Redirected {
        /// The HTTP status.
        status: u16,
        /// The redirect target, without its query.
        location: Option<String>,
    },
    /// The server responded with success, but the body is not JSON-RPC.
    ///
    /// It is the login page of a proxy, for example.
    #[error("server responded {status} with {} instead of JSON-RPC", Printable(content_type.as_deref().unwrap_or("no content type")))]
    UnexpectedBody {
        /// The HTTP status.
        status: u16,
        /// The content type of the body.
        content_type: Option<String>,
        /// The beginning of the body.
        start: String,
    },
    /// The agent responded with an error.
    #[error("{error}")]
    Rpc {
        /// The error response.
        error: RpcError,
        /// The HTTP status of the response, if it is an error status.
        status: Option<u16>,
    },
    /// The response does not match its type.
    #[error("response to `{}` does not match its type", Printable(method.as_str()))]
    Decode {
        /// The method that was called.
        method: String,
        /// The result as JSON text.
        raw: Bytes,
        /// The parse error.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The parameters cannot be serialized. Nothing was sent.
    #[error("parameters of `{}` cannot be serialized", Printable(method.as_str()))]
    Encode {
        /// The method that was called.
        method: String,
        /// The serialization error.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// A message from the server is larger than the limit.
    #[error("message is at least {seen} bytes; the limit is {limit}")]
    MessageTooLarge {
        /// The limit in bytes.
        limit: usize,
        /// How many bytes had arrived when the client skipped the rest, or a lower bound of the decoded size.
        seen: usize,
        /// The id of the event, if it is known.
        event_id: Option<EventId>,
    },
    /// A timeout expired.
    #[error("{0}")]
    Timeout(Box<Timeout>),
    /// The server restarted while the request was pending. Its event ids started over.
    #[error("server restarted before the response to `{}`", Printable(method.as_str()))]
    ServerRestarted {
        /// The method that was called.
        method: String,
    },
    /// The request was cancelled before it was sent.
    #[error("`{}` was cancelled before it was sent", Printable(method.as_str()))]
    Withdrawn {
        /// The method that was called.
        method: String,
    },
    /// A cancelled turn of the session is still running. The prompt was not sent.
    #[error("a cancelled turn of session `{session}` is still running")]
    TurnStillRunning {
        /// The id of the session.
        session: SessionId,
    },
    /// The connection has ended permanently.
    #[error("the connection has ended")]
    Terminated {
        /// Why the connection ended.
        #[source]
        reason: EndReasonError,
        /// Whether the request was pending when the connection ended. If not, it was not sent, or the server refused it.
        pending: bool,
    },
    /// The application failed the request with a custom reason. See [`Verdict`](crate::Verdict).
    #[error("{0}")]
    Interrupted(Cause),
    /// The token provider failed. Nothing was sent.
    #[error("token provider failed")]
    Token(#[source] Cause),
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
    /// The error of a call without a tokio runtime, in which timers and sockets panic.
    pub(crate) fn no_runtime() -> Self {
        Self::Config("a call needs a tokio runtime".to_owned())
    }

    /// The error of a request that was made after the end, or whose refusal was the end.
    pub(crate) fn terminated(reason: EndReason) -> Self {
        Self::Terminated { reason: EndReasonError(reason), pending: false }
    }

    /// The error of a request that was pending at the end.
    pub(crate) fn cut_off(reason: EndReason) -> Self {
        Self::Terminated { reason: EndReasonError(reason), pending: true }
    }

    /// The same error for a request that was not sent.
    pub(crate) fn not_sent(self) -> Self {
        match self {
            Self::Terminated { reason, .. } => Self::Terminated { reason, pending: false },
            other => other,
        }
    }

    /// Returns whether the request was certainly not executed and may succeed if it is repeated.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Token(_) | Self::UploadInterrupted { .. } => true,
            Self::Http(error) => matches!(error.status, 429 | 503),
            _ => false,
        }
    }

    /// Returns whether the connection has ended, so that every later request fails too.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminated { .. })
    }

    /// Returns whether a timeout expired.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout(_))
    }

    /// Returns whether the server rejected the token.
    pub fn is_unauthorized(&self) -> bool {
        match self {
            Self::Http(error) => error.status == 401,
            Self::Terminated { reason: EndReasonError(reason), .. } => {
                matches!(reason, EndReason::Unauthorized(_))
            }
            _ => false,
        }
    }

    /// Returns whether the request may have been executed although it failed. The client never repeats such a
    /// request.
    pub fn maybe_executed(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::InvalidSessionId { .. }
            | Self::Unreachable(_)
            | Self::PayloadTooLarge { .. }
            | Self::UploadInterrupted { .. }
            | Self::TooManyRequests { .. }
            | Self::ResponseTooLarge { .. }
            | Self::Redirected { .. }
            | Self::Encode { .. }
            | Self::Withdrawn { .. }
            | Self::TurnStillRunning { .. }
            | Self::Token(_) => false,
            // Rejected before it ran. Any other error may end a request that had begun.
            Self::Rpc { error, .. } => !matches!(error.code, -32700 | -32600 | -32601 | -32602),
            Self::Http(error) => error.status == 408 || (error.status >= 500 && error.status != 503),
            Self::Terminated { pending, .. } => *pending,
            Self::Timeout(timeout) => timeout.phase != Phase::Outbox,
            _ => true,
        }
    }

    /// Returns how long the server asked the client to wait, at most five minutes.
    pub fn retry_after(&self) -> Option<Duration> {
        self.http()?.retry_after
    }

    /// Returns the problem report of the server, if there is one.
    pub fn problem(&self) -> Option<&Problem> {
        self.http()?.problem.as_ref()
    }

    /// Returns the HTTP error, if there is one.
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

    /// Returns the agent's error response, if there is one.
    pub fn rpc_error(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns why the connection ended, if it has.
    pub fn end_reason(&self) -> Option<&EndReason> {
        match self {
            Self::Terminated { reason: EndReasonError(reason), .. } => Some(reason),
            _ => None,
        }
    }

    /// Returns the application's reason for ending the request or the connection, if it has this type.
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
        let source: Cause = Arc::new(RpcError::internal("x"));
        let upload = Error::UploadInterrupted { method: "x".into(), sent: 1, size: 2, source };
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
            (Error::InvalidSessionId { session_id: "é".into() }, false, false),
            (Error::TooManyRequests { limit: 1 }, false, false),
            (Error::ResponseTooLarge { size: 2, limit: 1 }, false, false),
            (upload, true, false),
        ];
        for (error, retryable, maybe) in table {
            assert_eq!((error.is_retryable(), error.maybe_executed()), (retryable, maybe), "{error}");
        }
    }

    #[test]
    fn errors_are_safe_to_print_and_keep_their_text() {
        let evil = "\u{1b}]0;title\u{7}\r\u{9b}2J\u{202e}";
        let body = serde_json::json!({"title": evil, "detail": evil}).to_string();
        let errors = [
            Error::Http(Box::new(HttpError::new(evil, 500, Some(evil.to_owned()), evil.as_bytes()))),
            Error::Http(Box::new(HttpError::new("x", 500, None, body.as_bytes()))),
            Error::Rpc { error: RpcError::new(1, evil), status: None },
            Error::ServerRestarted { method: evil.to_owned() },
            Error::Redirected { status: 302, location: Some(evil.to_owned()) },
            Error::UnexpectedBody {
                status: 200,
                content_type: Some(evil.to_owned()),
                start: evil.to_owned(),
            },
            Error::InvalidSessionId { session_id: evil.into() },
            Error::TurnStillRunning { session: evil.into() },
        ];
        for error in errors {
            let shown = error.to_string();
            assert!(!shown.contains(['\u{1b}', '\u{7}', '\r', '\u{9b}', '\u{202e}']), "{shown:?}");
            assert!(shown.contains("\\u{1b}]0;title"), "{shown:?}");
        }
        let error = Error::Http(Box::new(HttpError::new("x", 500, None, body.as_bytes())));
        assert_eq!(error.problem().unwrap().detail.as_deref(), Some(evil));
    }

    #[test]
    fn causes_are_not_printed_twice() {
        let error = Error::terminated(EndReason::Unauthorized(Arc::new(http(401))));
        assert_eq!(error.to_string(), "the connection has ended");
        let chain: Vec<_> = std::iter::successors(error.source(), |error| StdError::source(*error))
            .map(ToString::to_string)
            .collect();
        assert_eq!(chain, ["the server rejects the token", "`session/new` failed with HTTP 401"]);
        assert!(error.is_unauthorized() && error.is_terminal());
    }
}
