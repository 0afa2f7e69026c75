//! The server's event stream with positions: for layers that store, forward or audit what happens.
//!
//! [`SandboxAgentClient::events_from`](crate::SandboxAgentClient::events_from) returns all events after a position,
//! without loss. [`SandboxAgentClient::read`](crate::SandboxAgentClient::read) returns a part of the stream that the
//! server still has.

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::event::Weight;
use crate::convert::decoded::value_size;
use crate::error::RpcError;
use crate::event::{Gap, Origin};
use crate::{Error, Event, Prompt};

pub use super::log::EventLog;
pub use super::reading::StreamReader;

/// A layer around a prompt, for example a store. See [`Session::prompt_with`](crate::Session::prompt_with).
pub trait PromptLayer: Send + 'static {
    /// Called before the prompt is sent, with its request id. The response in the stream has the same id.
    ///
    /// If this fails, the prompt is not sent, and the turn fails with the same error. A prompt that is sent again has
    /// another id.
    fn before_send(&mut self, request_id: String) -> BoxFuture<'static, Result<(), Error>>;

    /// Called if the prompt failed and the agent certainly did not execute it. If this returns a session, the turn
    /// sends the prompt again, once.
    fn not_executed(&mut self, error: &Error) -> BoxFuture<'static, Option<Resend>> {
        let _ = error;
        Box::pin(std::future::ready(None))
    }

    /// Called when the turn has ended and its outcome is in the [log](crate::SandboxAgentClient::events_from).
    ///
    /// The application receives the outcome after this has finished. If this fails and the turn succeeded, the turn
    /// fails with [`Error::AfterTurn`].
    fn ended(&mut self) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A prompt to send again, and the session to send it to.
#[derive(Debug, Clone)]
pub struct Resend {
    /// The id of the session.
    pub session_id: String,
    /// The prompt to send.
    pub prompt: Prompt,
}

/// The position of an event in the stream of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamPosition {
    /// The incarnation of the stream, counted by this client. A restarted server and a new connection start another
    /// incarnation.
    pub incarnation: u64,
    /// The number that the server assigned to the event.
    pub offset: u64,
    /// A fingerprint of the event's content. It is the same in every process and every version of this crate, so a
    /// stored position can be recognised in the stream of another connection.
    pub fingerprint: u64,
}

impl StreamPosition {
    /// How much of an event's content its fingerprint covers, besides its length.
    const PRINTED_BYTES: usize = 4096;

    /// Returns the position before the first event of a server.
    #[must_use]
    pub fn beginning() -> Self {
        Self { incarnation: 0, offset: 0, fingerprint: 0 }
    }

    /// Creates a position from stored values.
    #[must_use]
    pub fn new(incarnation: u64, offset: u64, fingerprint: u64) -> Self {
        Self { incarnation, offset, fingerprint }
    }

    pub(crate) fn of(incarnation: u64, offset: u64, content: &[u8]) -> Self {
        let printed = &content[..content.len().min(Self::PRINTED_BYTES)];
        let length = (content.len() as u64).to_le_bytes();
        // FNV-1a.
        let fingerprint = length.iter().chain(printed).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self { incarnation, offset, fingerprint }
    }

    /// Returns whether this position comes after `other`. A later incarnation comes after an earlier one.
    #[must_use]
    pub fn is_after(&self, other: &Self) -> bool {
        (self.incarnation, self.offset) > (other.incarnation, other.offset)
    }

    /// Returns whether both positions identify the same event, regardless of the incarnation numbers.
    #[must_use]
    pub fn is_same_event(&self, other: &Self) -> bool {
        (self.offset, self.fingerprint) == (other.offset, other.fingerprint)
    }
}

/// One entry of the log of a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogEntry {
    /// The position in the server's stream, if the entry has one.
    ///
    /// `None` if the entry is not part of the stream, or the server does not number its events.
    pub position: Option<StreamPosition>,
    /// Whether the entry is live, replayed or history.
    pub origin: Origin,
    /// The content of the entry.
    pub record: LogRecord,
}

/// The content of a log entry.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LogRecord {
    /// An event as subscribers receive it. An agent request in it is a clone that does not keep the request open.
    Event(Event),
    /// An agent request, addressed to any client. It comes before the event that it causes.
    #[non_exhaustive]
    AgentRequest {
        /// The id that the agent assigned to the request.
        request_id: String,
        /// The method of the request.
        method: String,
        /// The parameters of the request.
        params: Value,
    },
    /// The server's response to a request that this connection did not send. It belongs to another client or an
    /// earlier process.
    #[non_exhaustive]
    Response {
        /// The id of the request.
        request_id: String,
        /// The response.
        result: Result<Value, RpcError>,
    },
    /// A call of this client about a session was settled: it has a response, or failed.
    Settled(Settlement),
    /// Events are missing at this point because the server no longer has them.
    Missing(Gap),
}

/// The settlement of a call about a session.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settlement {
    /// The request id of the call.
    pub request_id: String,
    /// The method of the call.
    pub method: String,
    /// The id of the session.
    pub session_id: String,
    /// The response, or the error if there is none.
    pub result: Result<Value, Error>,
}

impl LogEntry {
    pub(crate) fn new(record: LogRecord, position: Option<StreamPosition>, origin: Origin) -> Self {
        Self { position, origin, record }
    }

    pub(crate) fn of_event(event: &Event, position: Option<StreamPosition>) -> Self {
        Self::new(LogRecord::Event(event.copy_for(false)), position, event.origin())
    }

    /// Returns the session of the entry, if it has one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        match &self.record {
            LogRecord::Event(event) => event.session_id(),
            LogRecord::AgentRequest { params, .. } => params.get("sessionId").and_then(Value::as_str),
            LogRecord::Settled(settlement) => Some(&settlement.session_id),
            LogRecord::Response { .. } | LogRecord::Missing(_) => None,
        }
    }

    pub(crate) fn weight(&self) -> usize {
        const OVERHEAD: usize = 256;
        OVERHEAD
            + match &self.record {
                LogRecord::Event(event) => event.weight(),
                LogRecord::AgentRequest { method, params, .. } => method.len() + value_size(params),
                LogRecord::Response { result: Ok(value), .. } => value_size(value),
                LogRecord::Settled(Settlement { result: Ok(value), .. }) => value_size(value),
                _ => 0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::StreamPosition;

    #[test]
    fn a_position_names_an_event_by_its_number_and_content() {
        let position = StreamPosition::of(0, 7, b"{}");
        assert_eq!(position.fingerprint, 0x9caa_fcd3_28e9_298b, "it is stored, so that it must never change");
        assert!(position.is_same_event(&StreamPosition::of(3, 7, b"{}")));
        assert!(!position.is_same_event(&StreamPosition::of(0, 8, b"{}")));
        assert!(!position.is_same_event(&StreamPosition::of(0, 7, b"[]")));
        let long = vec![b'x'; 5000];
        assert!(!StreamPosition::of(0, 7, &long).is_same_event(&StreamPosition::of(0, 7, &long[1..])));
        assert!(StreamPosition::of(1, 1, b"").is_after(&position) && !position.is_after(&position));
    }
}
