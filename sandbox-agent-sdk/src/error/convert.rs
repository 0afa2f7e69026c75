//! Creates errors, and converts those of the protocol client without losing information.

use std::sync::Arc;

use acp_http_client as wire;

use super::{AgentEnded, Error, HttpError, LostReason, Phase, Problem, RpcError, Timeout};
use crate::TerminationInfo;
use crate::thread::TurnFailure;

impl Error {
    /// The operating system provides no randomness for a name that must not be guessable.
    pub(crate) fn randomness(source: std::io::Error) -> Self {
        Self::Local { what: "randomness of the operating system".to_owned(), source: Arc::new(source) }
    }

    pub(crate) fn config(what: impl Into<String>) -> Self {
        Self::Config(what.into())
    }

    /// Converts an HTTP error response to the matching variant.
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
        Self::AgentEnded(Box::new(AgentEnded { session_id, info, sent, connection_ended, response: None }))
    }

    /// Converts an error of the protocol client.
    ///
    /// This is not a `From` implementation, so that the protocol client stays out of the public API.
    pub(crate) fn from_wire(error: wire::Error) -> Self {
        match error {
            wire::Error::Config(what) => Self::Config(what),
            wire::Error::Unreachable(source) => Self::Unreachable(source),
            wire::Error::Token(source) => Self::Token(source),
            wire::Error::ConnectionLost { method, source } => Self::ConnectionLost { what: method, source },
            wire::Error::Http(error) => Self::from_http(HttpError::from_wire(*error)),
            wire::Error::PayloadTooLarge { method, size, source } => Self::PayloadTooLarge {
                what: method,
                size: Some(size as u64),
                limit: None,
                source: source.map(|source| Box::new(HttpError::from_wire(*source))),
            },
            wire::Error::UploadInterrupted { method, sent, size, source } => {
                Self::UploadInterrupted { what: method, sent: sent as u64, size: size as u64, source }
            }
            wire::Error::TooManyRequests { limit } => Self::TooManyRequests { limit },
            error @ wire::Error::InvalidSessionId { .. } => Self::Config(error.to_string()),
            wire::Error::Redirected { status, location } => Self::Redirected { status, location },
            wire::Error::UnexpectedBody { status, content_type, start } => {
                Self::UnexpectedBody { status, content_type, start }
            }
            wire::Error::Rpc { error, status } => {
                Self::Rpc { error: RpcError::from_wire(error), status, executed: false }
            }
            wire::Error::Decode { method, raw, source } => {
                let raw = String::from_utf8_lossy(&raw).into_owned();
                Self::Decode { what: method, raw, source }
            }
            wire::Error::Encode { method, source } => Self::Encode { what: method, source },
            wire::Error::ResponseTooLarge { size, limit } => {
                Self::MessageTooLarge { limit, seen: size, event_id: None }
            }
            wire::Error::MessageTooLarge { limit, seen, event_id } => {
                Self::MessageTooLarge { limit, seen, event_id: event_id.map(|id| id.as_text().into_owned()) }
            }
            wire::Error::Timeout(timeout) => Self::Timeout(Box::new(Timeout::from_wire(*timeout))),
            wire::Error::Withdrawn { method } => Self::Withdrawn { what: method },
            wire::Error::TurnStillRunning { session } => {
                Self::TurnInProgress { session_id: session.as_str().to_owned() }
            }
            wire::Error::ServerRestarted { method } => Self::ServerRestarted { what: method },
            wire::Error::Interrupted(reason) => Self::interrupted(&reason),
            wire::Error::Terminated { reason, pending: true } => Self::terminated(&reason.0),
            wire::Error::Terminated { reason, pending: false } => Self::terminated_before(&reason.0),
            other => {
                let reason = LostReason::Other(other.to_string());
                Self::ConnectionEnded { reason, sent: other.maybe_executed(), source: None }
            }
        }
    }

    /// Converts the reason with which this crate interrupted a call. It is always an error of this crate.
    fn interrupted(reason: &super::Cause) -> Self {
        match reason.downcast_ref::<Self>() {
            Some(error) => error.clone(),
            None => Self::ConnectionEnded {
                reason: LostReason::Other(reason.to_string()),
                sent: true,
                source: None,
            },
        }
    }

    /// Converts the end of the connection to the error of a call that was not sent, or that the server refused.
    pub(crate) fn terminated_before(reason: &wire::EndReason) -> Self {
        match Self::terminated(reason) {
            Self::ConnectionEnded { reason, source, .. } => {
                Self::ConnectionEnded { reason, sent: false, source }
            }
            Self::Disconnected { .. } => Self::NotConnected,
            Self::AgentEnded(mut end) => {
                end.sent = false;
                Self::AgentEnded(end)
            }
            other => other,
        }
    }

    /// Converts the end of the connection to the error of a pending call.
    pub(crate) fn terminated(reason: &wire::EndReason) -> Self {
        let ended = |reason, source: &Arc<wire::Error>| Self::ConnectionEnded {
            reason,
            sent: true,
            source: Some(Arc::new(Self::from_wire((**source).clone()))),
        };
        match reason {
            wire::EndReason::Closed => Self::Disconnected { what: "the call".to_owned() },
            wire::EndReason::Dropped => {
                Self::ConnectionEnded { reason: LostReason::Dropped, sent: true, source: None }
            }
            wire::EndReason::ServerGone(error) => ended(LostReason::ServerGone, error),
            wire::EndReason::Unauthorized(error) => ended(LostReason::Unauthorized, error),
            wire::EndReason::StreamRefused(error) => ended(LostReason::StreamRefused, error),
            wire::EndReason::RetriesExhausted { attempts, last } => {
                ended(LostReason::RetriesExhausted { attempts: *attempts }, last)
            }
            wire::EndReason::Custom(reason) => Self::interrupted(reason),
            other => Self::ConnectionEnded {
                reason: LostReason::Other(other.to_string()),
                sent: true,
                source: None,
            },
        }
    }
}

