//! What an error means for the caller.

use std::time::Duration;

use super::{Error, HttpError, LostReason, Problem, RpcError};
use crate::TerminationInfo;

impl Error {
    /// Returns whether the same call may succeed later and is safe to repeat.
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

    /// Returns whether the connection has ended. Every call then fails until there is a new connection.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::NotConnected | Self::Disconnected { .. } | Self::ConnectionEnded { .. } => true,
            Self::AgentEnded(end) => end.connection_ended,
            _ => false,
        }
    }

    /// Returns whether the failed call may have taken effect. The client never repeats such a call automatically.
    #[must_use]
    pub fn maybe_executed(&self) -> bool {
        match self {
            Self::AgentEnded(end) => end.sent,
            Self::ConnectionEnded { sent, .. } => *sent,
            Self::Timeout(timeout) => timeout.sent,
            Self::IncompleteTurn(turn) => turn.source.as_ref().is_none_or(|source| source.maybe_executed()),
            // The status comes from a gateway, or from the server before it forwarded the call.
            Self::Http(error) => error.status >= 500 && error.status != 503,
            Self::Disconnected { .. }
            | Self::ConnectionLost { .. }
            | Self::ServerRestarted { .. }
            | Self::UnexpectedBody { .. }
            | Self::Decode { .. }
            | Self::MessageTooLarge { .. }
            | Self::DecodedTooLarge { .. }
            | Self::ListTooLong { .. }
            | Self::InstallFailed(_)
            | Self::Local { .. } => true,
            Self::AfterTurn { outcome, .. } => outcome.sent,
            Self::Config(_)
            | Self::NotConnected
            | Self::AlreadyConnected
            | Self::TurnInProgress { .. }
            | Self::Withdrawn { .. }
            | Self::BudgetSpent(_)
            | Self::EventsLost(_)
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
            | Self::Encode { .. } => false,
            Self::LoginRequired(login) => login.executed,
            Self::Rpc { executed, .. } => *executed,
            #[cfg(feature = "sessions")]
            Self::Store(_) | Self::Status(_) | Self::NotAllowed { .. } => false,
        }
    }

    /// Returns whether a timeout expired.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::IncompleteTurn(turn) => turn.source.as_ref().is_some_and(|source| source.is_timeout()),
            _ => false,
        }
    }

    /// Returns whether the server rejects the token.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        matches!(self, Self::Unauthorized(_) | Self::ConnectionEnded { reason: LostReason::Unauthorized, .. })
    }

    /// Returns whether the agent requires a login.
    ///
    /// [`Capabilities::auth_methods`](crate::connection::Capabilities::auth_methods) lists the login methods.
    #[must_use]
    pub fn is_login_required(&self) -> bool {
        if matches!(self, Self::LoginRequired(_)) {
            return true;
        }
        // Agents use the same code for other errors, so the message is checked too.
        self.rpc_error().is_some_and(|rpc| rpc.code == -32000 && rpc.is_about_login())
    }

    /// Returns whether the requested resource does not exist.
    ///
    /// This includes the status 400 with which the released server reports missing files.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.http().is_some_and(|error| {
            let detail = error.problem.as_ref().and_then(|problem| problem.detail.as_deref());
            error.status == 404 || detail.is_some_and(|detail| detail.contains("path not found"))
        })
    }

    /// Returns how the agent or the session ended, if that caused the error.
    #[must_use]
    pub fn termination(&self) -> Option<&TerminationInfo> {
        match self {
            Self::AgentEnded(end) => Some(&end.info),
            _ => None,
        }
    }

    /// Returns the HTTP error, if there is one.
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
            Self::AgentEnded(end) => end.response.as_deref()?.http(),
            _ => None,
        }
    }

    /// Returns the server's problem report, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        self.http()?.problem.as_ref()
    }

    /// Returns the agent's error response, if there is one.
    #[must_use]
    pub fn rpc_error(&self) -> Option<&RpcError> {
        match self {
            Self::Rpc { error, .. } => Some(error),
            Self::LoginRequired(login) => Some(&login.error),
            Self::AgentEnded(end) => end.response.as_deref()?.rpc_error(),
            _ => None,
        }
    }

    /// Returns how long the server asks the client to wait before the next attempt.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.http()?.retry_after
    }
}
