//! What can go wrong, by what the caller can do about it.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use crate::TerminationInfo;
use crate::client::login::LoginRequired;
use crate::convert::text::printable;
#[cfg(feature = "sessions")]
use crate::sessions::{SessionStatus, StoreError, TransitionError, UserAction};
use crate::turns::IncompleteTurn;
use crate::usage::BudgetEvent;

mod convert;
mod end;
mod http;
mod rpc;
#[cfg(test)]
mod tests;
mod timeout;

pub use crate::convert::fields::MissingMember;
pub use crate::convert::unparsed::AgentUnparsed;
pub use end::{AgentEnded, LostReason};
pub use http::{HttpError, Problem};
pub use rpc::RpcError;
pub use timeout::{Phase, Timeout};

/// A cause that can be shared by every call it ended.
pub(crate) type Cause = Arc<dyn StdError + Send + Sync>;

/// Everything a call can fail with.
///
/// `Display` is safe to print: text that came over the wire has its control characters
/// [escaped](crate::convert::text::printable). The fields hold it as it came.
///
/// | question | answered by |
/// |---|---|
/// | may I just try again? | [`is_retryable`](Self::is_retryable) |
/// | will every later call fail too? | [`is_terminal`](Self::is_terminal) |
/// | may it have had its effect all the same? | [`maybe_executed`](Self::maybe_executed) |
/// | did the agent die, and how? | [`termination`](Self::termination) |
/// | what did the server say? | [`problem`](Self::problem), [`http`](Self::http) |
/// | what did the agent say? | [`rpc_error`](Self::rpc_error) |
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client, or a call, was set up with something it cannot use. Nothing was sent.
    #[error("invalid configuration: {}", printable(.0))]
    Config(String),
    /// There is no connection: it was never made, or it was given up. Nothing was sent.
    #[error("not connected")]
    NotConnected,
    /// There is a connection already, or it is being made by somebody else. Nothing was sent.
    #[error("already connected")]
    AlreadyConnected,
    /// The connection was given up by this program while the call was waiting.
    #[error("disconnected before `{}` was answered", printable(.what))]
    #[non_exhaustive]
    Disconnected {
        /// What was being done.
        what: String,
    },
    /// The session is busy with another turn. Nothing was sent.
    #[error("session `{}` is busy with another turn", printable(.session_id))]
    #[non_exhaustive]
    TurnInProgress {
        /// The session.
        session_id: String,
    },
    /// The call was cancelled before it was sent.
    #[error("`{what}` was cancelled before it was sent")]
    #[non_exhaustive]
    Withdrawn {
        /// What was called.
        what: String,
    },
    /// The budget of the session, or of the client, is spent. Nothing was sent.
    #[error("{0}")]
    BudgetSpent(Box<BudgetEvent>),
    /// Neither the server nor the agent has this method. From the second time on nothing is sent.
    #[error("`{}` is not supported", printable(.method))]
    #[non_exhaustive]
    Unsupported {
        /// The method.
        method: String,
    },
    /// The agent, or the session, has ended.
    #[error("{}", if .0.session_id.is_some() { "the session has ended" } else { "the agent has ended" })]
    AgentEnded(#[source] Box<AgentEnded>),
    /// The server does not have an agent of this name.
    #[error("the server has no agent of this name")]
    UnsupportedAgent(#[source] Box<HttpError>),
    /// The agent is not installed, and the server does not install it by itself.
    #[error("the agent is not installed")]
    AgentNotInstalled(#[source] Box<HttpError>),
    /// The agent could not be installed.
    #[error("the agent could not be installed")]
    InstallFailed(#[source] Box<HttpError>),
    /// The server could not be reached. Nothing was sent.
    #[error("the server cannot be reached")]
    Unreachable(#[source] Cause),
    /// The server refuses the token.
    #[error("the server refuses the token")]
    Unauthorized(#[source] Box<HttpError>),
    /// No token could be had. Nothing was sent.
    #[error("no token could be had")]
    Token(#[source] Cause),
    /// The connection broke after the message may have been sent.
    #[error("the connection broke before `{}` was answered", printable(.what))]
    #[non_exhaustive]
    ConnectionLost {
        /// What was being done.
        what: String,
        /// What broke it.
        #[source]
        source: Cause,
    },
    /// The connection ended for good, though not by this program. The agent may well be alive.
    #[error("the connection has ended: {reason}")]
    #[non_exhaustive]
    ConnectionEnded {
        /// Why.
        reason: LostReason,
        /// Whether this call may have been sent before.
        sent: bool,
        /// What the server or the network said.
        #[source]
        source: Option<Arc<Error>>,
    },
    /// The server restarted (its numbering began anew) while the call was waiting.
    #[error("the server restarted before `{}` was answered", printable(.what))]
    #[non_exhaustive]
    ServerRestarted {
        /// What was being done.
        what: String,
    },
    /// The server answered with an HTTP status that means failure.
    #[error("{0}")]
    Http(Box<HttpError>),
    /// What was sent is larger than the server takes.
    #[error("`{}` is too large for the server{}", printable(.what), .size.map(|size| format!(" ({size} bytes)")).unwrap_or_default())]
    #[non_exhaustive]
    PayloadTooLarge {
        /// What was being done.
        what: String,
        /// How large it was, if that is known.
        size: Option<u64>,
        /// How much the server takes, if that is known.
        limit: Option<u64>,
        /// What the server answered; `None` if it closed the connection without being heard.
        #[source]
        source: Option<Box<HttpError>>,
    },
    /// The upload of a large message broke before the server had received all of it. It cannot have run.
    #[error("upload of `{what}` broke after {sent} of {size} bytes")]
    UploadInterrupted {
        /// What was uploaded.
        what: String,
        /// How many bytes were handed over to the connection.
        sent: u64,
        /// The size of the message.
        size: u64,
        /// What broke it.
        #[source]
        source: Cause,
    },
    /// An agent request got no response: too many were waiting to be refused.
    #[error("more than {limit} agent requests are waiting to be refused")]
    TooManyRequests {
        /// The limit for refusals.
        limit: usize,
    },
    /// The server points elsewhere. Redirects are not followed: a token must not travel to another place.
    #[error("the server redirects to {}", printable(.location.as_deref().unwrap_or("nowhere")))]
    #[non_exhaustive]
    Redirected {
        /// The status.
        status: u16,
        /// Where to.
        location: Option<String>,
    },
    /// The server answered with success, but the body is not what was asked for: a login page, say.
    #[error("the server answered {status} with {} that cannot be read", printable(.content_type.as_deref().unwrap_or("a body")))]
    #[non_exhaustive]
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
    #[non_exhaustive]
    Rpc {
        /// The error as it came.
        error: RpcError,
        /// The HTTP status it came with, if that meant failure too.
        status: Option<u16>,
        /// Whether the agent may have acted before it failed: it may if the call was a prompt.
        executed: bool,
    },
    /// The agent requires a login first: see [`authenticate`](crate::SandboxAgentClient::authenticate).
    #[error("the agent requires a login")]
    LoginRequired(#[source] Box<LoginRequired>),
    /// The answer does not fit its type. It is kept.
    #[error("the answer to `{}` cannot be read", printable(.what))]
    #[non_exhaustive]
    Decode {
        /// What was being done.
        what: String,
        /// The answer as it came.
        raw: String,
        /// What does not fit.
        #[source]
        source: Cause,
    },
    /// The parameters cannot be written. Nothing was sent.
    #[error("the parameters of `{}` cannot be written", printable(.what))]
    #[non_exhaustive]
    Encode {
        /// What was being done.
        what: String,
        /// What cannot be written.
        #[source]
        source: Cause,
    },
    /// A message from the server is larger than the limit.
    #[error("a message of at least {seen} bytes is over the limit of {limit}")]
    #[non_exhaustive]
    MessageTooLarge {
        /// The limit that is set.
        limit: usize,
        /// How much had arrived when the message was given up.
        seen: usize,
        /// The id of the event, if it is known.
        event_id: Option<String>,
    },
    /// A response would take more memory than the limit once it is decoded.
    #[error("the response to `{what}` takes {size} bytes decoded; the limit is {limit}")]
    DecodedTooLarge {
        /// The call.
        what: String,
        /// The limit: see [`Limits`](crate::client::limits::Limits).
        limit: usize,
        /// An upper bound of what it takes.
        size: usize,
    },
    /// A list has more pages, or more in them, than the limit. What was read before is not lost.
    #[error("the list of `{what}` does not end within {pages} pages and {bytes} bytes")]
    ListTooLong {
        /// The call.
        what: String,
        /// How many pages were read.
        pages: usize,
        /// How many bytes they take decoded, about.
        bytes: usize,
    },
    /// Parts of a turn are missing, or it was cut short by its deadline. What was received is in it.
    #[error("{0}")]
    IncompleteTurn(#[source] Box<IncompleteTurn>),
    /// Time ran out.
    #[error("{0}")]
    Timeout(Box<Timeout>),
    #[cfg(feature = "sessions")]
    /// The store of the sessions failed. Nothing was sent.
    #[error("the sessions cannot be kept")]
    Store(#[from] StoreError),
    #[cfg(feature = "sessions")]
    /// The session cannot go to the status that this would bring. Nothing was sent.
    #[error(transparent)]
    Status(#[from] TransitionError),
    #[cfg(feature = "sessions")]
    /// The session's status does not allow this. Nothing was sent.
    #[error("a session that is {status} does not allow this")]
    #[non_exhaustive]
    NotAllowed {
        /// What was to be done.
        action: UserAction,
        /// The status of the session.
        status: SessionStatus,
    },
    /// Something on this side of the network failed: a local file, or a stream that the program gave.
    #[error("`{}` failed on this machine", printable(.what))]
    #[non_exhaustive]
    Local {
        /// What was being done.
        what: String,
        /// What failed.
        #[source]
        source: Cause,
    },
}

impl Error {
    pub(crate) fn config(what: impl Into<String>) -> Self {
        Self::Config(what.into())
    }

    /// An answer of HTTP that means failure, as the variant that says what can be done about it.
    pub(crate) fn from_http(error: HttpError) -> Self {
        let kind = error.problem.as_ref().map(|problem| problem.short_kind().to_owned());
        let error = Box::new(error);
        match (error.status, kind.as_deref()) {
            (_, Some("unsupported_agent")) => Self::UnsupportedAgent(error),
            (_, Some("agent_not_installed")) => Self::AgentNotInstalled(error),
            (_, Some("install_failed")) => Self::InstallFailed(error),
            (401, _) => Self::Unauthorized(error),
            (413, _) => {
                let what = error.what.clone();
                Self::PayloadTooLarge { what, size: None, limit: None, source: Some(error) }
            }
            _ => Self::Http(error),
        }
    }

    pub(crate) fn ended(session_id: Option<&str>, info: TerminationInfo, sent: bool) -> Self {
        let connection_ended = session_id.is_none();
        let session_id = session_id.map(str::to_owned);
        Self::AgentEnded(Box::new(AgentEnded { session_id, info, sent, connection_ended, answer: None }))
    }

    /// Whether the same call may succeed if it is made again, and making it again does no harm.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Token(_)
            | Self::TurnInProgress { .. }
            | Self::UploadInterrupted { .. } => true,
            Self::Http(error) => matches!(error.status, 429 | 503),
            #[cfg(feature = "sessions")]
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Whether the connection has ended, so that every later call fails too until there is a new one.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::NotConnected | Self::Disconnected { .. } | Self::ConnectionEnded { .. } => true,
            Self::AgentEnded(end) => end.connection_ended,
            _ => false,
        }
    }

    /// Whether the call may have had its effect although it failed. Such a call is never repeated by itself.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        match self {
            Self::AgentEnded(end) => end.sent,
            Self::ConnectionEnded { sent, .. } => *sent,
            // A gateway's word, or the server's about itself: it did not pass the call on.
            Self::Http(error) => error.status >= 500 && error.status != 503,
            Self::Disconnected { .. }
            | Self::ConnectionLost { .. }
            | Self::ServerRestarted { .. }
            | Self::UnexpectedBody { .. }
            | Self::Decode { .. }
            | Self::MessageTooLarge { .. }
            | Self::DecodedTooLarge { .. }
            | Self::ListTooLong { .. }
            | Self::IncompleteTurn(_)
            | Self::Timeout(_)
            | Self::InstallFailed(_)
            | Self::Local { .. } => true,
            Self::Config(_)
            | Self::NotConnected
            | Self::AlreadyConnected
            | Self::TurnInProgress { .. }
            | Self::Withdrawn { .. }
            | Self::BudgetSpent(_)
            | Self::Unsupported { .. }
            | Self::UnsupportedAgent(_)
            | Self::AgentNotInstalled(_)
            | Self::Unreachable(_)
            | Self::Unauthorized(_)
            | Self::Token(_)
            | Self::PayloadTooLarge { .. }
            | Self::UploadInterrupted { .. }
            | Self::TooManyRequests { .. }
            | Self::Redirected { .. }
            | Self::Encode { .. }
            // The agent took the call and refused it.
            | Self::LoginRequired(_)
            | Self::Rpc { executed: false, .. } => false,
            Self::Rpc { executed: true, .. } => true,
            #[cfg(feature = "sessions")]
            Self::Store(_) | Self::Status(_) | Self::NotAllowed { .. } => false,
        }
    }

    /// Whether time ran out.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::IncompleteTurn(turn) => turn.source.as_ref().is_some_and(|source| source.is_timeout()),
            _ => false,
        }
    }

    /// Whether the server refuses the token.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized(_) | Self::ConnectionEnded { reason: LostReason::Unauthorized, .. })
    }

    /// Whether the agent wants the user to log in first;
    /// [`Capabilities::auth_methods`](crate::connection::Capabilities::auth_methods) says how that can be done.
    #[must_use]
    pub fn is_login_required(&self) -> bool {
        if matches!(self, Self::LoginRequired(_)) {
            return true;
        }
        // Servers use the same code for other things, so the words count as well.
        self.rpc_error().is_some_and(|rpc| {
            let message = rpc.message.to_lowercase();
            rpc.code == -32000
                && ["auth", "api key", "log in", "login"].iter().any(|word| message.contains(word))
        })
    }

    /// Whether what was asked about does not exist.
    ///
    /// The released server says so of files with status 400 and a detail, which counts too.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.http().is_some_and(|error| {
            let detail = error.problem.as_ref().and_then(|problem| problem.detail.as_deref());
            error.status == 404 || detail.is_some_and(|detail| detail.contains("path not found"))
        })
    }

    /// How the agent or the session ended, if that is why the call failed.
    #[must_use]
    pub fn termination(&self) -> Option<&TerminationInfo> {
        match self {
            Self::AgentEnded(end) => Some(&end.info),
            _ => None,
        }
    }

    /// The failure that HTTP reported, if there was one.
    #[must_use]
    pub fn http(&self) -> Option<&HttpError> {
        match self {
            Self::Http(error)
            | Self::Unauthorized(error)
            | Self::UnsupportedAgent(error)
            | Self::AgentNotInstalled(error)
            | Self::InstallFailed(error) => Some(error),
            Self::PayloadTooLarge { source, .. } => source.as_deref(),
            Self::Timeout(timeout) => timeout.cause.as_deref()?.http(),
            Self::ConnectionEnded { source, .. } => source.as_deref()?.http(),
            Self::AgentEnded(end) => end.answer.as_deref()?.http(),
            _ => None,
        }
    }

    /// The problem report of the server, if there was one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        self.http()?.problem.as_ref()
    }

    /// The error answer of the agent, if there was one.
    #[must_use]
    pub fn rpc_error(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc { error, .. } => Some(error),
            Self::LoginRequired(login) => Some(&login.error),
            Self::AgentEnded(end) => end.answer.as_deref()?.rpc_error(),
            _ => None,
        }
    }

    /// How long the server asks to wait before the next attempt.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.http()?.retry_after
    }
}
