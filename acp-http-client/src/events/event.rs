//! The events of a connection.

use std::{borrow::Cow, fmt};

use agent_client_protocol_schema::v1::{ContentBlock, SessionNotification, SessionUpdate};

use super::peek_session;
use crate::{ConnectionState, Error, EventId, Json, MessageId, SessionId, Typed, printable::Printable};

/// An event of a connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A `session/update` of the agent.
    Update(Update),
    /// Any other notification.
    Notification(Notification),
    /// An agent request. This event only reports it; the handler responds. A request from the backlog
    /// ([`Origin::Replayed`]), and one that is not addressed to this client
    /// ([`all_agent_requests`](crate::AcpHttpClientBuilder::all_agent_requests)), gets no response.
    AgentRequest {
        /// The id of the request.
        id: MessageId,
        /// The method and the parameters of the request.
        request: Notification,
    },
    /// The state of the connection changed.
    State(ConnectionState),
    /// A lost stream was reopened.
    Reconnected {
        /// The stream that was reopened.
        stream: EventSource,
        /// Whether events may have been lost in between.
        continuity: Continuity,
    },
    /// The stream of a session can no longer be opened. Its pending requests have failed with the error.
    StreamLost {
        /// The stream that was lost.
        stream: EventSource,
        /// Why the stream cannot be opened.
        error: Error,
    },
    /// The server restarted, and its event ids started over. The client reads the new events from the first one.
    Restarted {
        /// The stream of the restarted server.
        stream: EventSource,
    },
    /// Events are missing at this point of the stream, because the server no longer has them. Load the session if you
    /// need them. A missing event that arrives late is still delivered.
    ///
    /// Only numbered events reveal gaps. Gaps are reported if the [`Dialect`](crate::Dialect) declares
    /// [`EventIds::Sequence`](crate::EventIds::Sequence), but not with [`Dialect::AUTO`](crate::Dialect::AUTO).
    Gap {
        /// The stream with the gap.
        stream: EventSource,
        /// The number of the first missing event.
        from: u64,
        /// The number of the last missing event.
        to: u64,
    },
    /// This many events were dropped at this point because the queue of this subscriber was full.
    Lagged(u64),
    /// An event that is not a message. It was skipped.
    Malformed(Malformed),
    /// A message that exceeds the limit. It was skipped.
    TooLarge {
        /// Always [`Error::MessageTooLarge`].
        error: Error,
    },
    /// A response that no call waits for.
    ///
    /// This client did not send the request, or the call has ended. A call can end before its response arrives on the
    /// stream, for example with [`Order::Unverified`](crate::Order::Unverified).
    UnmatchedResponse {
        /// The id of the request.
        id: MessageId,
        /// The whole message.
        raw: Json,
        /// Whether the response is live, replayed or history.
        origin: Origin,
        /// The id of the event.
        event_id: Option<EventId>,
    },
    /// A response to an agent request was not delivered.
    ResponseLost {
        /// The id of the request.
        id: MessageId,
        /// The method of the request.
        method: String,
        /// Why the response was lost. [`Error::maybe_executed`] returns whether it may have arrived.
        error: Error,
    },
}

/// The origin of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// The id of the event.
    pub event_id: Option<EventId>,
    /// Whether the message is live, replayed or history.
    pub origin: Origin,
    /// The stream of the message.
    pub stream: EventSource,
}

/// Whether a message is live, replayed or history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The message was sent while this client was connected, or was fetched after a reconnect.
    Live,
    /// The message is from the server's replay buffer and older than this client.
    Replayed,
    /// The message is part of the history of a session that is being loaded.
    History,
}

/// One of the streams of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// The stream of the connection.
    Connection,
    /// The stream of a session, on servers with one stream per session.
    Session(SessionId),
}

impl fmt::Display for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection => f.write_str("connection"),
            Self::Session(id) => write!(f, "session {id}"),
        }
    }
}

/// What is known about the events between two openings of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Continuity {
    /// Events have ids. Missing ones are fetched, or reported as an [`Event::Gap`].
    Checked,
    /// The stream was reopened after the last event, whose id identifies it. Nothing is missing if the server
    /// supports `Last-Event-ID`.
    Resumed,
    /// Nothing identifies the last event. Events may have been lost or repeated.
    Unverified,
}

/// Whether a response certainly follows every update that the server sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// The dialect's barrier guarantees the order.
    Verified,
    /// The order is not guaranteed.
    ///
    /// A timeout, a server restart or the end of the stream ended the wait, or the request was not ordered.
    Unverified,
}

/// A `session/update`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Update {
    /// The session and the content, typed if this version of the crate knows them.
    pub content: Typed<SessionNotification>,
    /// The origin of the update.
    pub meta: Meta,
}

impl Update {
    /// Returns the session of the update.
    pub fn session_id(&self) -> Option<SessionId> {
        match self.content.known() {
            Some(notification) => Some(notification.session_id.clone().into()),
            None => peek_session(self.content.raw().as_bytes()).map(|id| SessionId::from(&*id)),
        }
    }

    /// Returns the update if this version of the crate knows its kind. Otherwise see [`Typed::raw`].
    pub fn update(&self) -> Option<&SessionUpdate> {
        self.content.known().map(|notification| &notification.update)
    }

    /// Returns the text, if this is a chunk of the agent's message.
    pub fn message_text(&self) -> Option<&str> {
        match self.update()? {
            SessionUpdate::AgentMessageChunk(chunk) => match &chunk.content {
                ContentBlock::Text(text) => Some(&text.text),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A notification with its parameters.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Notification {
    /// The method.
    pub method: Cow<'static, str>,
    /// The parameters; `null` if there are none.
    pub params: Json,
    /// The origin of the notification.
    pub meta: Meta,
}

/// An event that is not a message.
///
/// `Display` is safe to print. The fields hold the original text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Malformed {
    /// The id of the event.
    pub event_id: Option<EventId>,
    /// Why the event is not a message.
    pub reason: String,
    /// The beginning of the event's data.
    pub start: String,
    /// Whether a message about a session may be lost: the event is damaged JSON, or contains a session id.
    pub lost: bool,
}

impl Malformed {
    /// How much of the data is stored.
    const START_CHARS: usize = 1024;

    pub(crate) fn new(event_id: Option<EventId>, data: &[u8], reason: impl Into<String>, lost: bool) -> Self {
        let start = String::from_utf8_lossy(&data[..data.len().min(4 * Self::START_CHARS)]);
        let start = start.chars().take(Self::START_CHARS).collect();
        Self { event_id, reason: reason.into(), start, lost }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed event: {}", Printable(self.reason.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_event_and_a_stream_are_safe_to_print() {
        let malformed = Malformed::new(None, b"x", "unknown variant `\u{1b}[2J`", false);
        assert_eq!(malformed.to_string(), "malformed event: unknown variant `\\u{1b}[2J`");
        assert_eq!(EventSource::Session("\u{9b}2J".into()).to_string(), "session \\u{9b}2J");
    }
}
