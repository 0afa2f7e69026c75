//! Where a connection stands.

use std::fmt;

use crate::TerminationInfo;
use crate::error::LostReason;

/// Where a connection stands.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// There is none: it was never made, or it was given up, or could not be made.
    Disconnected,
    /// It is being made.
    Connecting,
    /// It is there, and events come in.
    Connected,
    /// The event stream was lost and is being opened again. Calls can still be made, and nothing is said about
    /// the agent by that.
    #[non_exhaustive]
    Reconnecting {
        /// How many attempts in a row made no progress.
        attempt: u32,
    },
    /// The agent has ended, and the connection with it.
    AgentEnded(Box<TerminationInfo>),
    /// The connection ended for good, though not by this program. The agent may well be alive.
    Lost(LostReason),
}

impl ConnectionState {
    /// Whether calls can be made.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        matches!(self, Self::Connecting | Self::Connected | Self::Reconnecting { .. })
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("disconnected"),
            Self::Connecting => f.write_str("connecting"),
            Self::Connected => f.write_str("connected"),
            Self::Reconnecting { attempt } => write!(f, "reconnecting (attempt {attempt})"),
            Self::AgentEnded(info) => write!(f, "agent ended: {info}"),
            Self::Lost(reason) => write!(f, "lost: {reason}"),
        }
    }
}
