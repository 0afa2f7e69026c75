//! The state of a connection.

use std::fmt;

use crate::TerminationInfo;
use crate::error::LostReason;

/// The state of a connection.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// The client has never connected, has disconnected, or failed to connect.
    Disconnected,
    /// The client is connecting.
    Connecting,
    /// The client is connected and its event stream is open.
    Connected,
    /// The event stream was lost and is being reopened. Calls still work. The agent may or may not be running.
    #[non_exhaustive]
    Reconnecting {
        /// The number of failed attempts in a row.
        attempt: u32,
    },
    /// The agent has ended, which closed the connection.
    AgentEnded(Box<TerminationInfo>),
    /// The connection was lost and will not be reopened. The agent may still be running.
    Lost(LostReason),
}

impl ConnectionState {
    /// Returns whether calls can be made.
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
