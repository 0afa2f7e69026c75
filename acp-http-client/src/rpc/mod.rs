//! JSON-RPC without I/O: messages, ids, and the table of pending requests.

mod error;
mod id;
mod message;
mod outgoing;
mod pending;
mod update;

pub use error::RpcError;
pub(crate) use id::Ids;
pub use id::MessageId;
pub(crate) use message::{Body, Message, MessageError, RpcOutcome};
pub(crate) use outgoing::Outgoing;
pub(crate) use pending::Pending;
