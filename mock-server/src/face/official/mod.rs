//! `/acp`: the official streamable HTTP transport, as the official server behaves.
//!
//! Each connection has an agent of its own, a stream for the connection and one for each session. A stream
//! is a mailbox with at most one reader; when the reader goes, messages wait for the next one. There is no
//! WebSocket, and messages carry no ids.

mod connection;
mod mailbox;
mod message;
mod routes;

pub(crate) use connection::Connections;
pub(crate) use routes::routes;
