#![doc = include_str!("../README.md")]
//!
//! # Glossary
//!
//! - **agent**: the coding agent that a server runs; it owns its sessions.
//! - **agent request**: a request from the agent to the client, for a permission, an answer, a file or a terminal.
//! - **turn**: a prompt and everything that the agent reports until its response.
//! - **update**: one report of the agent about a session, such as a chunk of text or a tool call.
//! - **shared endpoint**: an endpoint whose clients all see the same event stream.
//! - **unclaimed request**: an agent request on a shared endpoint that is not addressed to this client.
//! - **event stream**: the server-sent events of a connection.
//! - **replay buffer**: the latest events, which the server stores for readers that connect late.
//! - **replayed**: sent again from the replay buffer; not new.
//! - **history**: the earlier conversation, which an agent sends when a session is loaded.
//! - **gap**: events that are missing because the server no longer has them.
//! - **stream position**: the number of an event in a stream, and a hash of its content (its fingerprint).
//! - **incarnation**: one run of a server. Within a client, each new connection starts another incarnation.
//! - **termination**: how an agent or a session ended, merged from all reports.
//! - **stored session**: a session whose events are in a session store (feature `sessions`).
//! - **epoch**: a fencing token. Only the owner with the highest epoch may store events of a session.
//! - **transcript replay**: sending a stored session's history as text to an agent that does not have the session.

mod client;
pub mod control;
mod convert;
pub mod error;
#[cfg(all(feature = "fuzzing", unix))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(feature = "local", unix))]
pub mod local;
#[cfg(all(any(feature = "local", feature = "terminals"), unix))]
#[cfg_attr(
    not(all(feature = "local", feature = "terminals")),
    allow(dead_code, reason = "the local server and terminals each use a part")
)]
mod process_tree;
#[cfg(all(feature = "providers", unix))]
pub mod provider;
pub mod requests;
#[cfg(feature = "sessions")]
pub mod sessions;
// The features `files` and `terminals` gate only the implementations. The traits need no dependency and always exist,
// so that an application can serve its own files, such as the buffers of an editor.
pub mod tools;
#[cfg(all(any(feature = "local", feature = "terminals"), unix))]
mod trust;
pub mod usage;

pub use client::{
    ClientOptions, ClientTimeouts, ConnectionState, DropPolicy, Event, Events, NewSession, OpenSession,
    SandboxAgentClient, ServerKind, Session, StopReason, Turn, TurnOutcome,
};
pub use client::{limits, login, stream};
pub use convert::{Content, Prompt, TerminationInfo, Update, UpdateKind};
pub use convert::{content, extensions, termination, text, thread, update};
pub use error::Error;
pub use requests::{PermissionDecision, PermissionPolicy, PermissionRequest};

/// Configuration of MCP servers and skills.
pub mod config {
    pub use crate::convert::{
        LocalMcpServer, McpCommand, McpOAuth, McpOAuthSettings, McpServerConfig, McpTransport,
        OtherMcpServer, RemoteMcpServer, SkillSource, SkillSourceKind, SkillsConfig,
    };
}

/// Connecting and authenticating, and the capabilities of the server and its agent.
pub mod connection {
    pub use crate::client::{Capabilities, Feature, SessionClaim, Support, WeakClient};
    #[doc(inline)]
    pub use acp_http_client::{
        ReconnectPolicy, Token, TokenError, TokenProvider, TokenUse, http_client_builder,
        http_client_builder_trusting,
    };
}

/// Types that occur in an [`Event`].
pub mod event {
    pub use crate::client::{EventsLost, Gap, Origin, Restored, RestoredBy, SessionEnded, TurnEnded};
}

/// Information about a session: its list entry, its settings and its metadata.
pub mod session {
    pub use crate::client::{ListSessions, SessionList, SessionSnapshot, Tool};
    pub use crate::convert::{
        MetadataKey, MetadataPlaceError, Model, ModelList, SessionInfo, SessionMetadata, SessionPage,
        TerminateResult, Timestamp,
    };
}

/// The events of a turn, and the collected result of a whole turn.
pub mod turns {
    pub use crate::client::{CollectedTurn, FileChange, IncompleteTurn, TurnEvent, TurnState};
}
