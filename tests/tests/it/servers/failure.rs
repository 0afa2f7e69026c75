//! The error of a call, from either client.

use acp_http_client::EndReasonError;
use sandbox_agent_sdk::TerminationInfo;
use sandbox_agent_sdk::error::LostReason;

/// The error of either client.
#[derive(Debug)]
pub(crate) enum Failure {
    Sdk(Box<sandbox_agent_sdk::Error>),
    Protocol(Box<acp_http_client::Error>),
}

impl Failure {
    pub(crate) fn is_unauthorized(&self) -> bool {
        match self {
            Self::Sdk(error) => error.is_unauthorized(),
            Self::Protocol(error) => error.is_unauthorized(),
        }
    }

    pub(crate) fn maybe_executed(&self) -> bool {
        match self {
            Self::Sdk(error) => error.maybe_executed(),
            Self::Protocol(error) => error.maybe_executed(),
        }
    }

    /// Whether the server rejected the message as too large, or closed the connection during its upload.
    pub(crate) fn is_too_large(&self) -> bool {
        match self {
            Self::Sdk(error) => {
                use sandbox_agent_sdk::Error;
                matches!(**error, Error::PayloadTooLarge { .. } | Error::UploadInterrupted { .. })
            }
            Self::Protocol(error) => {
                use acp_http_client::Error;
                matches!(**error, Error::PayloadTooLarge { .. } | Error::UploadInterrupted { .. })
            }
        }
    }

    /// Whether the server no longer knows the connection.
    pub(crate) fn is_server_gone(&self) -> bool {
        match self {
            Self::Sdk(error) => matches!(
                **error,
                sandbox_agent_sdk::Error::ConnectionEnded { reason: LostReason::ServerGone, .. }
            ),
            Self::Protocol(error) => matches!(
                **error,
                acp_http_client::Error::Terminated {
                    reason: EndReasonError(acp_http_client::EndReason::ServerGone(_)),
                    ..
                }
            ),
        }
    }

    /// Whether a restart of the server was detected.
    pub(crate) fn is_restart(&self) -> bool {
        match self {
            Self::Sdk(error) => matches!(**error, sandbox_agent_sdk::Error::ServerRestarted { .. }),
            Self::Protocol(error) => matches!(**error, acp_http_client::Error::ServerRestarted { .. }),
        }
    }

    pub(crate) fn http_status(&self) -> Option<u16> {
        match self {
            Self::Sdk(error) => error.http().map(|http| http.status),
            Self::Protocol(error) => error.http().map(|http| http.status),
        }
    }

    pub(crate) fn rpc_code(&self) -> Option<i64> {
        match self {
            Self::Sdk(error) => error.rpc_error().map(|rpc| rpc.code),
            Self::Protocol(error) => match &**error {
                acp_http_client::Error::Rpc { error, .. } => Some(error.code),
                _ => None,
            },
        }
    }

    /// Returns how the agent ended. Only the SDK's client reports that.
    pub(crate) fn termination(&self) -> Option<&TerminationInfo> {
        match self {
            Self::Sdk(error) => error.termination(),
            Self::Protocol(_) => None,
        }
    }
}

impl From<sandbox_agent_sdk::Error> for Failure {
    fn from(error: sandbox_agent_sdk::Error) -> Self {
        Self::Sdk(Box::new(error))
    }
}

impl From<acp_http_client::Error> for Failure {
    fn from(error: acp_http_client::Error) -> Self {
        Self::Protocol(Box::new(error))
    }
}
