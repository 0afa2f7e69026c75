//! How a server behaves on the wire.

use http::HeaderName;

/// How a server behaves on the wire, declared as data.
///
/// The client works in the same way with every server. A dialect declares what the client cannot observe: which
/// barrier orders a response after its updates, what event ids mean, and who shares the endpoint. Use one of the
/// constants. The default, [`Dialect::AUTO`], is for unknown servers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    name: &'static str,
    path: &'static str,
    /// What orders a response after the updates that were sent before it.
    pub barrier: Barrier,
    /// What the ids of events mean.
    pub event_ids: EventIds,
    /// Whether the event stream also contains events of other clients, and events from before this client connected.
    pub shared: bool,
    /// The streams of a connection.
    pub streams: Streams,
    /// The header of the connection id in the response to `initialize`. An endpoint with connection ids is not
    /// shared.
    pub connection_id: Option<HeaderName>,
    /// Whether the endpoint exists only after its first POST was accepted.
    pub bootstrap: bool,
}

/// What orders a response after the updates that were sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Barrier {
    /// The response is echoed on the event stream, after the updates.
    Echo,
    /// The response is sent on the same stream as the updates.
    SameStream,
    /// Nothing: the response is only in the body. The client waits for a quiet period.
    None,
    /// Unknown. If an echo arrives, this becomes [`Echo`](Self::Echo). If none arrives within
    /// [`Timeouts::learn`](crate::Timeouts#structfield.learn), this becomes [`None`](Self::None) until an echo
    /// arrives.
    Learn,
}

/// What the ids of events mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventIds {
    /// 1, 2, 3 … in each incarnation of the server. The client detects repeated events, missing events and restarts.
    Sequence,
    /// Any valid id, or none. An id that is unique within one opening of the stream identifies its event.
    Opaque,
}

/// The streams of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Streams {
    /// One stream for everything.
    One,
    /// One stream for the connection and one for each session.
    PerSession,
}

impl Dialect {
    /// The connection-id header of early servers.
    pub const X_ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("x-acp-connection-id");
    /// The connection-id header of the official transport.
    pub const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
    /// The session-id header of the official transport.
    pub const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

    /// An unknown server at `/v1/rpc`: ids are opaque, and the client learns where responses arrive.
    pub const AUTO: Self = Self {
        name: "auto",
        path: "/v1/rpc",
        barrier: Barrier::Learn,
        event_ids: EventIds::Opaque,
        shared: true,
        streams: Streams::One,
        connection_id: None,
        bootstrap: false,
    };
    /// The reference contract at `/v1/rpc`: responses in the body and echoed on one shared, numbered stream.
    pub const RPC: Self =
        Self { name: "rpc", barrier: Barrier::Echo, event_ids: EventIds::Sequence, ..Self::AUTO };
    /// The released server: one path per agent, created by a query on the first POST. Otherwise like
    /// [`RPC`](Self::RPC).
    pub const RELEASED: Self = Self { name: "released", bootstrap: true, ..Self::RPC };
    /// The released adapter at `/v1/rpc`, which runs one agent process. Otherwise like [`RPC`](Self::RPC).
    pub const ADAPTER: Self = Self { name: "adapter", ..Self::RPC };
    /// The early server: a connection id after `initialize`, responses in the body only, numbered events.
    pub const EARLY: Self = Self {
        name: "early",
        barrier: Barrier::None,
        shared: false,
        connection_id: Some(Self::X_ACP_CONNECTION_ID),
        ..Self::RPC
    };
    /// The official transport at `/acp`: one stream for the connection and one for each session, without ids.
    /// Responses are sent on the streams.
    pub const OFFICIAL: Self = Self {
        name: "official",
        path: "/acp",
        barrier: Barrier::SameStream,
        event_ids: EventIds::Opaque,
        shared: false,
        streams: Streams::PerSession,
        connection_id: Some(Self::ACP_CONNECTION_ID),
        bootstrap: false,
    };

    /// Returns the name of the dialect, for logs and diagnostics.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the usual path of servers with this dialect.
    pub fn default_path(&self) -> &'static str {
        self.path
    }

    /// Returns the dialect with another connection-id header.
    #[must_use]
    pub fn with_connection_id(mut self, header: HeaderName) -> Self {
        self.connection_id = Some(header);
        self.shared = false;
        self
    }

    /// Whether the stream needs the connection id of the response to `initialize`.
    pub(crate) fn waits_for_id(&self) -> bool {
        self.connection_id.is_some()
    }

    /// Whether each session has its own stream.
    pub(crate) fn has_session_streams(&self) -> bool {
        self.streams == Streams::PerSession
    }

    /// The headers in which a server may assign a connection id.
    pub(crate) fn id_headers(&self) -> &[HeaderName] {
        static KNOWN: [HeaderName; 2] = [Dialect::X_ACP_CONNECTION_ID, Dialect::ACP_CONNECTION_ID];
        self.connection_id.as_ref().map_or(&KNOWN, std::slice::from_ref)
    }
}

impl Default for Dialect {
    fn default() -> Self {
        Self::AUTO
    }
}