impl HttpError {
    fn from_wire(error: wire::HttpError) -> Self {
        Self {
            what: error.what,
            status: error.status,
            content_type: error.content_type,
            problem: error.problem.map(Problem::from_wire),
            body: error.body,
            retry_after: error.retry_after,
        }
    }
}

impl RpcError {
    pub(crate) fn from_wire(error: wire::RpcError) -> Self {
        Self { code: error.code, message: error.message, data: error.data }
    }
}

impl Timeout {
    fn from_wire(timeout: wire::Timeout) -> Self {
        Self {
            last_event_age: timeout.last_event_age,
            connection: Some(timeout.state.to_string()),
            cause: timeout.cause.map(|cause| Arc::new(Error::from_wire((*cause).clone()))),
            ..Self::new(Phase::from_wire(timeout.phase), timeout.what, timeout.elapsed)
        }
    }
}

impl Phase {
    fn from_wire(phase: wire::Phase) -> Self {
        match phase {
            wire::Phase::Outbox => Self::Outbox,
            wire::Phase::Headers => Self::Headers,
            wire::Phase::Response => Self::Response,
            wire::Phase::Confirmation => Self::Confirmation,
            wire::Phase::StreamOpen => Self::StreamOpen,
            wire::Phase::StreamIdle => Self::StreamIdle,
            wire::Phase::Close => Self::Close,
            _ => Self::Other,
        }
    }
}

/// Classifies a failed turn for a thread.
impl From<&Error> for TurnFailure {
    fn from(error: &Error) -> Self {
        if let Some(info) = error.termination() {
            return Self::from(info.clone());
        }
        let failure = Self::new(error.to_string());
        match error.rpc_error().and_then(|rpc| rpc.data.clone()) {
            Some(data) => failure.with_cause(data),
            None => failure,
        }
    }
}
