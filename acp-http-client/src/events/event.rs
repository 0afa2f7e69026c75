//! The events of a connection.

use std::fmt;

use agent_client_protocol_schema::v1::{ContentBlock, SessionNotification, SessionUpdate};

use super::peek_session;
use crate::{ConnectionState, Error, EventId, Json, MessageId, SessionId, Typed, printable::Printable};

/// Something that happened on a connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A `session/update` of the agent.
    Update(Update),
    /// Any other notification.
    Notification(Notification),
    /// An agent request. The handler responds to it; this event only reports it. A request from the backlog
    /// ([`Origin::Replayed`]) gets no response.
    AgentRequest {
        /// The id of the request.
        id: MessageId,
        /// The method and the parameters.
        request: Notification,
    },
    /// The connection changed its state.
    State(ConnectionState),
    /// A lost stream was reopened.
    Reconnected {
        /// Which stream.
        stream: EventSource,
        /// Whether events can have been lost in between.
        continuity: Continuity,
    },
    /// The stream of a session cannot be opened any more. Its pending requests have failed with the error.
    StreamLost {
        /// Which stream.
        stream: EventSource,
        /// Why.
        error: Error,
    },
    /// The server restarted, and its event ids began again. Its events are read from the first one on.
    Restarted {
        /// Which stream.
        stream: EventSource,
    },
    /// Events are missing, because the server no longer has them. They were sent before the events that follow here.
    /// Load the session if you need them. An event of a gap that arrives late after all is delivered.
    ///
    /// Only numbers show a gap: it is reported where the [`Dialect`](crate::Dialect) declares
    /// [`EventIds::Sequence`](crate::EventIds::Sequence), and not with [`Dialect::AUTO`](crate::Dialect::AUTO).
    Gap {
        /// Which stream.
        stream: EventSource,
        /// The first missing number.
        from: u64,
        /// The last missing number.
        to: u64,
    },
    /// This many events were dropped here, because the queue of this subscriber was full.
    Lagged(u64),
    /// An event that is not a message. The next event follows.
    Malformed(Malformed),
    /// A message over the limit was skipped. The next event follows.
    TooLarge {
        /// Always [`Error::MessageTooLarge`].
        error: Error,
    },
    /// A response to a request that this client did not make.
    UnmatchedResponse {
        /// The id of the request.
        id: MessageId,
        /// The whole message.
        raw: Json,
        /// Whether it is live.
        origin: Origin,
        /// The id of its event.
        event_id: Option<EventId>,
    },
    /// A response to an agent request was not delivered.
    ResponseLost {
        /// The id of the request.
        id: MessageId,
        /// The method of the request.
        method: String,
        /// Why. [`Error::maybe_executed`] says whether it may have arrived.
        error: Error,
    },
}

/// Where a message came from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Meta {
    /// The id of its event.
    pub event_id: Option<EventId>,
    /// Whether it is live.
    pub origin: Origin,
    /// Its stream.
    pub stream: EventSource,
}

/// Whether a message is live or old.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// It was sent while this client was connected, or was fetched after a reconnect.
    Live,
    /// It comes from the replay buffer of the server and is older than this client.
    Replayed,
    /// It is part of the history of a session that is being loaded.
    History,
}

/// One of the streams of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventSource {
    /// The stream of the connection.
    Connection,
    /// The stream of a session, where the server has one for each.
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

/// What is known about the events during a lost stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Continuity {
    /// Events have ids: missing ones are fetched, or reported as an [`Event::Gap`].
    Checked,
    /// The stream was reopened behind the last event, whose id identifies it. Nothing is missing if the server honours
    /// `Last-Event-ID`.
    Resumed,
    /// Nothing identifies the last event: events may have been lost or repeated.
    Unverified,
}

/// Whether a response is known to follow every update that the server sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// The dialect's barrier has passed.
    Verified,
    /// A gap or a timeout decided, or the request was not ordered.
    Unverified,
}

/// A `session/update`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Update {
    /// Session and content, typed if this version knows them.
    pub content: Typed<SessionNotification>,
    /// Where it came from.
    pub meta: Meta,
}

impl Update {
    /// Returns the session it belongs to.
    pub fn session_id(&self) -> Option<SessionId> {
        match self.content.known() {
            Some(notification) => Some(notification.session_id.clone().into()),
            None => peek_session(self.content.raw().as_bytes()).map(|id| SessionId::from(&*id)),
        }
    }

    /// Returns the update, if this version knows its kind; otherwise see [`Typed::raw`].
    pub fn update(&self) -> Option<&SessionUpdate> {
        self.content.known().map(|notification| &notification.update)
    }

    /// Returns the text of a chunk of the agent's message.
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
    pub method: String,
    /// The parameters, `null` if there were none.
    pub params: Json,
    /// Where it came from.
    pub meta: Meta,
}

/// An event that is not a message.
///
/// `Display` is safe to print; the text of the server is in the fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Malformed {
    /// The id of the event.
    pub event_id: Option<EventId>,
    /// What is wrong with it.
    pub reason: String,
    /// The beginning of its data.
    pub start: String,
}

impl Malformed {
    /// How much of the data is stored.
    const START_CHARS: usize = 1024;

    pub(crate) fn new(event_id: Option<EventId>, data: &[u8], reason: impl Into<String>) -> Self {
        let start = String::from_utf8_lossy(&data[..data.len().min(4 * Self::START_CHARS)]);
        let start = start.chars().take(Self::START_CHARS).collect();
        Self { event_id, reason: reason.into(), start }
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
        let malformed = Malformed::new(None, b"x", "unknown variant `\u{1b}[2J`");
        assert_eq!(malformed.to_string(), "malformed event: unknown variant `\\u{1b}[2J`");
        assert_eq!(EventSource::Session("\u{9b}2J".into()).to_string(), "session \\u{9b}2J");
    }
}
