//! The dialects of streamable HTTP.

use http::HeaderName;

/// Which dialect a server speaks. The client is the same; a profile says where things travel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Profile {
    /// One endpoint for POST, GET and DELETE; answers come in the body, and usually on the stream too.
    /// A server that hands out a connection id gets it back. This is the default, at `/v1/rpc`.
    Rpc,
    /// The same, but the stream exists only once the first POST was taken: a path per agent, made by a query
    /// that goes with the first POST.
    Bootstrap,
    /// A connection id in this header, handed out with the answer to `initialize`; the stream is opened with it.
    ConnectionId(HeaderName),
    /// The official transport: a connection stream and one for each session, `Acp-Connection-Id`,
    /// `Acp-Session-Id`, answers on the streams.
    Official,
}

impl Profile {
    /// The connection-id header of the early servers.
    pub const X_ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("x-acp-connection-id");
    /// The connection-id header of the official transport.
    pub const ACP_CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
    /// The session-id header of the official transport.
    pub const ACP_SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");

    /// The path that servers of this dialect usually have.
    pub fn default_path(&self) -> &'static str {
        match self {
            Self::Official => "/acp",
            _ => "/v1/rpc",
        }
    }

    /// Whether the stream needs the connection id that `initialize` brings.
    pub(crate) fn waits_for_id(&self) -> bool {
        matches!(self, Self::ConnectionId(_) | Self::Official)
    }

    /// Whether each session has a stream of its own.
    pub(crate) fn has_session_streams(&self) -> bool {
        matches!(self, Self::Official)
    }

    /// Whether the endpoint may hold messages from before this client.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Rpc | Self::Bootstrap)
    }

    /// The headers under which a server may hand out a connection id.
    pub(crate) fn id_headers(&self) -> Vec<HeaderName> {
        match self {
            Self::ConnectionId(name) => vec![name.clone()],
            Self::Official => vec![Self::ACP_CONNECTION_ID],
            Self::Rpc | Self::Bootstrap => vec![Self::X_ACP_CONNECTION_ID, Self::ACP_CONNECTION_ID],
        }
    }
}
