//! Deadlines that passed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use crate::convert::plain_text::plain_line;
use crate::convert::text::printable;
use crate::requests::UnclaimedSummary;

/// A deadline that passed, with what is needed to tell why.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Timeout {
    /// What was being waited for.
    pub phase: Phase,
    /// What was being done.
    pub what: String,
    /// How long it took until it was given up.
    pub elapsed: Duration,
    /// How long ago the last message came; `None` if none ever did, or there is no connection.
    pub last_event_age: Option<Duration>,
    /// The state of the connection at that time, in words; `None` if there was none.
    pub connection: Option<String>,
    /// What the agent printed last that is no message: an agent that prints such lines and falls silent has usually
    /// failed to start.
    pub agent_output: Vec<String>,
    /// Agent requests that arrived while a session was being created and that were not
    /// [claimed](crate::requests::UnclaimedRequest): the agent may have been waiting for a response.
    pub unclaimed_requests: Vec<UnclaimedSummary>,
    /// What had gone wrong before, if anything: a 504, say.
    pub cause: Option<Arc<Error>>,
}

impl Timeout {
    pub(crate) fn new(phase: Phase, what: impl Into<String>, elapsed: Duration) -> Self {
        Self {
            phase,
            what: what.into(),
            elapsed,
            last_event_age: None,
            connection: None,
            agent_output: Vec::new(),
            unclaimed_requests: Vec::new(),
            cause: None,
        }
    }
}

/// What was being waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The server to be up and healthy.
    Health,
    /// The first byte of a response.
    Headers,
    /// The rest of a response.
    Body,
    /// The answer to a call.
    Answer,
    /// The answer to a call whose request had failed in a way that leaves open whether it ran.
    Confirmation,
    /// The event stream to open.
    StreamOpen,
    /// Bytes on the event stream.
    StreamIdle,
    /// The turn to stop after it was cancelled.
    Cancel,
    /// The server to confirm that the connection is closed.
    Close,
    /// The turn to end by its deadline.
    Deadline,
    /// Something that this version has no name for.
    Other,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Health => "the server to be healthy",
            Self::Headers => "the response headers",
            Self::Body => "the rest of the response",
            Self::Answer => "the answer",
            Self::Confirmation => "the answer to a call that may have run",
            Self::StreamOpen => "the event stream to open",
            Self::StreamIdle => "bytes on the event stream",
            Self::Cancel => "the turn to stop",
            Self::Deadline => "the turn to end by its deadline",
            Self::Close => "the server to confirm the close",
            Self::Other => "the server",
        })
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` waited {:.1?} for {}", printable(&self.what), self.elapsed, self.phase)?;
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
