#![doc = include_str!("../README.md")]

mod auth;
mod client;
mod diagnostics;
mod error;
mod events;
mod handler;
mod inbound;
mod json;
mod options;
mod printable;
mod problem;
mod profile;
mod rpc;
mod session_id;
mod sse;
mod state;
mod tap;
mod transport;

pub use agent_client_protocol_schema as schema;
pub use auth::{Auth, Token, TokenError, TokenProvider, TokenUse};
pub use client::{AcpHttpClient, AcpHttpClientBuilder, CloseOutcome, Request, RequestOptions};
pub use diagnostics::{Diagnostics, PendingRequest, StreamDiagnostics};
pub use error::{EndReasonError, Error, HttpError, Phase, Timeout};
pub use events::{Continuity, Event, EventSource, Events, Malformed, Meta, Notification, Origin, Update};
pub use handler::{AgentHandler, AgentRequest, AgentRequests, Call, Responder};
pub use json::{Json, JsonError, Typed};
pub use options::{Limits, Timeouts};
pub use problem::Problem;
pub use profile::Profile;
pub use rpc::{MessageId, RpcError};
pub use session_id::SessionId;
pub use sse::{EventId, ReconnectPolicy};
pub use state::{ConnectionState, EndReason};
pub use tap::{Direction, Envelope, Inbound, Verdict};
pub use transport::{http_client_builder, http_client_builder_trusting};
pub use {http, reqwest};
