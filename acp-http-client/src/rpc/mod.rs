//! JSON-RPC without I/O: messages, ids, and the table of what is waiting for an answer.

mod error;
mod id;
mod message;
mod pending;

pub use error::RpcError;
pub(crate) use id::Ids;
pub use id::MessageId;
pub(crate) use message::{Body, Message, MessageError, Outgoing, RpcOutcome};
pub(crate) use pending::Pending;
