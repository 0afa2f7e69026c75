#![doc = include_str!("../README.md")]
//!
//! # Glossary
//!
//! - **response**: the reply to a JSON-RPC request.
//! - **echoed response**: a response that the server also sends on the event stream.
//! - **dialect**: how a server behaves on the wire.
//! - **barrier**: what orders a response after the updates before it.
//! - **agent request**: a request from the agent to the client.
//! - **pending request**: a request of this client that has no response yet.
//! - **deferred response**: a response from a body that waits for its echo.
//! - **unconfirmed request**: a pending request whose response may be lost.
//! - **event stream**: the server-sent events of a connection or a session.
//! - **replay buffer**: the latest events, which the server stores for readers that connect late.
//! - **replayed**: sent again from the replay buffer after a reconnect.
//! - **backlog**: events from before this client connected.
//! - **gap**: events that are missing because the server no longer has them.
//! - **incarnation**: one run of a server process.
//! - **probe**: a cheap request. The position of its echo in the stream shows whether the server restarted.

mod auth;
mod client;
mod diagnostics;
mod dialect;
mod error;
mod events;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod inbound;
#[doc(hidden)]
pub mod json;
mod options;
mod outbound;
mod printable;
mod problem;
mod random;
mod rpc;
mod session_id;
mod sse;
mod state;
mod tap;
mod transport;

pub use agent_client_protocol_schema as schema;
pub use auth::{Auth, Token, TokenError, TokenProvider, TokenUse};
pub use client::{
    AcpHttpClient, AcpHttpClientBuilder, CloseOutcome, Control, PromptTurn, Request, SessionEvents,
    SessionHandle,
};
pub use diagnostics::{Diagnostics, PendingRequest, StreamDiagnostics};
pub use dialect::{Barrier, Dialect, EventIds, Streams};
pub use error::{EndReasonError, Error, HttpError, Phase, Timeout};
pub use events::{
    Continuity, Event, EventSource, Events, Malformed, Meta, Notification, Order, Origin, Update,
};
pub use handler::{AgentHandler, AgentRequest, AgentRequests, Call, Responder};
pub use json::{Json, JsonError, Typed};
pub use options::{Limits, Timeouts};
pub use outbound::{OpenPosts, RequestOptions};
#[doc(hidden)]
pub use printable::{OneLine, is_unsafe, safe_error};
pub use problem::Problem;
pub use rpc::{MessageId, RpcError};
pub use session_id::SessionId;
pub use sse::{EventId, ReconnectPolicy};
pub use state::{ConnectionState, EndReason};
pub use tap::{Direction, Envelope, Inbound, Verdict};
#[doc(hidden)]
pub use transport::warn_of_plain_http;
pub use transport::{
    HttpSendError, HttpSender, http_client_builder, http_client_builder_trusting, is_loopback,
};
pub use {http, reqwest};
