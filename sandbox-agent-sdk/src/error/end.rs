//! Why an agent, a session or a connection ended.

use std::fmt;
use std::sync::Arc;

use super::Error;
use crate::TerminationInfo;
use crate::convert::text::printable;

/// The end of an agent or a session, as the cause of a failed call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{info}")]
#[non_exhaustive]
pub struct AgentEnded {
    /// The session that ended; `None` if the agent ended with all its sessions.
    pub session_id: Option<String>,
    /// How the agent or session ended.
    pub info: TerminationInfo,
    /// Whether the call was already sent when the agent or session ended.
    pub sent: bool,
    /// Whether the connection ended as well. Then every later call fails until the agent is restarted.
    pub connection_ended: bool,
    /// The server's response to the call, if there was one.
    #[source]
    pub response: Option<Arc<Error>>,
}

/// Why a connection ended without being closed by this client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The server no longer knows the connection: it was deleted, or the server lost its state.
    ServerGone,
    /// The server rejects the token.
    Unauthorized,
    /// The server refuses the request for the event stream.
    StreamRefused,
    /// All attempts to reconnect failed.
    #[non_exhaustive]
    RetriesExhausted {
        /// The number of attempts.
        attempts: u32,
    },
    /// Every handle of the connection was dropped.
    Dropped,
    /// A reason that this version does not know.
    Other(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerGone => f.write_str("the server no longer knows the connection"),
            Self::Unauthorized => f.write_str("the server rejects the token"),
            Self::StreamRefused => f.write_str("the server refuses the event stream"),
            Self::RetriesExhausted { attempts } => {
                write!(f, "reconnecting failed after {attempts} attempts")
            }
            Self::Dropped => f.write_str("every handle was dropped"),
            Self::Other(reason) => printable(reason).fmt(f),
        }
    }
}
