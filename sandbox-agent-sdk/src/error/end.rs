//! Why nothing can be done any more.

use std::fmt;
use std::sync::Arc;

use super::Error;
use crate::TerminationInfo;
use crate::convert::text::printable;

/// The end of an agent or a session, as the reason why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{info}")]
#[non_exhaustive]
pub struct AgentEnded {
    /// The session that ended; `None` if the agent did, and all its sessions with it.
    pub session_id: Option<String>,
    /// How.
    pub info: TerminationInfo,
    /// Whether the call was under way when the end came; otherwise it was never sent.
    pub sent: bool,
    /// Whether the connection ended with it, so that every later call fails too until the agent is started anew.
    pub connection_ended: bool,
    /// How the server answered the call, if it did.
    #[source]
    pub answer: Option<Arc<Error>>,
}

/// Why a connection ended although this program did not give it up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The server does not know the connection any more: it was deleted, or the server lost its state.
    ServerGone,
    /// The server refuses the token.
    Unauthorized,
    /// The server refuses to send events.
    StreamRefused,
    /// The server could not be reached again.
    #[non_exhaustive]
    RetriesExhausted {
        /// How many attempts were made.
        attempts: u32,
    },
    /// Everything that held the connection is gone.
    Dropped,
    /// A reason that this version has no name for.
    Other(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ServerGone => f.write_str("the server does not know it any more"),
            Self::Unauthorized => f.write_str("the server refuses the token"),
            Self::StreamRefused => f.write_str("the server refuses to send events"),
            Self::RetriesExhausted { attempts } => {
                write!(f, "the server could not be reached again in {attempts} attempts")
            }
            Self::Dropped => f.write_str("nobody holds it any more"),
            Self::Other(reason) => printable(reason).fmt(f),
        }
    }
}
