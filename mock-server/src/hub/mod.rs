//! The hub of `/v1/rpc`: connections, pending requests, agents and sessions behind one lock.
//!
//! All agent output passes through [`Hub::output`] in order, under the lock, and is published there. Updates,
//! agent requests and responses therefore have one order on the stream, and a response is published before
//! its POST completes. The lock is never held across an await.

mod agents;
mod envelope;
mod extension;
mod intake;
mod post;
mod session;
mod state;
mod termination;

pub(crate) use envelope::Envelope;
pub(crate) use post::Posted;
pub(crate) use state::Hub;
