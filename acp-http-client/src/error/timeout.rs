//! Timeouts that expired.

use std::{fmt, sync::Arc, time::Duration};

use crate::{ConnectionState, Error, printable::Printable};

/// An expired timeout, with the state of the connection at that time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Timeout {
    /// What the client was waiting for.
    pub phase: Phase,
    /// What timed out: a JSON-RPC method, `event stream` or `close`.
    pub what: String,
    /// How long the client waited.
    pub elapsed: Duration,
    /// How long ago the last message arrived on the event stream; `None` if none has.
    pub last_event_age: Option<Duration>,
    /// The state of the connection at that time.
    pub state: ConnectionState,
    /// An earlier failure, such as an HTTP status 504.
    pub cause: Option<Arc<Error>>,
}

/// What the client was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Earlier messages about the session to be sent. Nothing was sent.
    Outbox,
    /// The HTTP response to a notification, to a response of this client, or to a request whose response arrives on
    /// the stream.
    Headers,
    /// The response to a request.
    Response,
    /// The response to a request whose POST failed. It is unknown whether the request was executed.
    Confirmation,
    /// The event stream, while it is being opened.
    StreamOpen,
    /// Bytes on the event stream.
    StreamIdle,
    /// The server's confirmation that the connection is closed.
    Close,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outbox => "earlier messages about the session to be sent",
            Self::Headers => "the response headers",
            Self::Response => "the response",
            Self::Confirmation => "the response to a request that may have run",
            Self::StreamOpen => "the event stream to open",
            Self::StreamIdle => "bytes on the event stream",
            Self::Close => "the server to confirm the close",
        })
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = Printable(self.what.as_str());
        write!(f, "`{what}` timed out after {:.1?} waiting for {}", self.elapsed, self.phase)?;
        match self.last_event_age {
            Some(age) => write!(f, " (last event {age:.1?} ago, connection {})", self.state),
            None => write!(f, " (no event yet, connection {})", self.state),
        }
    }
}
