//! What a server is known to do on the wire.

use http::HeaderName;

/// How a server behaves on the wire: facts, declared as data.
///
/// The client is the same for every server. A dialect names what cannot be seen from outside: which barrier orders a
/// response against the updates before it, what event ids mean, and what the endpoint is shared with. Use one of the
/// constants. The default, [`Dialect::AUTO`], is for unknown servers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dialect {
    name: &'static str,
    path: &'static str,
    /// What orders a response against the updates that were sent before it.
    pub barrier: Barrier,
    /// What the ids of events mean.
    pub event_ids: EventIds,
    /// Whether the event stream also carries events of other clients, and from before this client connected.
    pub shared: bool,
    /// The streams of a connection.
    pub streams: Streams,
    /// The header of the connection id that the response to `initialize` has. Such an endpoint is not shared.
    pub connection_id: Option<HeaderName>,
    /// Whether the endpoint exists only once its first POST was accepted.
    pub bootstrap: bool,
}

/// What orders a response against the updates that were sent before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Barrier {
    /// The response is echoed on the event stream, behind the updates.
    Echo,
    /// The response travels on the stream of the updates.
    SameStream,
    /// Nothing: the response is only in the body. The client waits for a quiet period.
    None,
    /// Unknown: an echo that is seen means [`Echo`](Self::Echo); none within
    /// [`Timeouts::learn`](crate::Timeouts#structfield.learn) means [`None`](Self::None), until one is seen after all.
    Learn,
}

/// What the ids of events mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventIds {
    /// 1, 2, 3 … in each incarnation of the server: repeats, holes and restarts can be recognised.
    Sequence,
    /// Any legal id, or none. An id that is unique within an opening of the stream identifies its event.
    Opaque,
}

/// Which streams a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Streams {
    /// One for everything.
    One,
    /// One for the connection and one for each session.
    PerSession,
}

impl Dialect {
    /// The connection-id header of early servers.
    pub const X_ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("x-acp-connection-id");
    /// The connection-id header of the official transport.
    pub const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
    /// The session-id header of the official transport.
    pub const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

    /// A server of which nothing is known, at `/v1/rpc`: ids are opaque and the response route is learnt.
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
    /// The released server: a path for each agent, made by a query on the first POST; otherwise as [`RPC`](Self::RPC).
    pub const RELEASED: Self = Self { name: "released", bootstrap: true, ..Self::RPC };
    /// The released behaviour at `/v1/rpc`, for one agent process.
    pub const ADAPTER: Self = Self { name: "adapter", ..Self::RPC };
    /// The early server: a connection id from `initialize` on, responses in the body alone, numbered events.
    pub const EARLY: Self = Self {
        name: "early",
        barrier: Barrier::None,
        shared: false,
        connection_id: Some(Self::X_ACP_CONNECTION_ID),
        ..Self::RPC
    };
    /// The official transport at `/acp`: a stream for the connection and one for each session, without ids;
    /// responses travel on the streams.
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

    /// Returns the path that servers of this dialect usually have.
    pub fn default_path(&self) -> &'static str {
        self.path
    }

    /// The same dialect with another connection-id header.
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

    /// Whether each session has a stream of its own.
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
