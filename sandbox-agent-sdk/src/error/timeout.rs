//! Timeouts that expired.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use crate::convert::plain_text::plain_line;
use crate::convert::text::printable;
use crate::requests::UnclaimedSummary;

/// An expired timeout, with the state of the connection at that time.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Timeout {
    /// What the call was waiting for.
    pub phase: Phase,
    /// The operation that timed out.
    pub what: String,
    /// How long the call waited.
    pub elapsed: Duration,
    /// Whether the request may have been sent.
    pub sent: bool,
    /// The time since the last message; `None` if there was no message or no connection.
    pub last_event_age: Option<Duration>,
    /// The state of the connection, as text; `None` if there was no connection.
    pub connection: Option<String>,
    /// The last lines of agent output that are not protocol messages. An agent that prints such lines and then
    /// nothing more has usually failed to start.
    pub agent_output: Vec<String>,
    /// Unclaimed agent requests that arrived while a session was being created.
    ///
    /// The agent may have been waiting for a response to one of them. See
    /// [`UnclaimedRequest`](crate::requests::UnclaimedRequest).
    pub unclaimed_requests: Vec<UnclaimedSummary>,
    /// An earlier failure of the call, such as an HTTP status 504.
    pub cause: Option<Arc<Error>>,
}

impl Timeout {
    pub(crate) fn new(phase: Phase, what: impl Into<String>, elapsed: Duration) -> Self {
        Self {
            phase,
            what: what.into(),
            elapsed,
            sent: !matches!(phase, Phase::Outbox | Phase::Token),
            last_event_age: None,
            connection: None,
            agent_output: Vec::new(),
            unclaimed_requests: Vec::new(),
            cause: None,
        }
    }
}

/// What a call was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// A healthy server.
    Health,
    /// The sending of earlier messages about the same session. This call was not sent.
    Outbox,
    /// The token provider. This call was not sent.
    Token,
    /// The first byte of a response.
    Headers,
    /// The rest of a response.
    Body,
    /// The response to a call.
    Response,
    /// The response to a call whose HTTP request failed. It is unknown whether the call was executed.
    Confirmation,
    /// The event stream, while it is being opened.
    StreamOpen,
    /// Bytes on the event stream.
    StreamIdle,
    /// The end of a cancelled turn.
    Cancel,
    /// The server's confirmation that the connection is closed.
    Close,
    /// The end of a turn with a deadline.
    Deadline,
    /// An update of a turn with an [idle timeout](crate::Turn::with_idle_timeout).
    Idle,
    /// A phase that this version does not know.
    Other,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "the server to be healthy",
            Self::Outbox => "earlier messages about the session to be sent",
            Self::Token => "the token provider",
            Self::Headers => "the response headers",
            Self::Body => "the rest of the response",
            Self::Response => "the response",
            Self::Confirmation => "the response to a request that may have run",
            Self::StreamOpen => "the event stream to open",
            Self::StreamIdle => "bytes on the event stream",
            Self::Cancel => "the turn to stop",
            Self::Deadline => "the turn to end by its deadline",
            Self::Idle => "an update of the turn",
            Self::Close => "the server to confirm the close",
            Self::Other => "the server",
        })
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` timed out after {:.1?} waiting for {}",
            printable(&self.what),
            self.elapsed,
            self.phase
        )?;
        match (self.connection.as_deref().map(printable), self.last_event_age) {
            (Some(connection), Some(age)) => {
                write!(f, " (last event {age:.1?} ago, connection {connection})")?;
            }
            (Some(connection), None) => write!(f, " (no event yet, connection {connection})")?,
            (None, _) => {}
        }
        if let Some(line) = self.agent_output.last() {
            write!(f, "; the agent printed: {}", plain_line(line))?;
        }
        if let Some(request) = self.unclaimed_requests.last() {
            let count = self.unclaimed_requests.len();
            write!(
                f,
                "; {count} agent requests were not claimed, the last: `{}`",
                plain_line(&request.method)
            )?;
            if let Some(session) = &request.session_id {
                write!(f, " of session `{}`", plain_line(session))?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Timeout {}
