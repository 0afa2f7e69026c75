//! `/acp`: the official streamable HTTP transport, as the official server behaves.
//!
//! Each connection has its own agent, a stream for the connection and one for each session. A stream is a
//! mailbox with at most one reader. Without a reader, messages are queued for the next one. There is no
//! WebSocket, and messages carry no ids.

mod connection;
mod mailbox;
mod message;
mod routes;

pub(crate) use connection::Connections;
pub(crate) use routes::routes;
