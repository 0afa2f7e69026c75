//! The states of a connection.

use std::{error::Error as StdError, fmt, sync::Arc};

use crate::Error;

/// The state of a connection.
///
/// [`AcpHttpClient::state`](crate::AcpHttpClient::state) returns it, and [`Event::State`](crate::Event::State)
/// reports every change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// Nothing has been received yet.
    ///
    /// No request was sent, or the stream is being opened for the first time.
    Connecting,
    /// The event stream is open.
    Live,
    /// The stream was lost and is being reopened. Requests can still be sent.
    Reconnecting {
        /// The number of attempts in a row without progress.
        attempt: u32,
    },
    /// The connection has ended permanently. Every request fails with this reason.
    Terminated(EndReason),
}

impl ConnectionState {
    /// Returns whether the connection has ended permanently.
    pub fn is_terminated(&self) -> bool {
        matches!(self, Self::Terminated(_))
    }

    /// Returns why the connection ended, if it has.
    pub fn end_reason(&self) -> Option<&EndReason> {
        match self {
            Self::Terminated(reason) => Some(reason),
            _ => None,
        }
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Live => f.write_str("live"),
            Self::Reconnecting { attempt } => write!(f, "reconnecting (attempt {attempt})"),
            Self::Terminated(reason) => write!(f, "terminated: {reason}"),
        }
    }
}

/// Why a connection ended permanently.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EndReason {
    /// `close()` was called.
    Closed,
    /// The last handle to the client was dropped.
    Dropped,
    /// The server no longer knows this connection: it was deleted, or the server lost its state.
    ServerGone(Arc<Error>),
    /// The server rejects the token.
    Unauthorized(Arc<Error>),
    /// The server permanently rejects the event stream.
    StreamRefused(Arc<Error>),
    /// The stream could not be reopened within the attempts of the [`ReconnectPolicy`](crate::ReconnectPolicy).
    RetriesExhausted {
        /// The number of attempts.
        attempts: u32,
        /// Why the last attempt failed.
        last: Arc<Error>,
    },
    /// A task of this crate panicked, and the stream is no longer read. Taps, hooks and handlers do not cause this.
    Panicked,
    /// The application ended the connection with a custom reason. See [`Verdict`](crate::Verdict) and
    /// [`Control::end`](crate::Control::end).
    Custom(Arc<dyn StdError + Send + Sync>),
}

impl EndReason {
    /// Returns the application's reason, if it has this type.
    pub fn custom<T: StdError + 'static>(&self) -> Option<&T> {
        match self {
            Self::Custom(reason) => reason.downcast_ref(),
            _ => None,
        }
    }

    pub(crate) fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Closed | Self::Dropped | Self::Panicked => None,
            Self::ServerGone(error) | Self::Unauthorized(error) | Self::StreamRefused(error) => {
                Some(error.as_ref())
            }
            Self::RetriesExhausted { last, .. } => Some(last.as_ref()),
            Self::Custom(reason) => Some(reason.as_ref()),
        }
    }
}

/// Two reasons are equal if they are of the same kind, even if their causes differ.
impl PartialEq for EndReason {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Eq for EndReason {}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed by this client"),
            Self::Dropped => f.write_str("every handle was dropped"),
            Self::Panicked => f.write_str("a task of the connection panicked"),
            Self::ServerGone(_) => f.write_str("the server no longer knows this connection"),
            Self::Unauthorized(_) => f.write_str("the server rejects the token"),
            Self::StreamRefused(_) => f.write_str("the server refuses the event stream"),
            Self::RetriesExhausted { attempts, .. } => {
                write!(f, "the event stream could not be reopened in {attempts} attempts")
            }
            Self::Custom(reason) => reason.fmt(f),
        }
    }
}
