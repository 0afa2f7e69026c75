//! Errors, classified by what the caller can do about them.

use std::error::Error as StdError;
use std::sync::Arc;

use crate::TurnOutcome;
use crate::client::login::LoginRequired;
use crate::convert::text::printable;
use crate::event::EventsLost;
use crate::turns::IncompleteTurn;
use crate::usage::BudgetEvent;

mod classify;
mod convert;
mod end;
mod http;
mod rpc;
#[cfg(test)]
mod tests;
mod timeout;
mod unknown_session;

pub use crate::convert::fields::MissingMember;
pub use crate::convert::unparsed::AgentUnparsed;
pub use end::{AgentEnded, LostReason};
pub use http::{HttpError, Problem};
pub use rpc::RpcError;
pub use timeout::{Phase, Timeout};
pub(crate) use unknown_session::is_unknown_session;

/// A cause that several failed calls can share.
pub(crate) type Cause = Arc<dyn StdError + Send + Sync>;

/// The error of a call.
///
/// `Display` is safe to print: it [escapes](crate::convert::text::printable) control characters in text from
/// the network. The fields hold the original text.
///
/// | question | method |
/// |---|---|
/// | can I retry? | [`is_retryable`](Self::is_retryable) |
/// | will every later call fail too? | [`is_terminal`](Self::is_terminal) |
/// | may the call have taken effect? | [`maybe_executed`](Self::maybe_executed) |
/// | has the agent ended, and how? | [`termination`](Self::termination) |
/// | what did the server report? | [`problem`](Self::problem), [`http`](Self::http) |
/// | what did the agent report? | [`rpc_error`](Self::rpc_error) |
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting or an argument is invalid. Nothing was sent.
    #[error("invalid configuration: {}", printable(.0))]
    Config(String),
    /// There is no connection: it was not opened yet, or it was closed. Nothing was sent. Call
    /// [`connect`](crate::SandboxAgentClient::connect) to open one.
    #[error("not connected")]
    NotConnected,
    /// The client is already connected or connecting. Nothing was sent.
    #[error("already connected or connecting")]
    AlreadyConnected,
    /// The client was disconnected while the call was pending.
    #[error("disconnected before the response to `{}`", printable(.what))]
    #[non_exhaustive]
    Disconnected {
        /// The operation that was pending.
        what: String,
    },
    /// The session is running another turn. Nothing was sent.
    #[error("session `{}` is busy with another turn", printable(.session_id))]
    #[non_exhaustive]
    TurnInProgress {
        /// The id of the session.
        session_id: String,
    },
    /// The call was cancelled before it was sent.
    #[error("`{what}` was cancelled before it was sent")]
    #[non_exhaustive]
    Withdrawn {
        /// The operation that was cancelled.
        what: String,
    },
    /// The budget of the session or of the client is spent. Nothing was sent.
    #[error("{0}")]
    BudgetSpent(Box<BudgetEvent>),
    /// Neither the server nor the agent supports the method. Later calls of the method fail without being sent.
    #[error("`{}` is not supported", printable(.method))]
    #[non_exhaustive]
    Unsupported {
        /// The unsupported method.
        method: String,
    },
    /// The agent or the session has ended.
    #[error("{} has ended: {}", if .0.session_id.is_some() { "the session" } else { "the agent" }, .0.info.headline())]
    AgentEnded(#[source] Box<AgentEnded>),
    /// The server does not know the agent.
    #[error("the server does not know the agent")]
    UnsupportedAgent(#[source] Box<HttpError>),
    /// The agent is not installed, and the server does not install it automatically.
    #[error("the agent is not installed")]
    AgentNotInstalled(#[source] Box<HttpError>),
    /// The installation of the agent failed.
    #[error("installation of the agent failed")]
    InstallFailed(#[source] Box<HttpError>),
    /// The server is unreachable. Nothing was sent.
    #[error("server is unreachable")]
    Unreachable(#[source] Cause),
    /// The server rejects the token.
    #[error("the server rejects the token")]
    Unauthorized(#[source] Box<HttpError>),
    /// The token provider failed. Nothing was sent.
    #[error("token provider failed")]
    Token(#[source] Cause),
    /// The connection was lost after the request may have been sent.
    #[error("connection was lost before the response to `{}`", printable(.what))]
    #[non_exhaustive]
    ConnectionLost {
        /// The operation that failed.
        what: String,
        /// The network error.
        #[source]
        source: Cause,
    },
    /// The connection has ended permanently, and this client did not close it. The agent may still be running.
    #[error("the connection has ended: {reason}")]
    #[non_exhaustive]
    ConnectionEnded {
        /// Why the connection ended.
        reason: LostReason,
        /// Whether the request of this call may have been sent before.
        sent: bool,
        /// The error of the server or the network, if there is one.
        #[source]
        source: Option<Arc<Error>>,
    },
    /// The server restarted while the call was pending. Its event numbers started over.
    #[error("server restarted before the response to `{}`", printable(.what))]
    #[non_exhaustive]
    ServerRestarted {
        /// The operation that was pending.
        what: String,
    },
    /// The server responded with an HTTP error status.
    #[error("{0}")]
    Http(Box<HttpError>),
    /// The request is larger than the server accepts.
    #[error("`{}` is too large for the server{}", printable(.what), .size.map(|size| format!(" ({size} bytes)")).unwrap_or_default())]
    #[non_exhaustive]
    PayloadTooLarge {
        /// The operation that failed.
        what: String,
        /// The size of the request, if known.
        size: Option<u64>,
        /// The server's limit, if known.
        limit: Option<u64>,
        /// The server's response; `None` if it closed the connection before a response arrived.
        #[source]
        source: Option<Box<HttpError>>,
    },
    /// The upload was interrupted before the server had received all of it. The request was not executed.
    #[error("upload of `{what}` was interrupted after {sent} of {size} bytes")]
    #[non_exhaustive]
    UploadInterrupted {
        /// The operation that failed.
        what: String,
        /// How many bytes were sent.
        sent: u64,
        /// The size of the request.
        size: u64,
        /// The network error.
        #[source]
        source: Cause,
    },
    /// An agent request got no response because too many refusals were already queued.
    #[error("agent request got no response: {limit} refusals are already queued")]
    #[non_exhaustive]
    TooManyRequests {
        /// The limit of queued refusals.
        limit: usize,
    },
    /// The server redirects. Redirects are not followed, because the token must not reach another server.
    #[error("server redirects to {}", printable(.location.as_deref().unwrap_or("an unknown location")))]
    #[non_exhaustive]
    Redirected {
        /// The HTTP status.
        status: u16,
        /// The redirect target.
        location: Option<String>,
    },
    /// The server responded with success and an unexpected body, such as a login page.
    #[error("server responded {status} with an unexpected body ({})", printable(.content_type.as_deref().unwrap_or("no content type")))]
    #[non_exhaustive]
    UnexpectedBody {
        /// The HTTP status.
        status: u16,
        /// The media type of the body.
        content_type: Option<String>,
        /// The beginning of the body.
        start: String,
    },
    /// The agent responded with an error.
    #[error("{error}")]
    #[non_exhaustive]
    Rpc {
        /// The error response.
        error: RpcError,
        /// The HTTP status of the response, if it is an error status.
        status: Option<u16>,
        /// Whether the agent may have acted before it failed, for example during a prompt.
        executed: bool,
    },
    /// The agent requires a login. See [`authenticate`](crate::SandboxAgentClient::authenticate).
    #[error("the agent requires a login")]
    LoginRequired(#[source] Box<LoginRequired>),
    /// The response does not have the expected format.
    #[error("response to `{}` has an unexpected format", printable(.what))]
    #[non_exhaustive]
    Decode {
        /// The operation whose response could not be parsed.
        what: String,
        /// The raw response.
        raw: String,
        /// The parse error.
        #[source]
        source: Cause,
    },
    /// The parameters cannot be serialized. Nothing was sent.
    #[error("parameters of `{}` cannot be serialized", printable(.what))]
    #[non_exhaustive]
    Encode {
        /// The operation that was not sent.
        what: String,
        /// The serialization error.
        #[source]
        source: Cause,
    },
    /// A message from the server is larger than the limit.
    #[error("message is at least {seen} bytes; the limit is {limit}")]
    #[non_exhaustive]
    MessageTooLarge {
        /// The limit in bytes.
        limit: usize,
        /// How many bytes had arrived when the client stopped reading the message.
        seen: usize,
        /// The id of the event, if known.
        event_id: Option<String>,
    },
    /// A response would exceed the memory limit after decoding.
    #[error("the response to `{what}` may take {size} bytes once decoded; the limit is {limit}")]
    #[non_exhaustive]
    DecodedTooLarge {
        /// The operation whose response is too large.
        what: String,
        /// The limit in bytes. See [`Limits`](crate::client::limits::Limits).
        limit: usize,
        /// An upper bound of the response's size in memory, in bytes.
        size: usize,
    },
    /// A list exceeds the limit of pages or bytes. The pages that were already returned remain valid.
    #[error("the result of `{what}` exceeds the limit after {pages} pages and {bytes} bytes")]
    #[non_exhaustive]
    ListTooLong {
        /// The operation that returned the list.
        what: String,
        /// How many pages were read.
        pages: usize,
        /// The approximate size of these pages in memory, in bytes.
        bytes: usize,
    },
    /// Updates of a turn are missing, or its deadline or idle timeout expired. The error contains what was received.
    #[error(transparent)]
    IncompleteTurn(Box<IncompleteTurn>),
    /// The turn succeeded, and the step after its end failed: for example, its last events were not stored. The prompt
    /// was executed.
    #[error("the turn succeeded, but the step after its end failed")]
    #[non_exhaustive]
    AfterTurn {
        /// The outcome of the turn.
        outcome: Box<TurnOutcome>,
        /// Why the step failed.
        #[source]
        source: Arc<Error>,
    },
    /// A timeout expired.
    #[error("{0}")]
    Timeout(Box<Timeout>),
    #[cfg(feature = "sessions")]
    /// The session store failed. Nothing was sent.
    #[error("session store failed")]
    Store(#[source] crate::sessions::store::StoreError),
    /// Events of stored sessions were not stored.
    #[error("{}", lost_text(.0))]
    EventsLost(Vec<EventsLost>),
    #[cfg(feature = "sessions")]
    /// The session's status does not allow the transition. Nothing was sent.
    #[error(transparent)]
    Status(#[from] crate::sessions::TransitionError),
    #[cfg(feature = "sessions")]
    /// The session's status does not allow the operation. Nothing was sent.
    #[error("the operation is not allowed while the session is {status}")]
    #[non_exhaustive]
    NotAllowed {
        /// The operation that was not allowed.
        action: crate::sessions::UserAction,
        /// The status of the session.
        status: crate::sessions::SessionStatus,
    },
    /// A local resource failed: a file, or a stream that the application supplied.
    #[error("`{}` failed on this machine", printable(.what))]
    #[non_exhaustive]
    Local {
        /// The operation that failed.
        what: String,
        /// The cause of the failure.
        #[source]
        source: Cause,
    },
}

fn lost_text(losses: &[EventsLost]) -> String {
    match losses {
        [one] => format!("{} events of session `{}` were not stored", one.count, printable(&one.session_id)),
        several => format!("events of {} sessions were not stored", several.len()),
    }
}
