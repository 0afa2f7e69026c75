//! The events of a connection and their subscribers.

mod event;
mod hub;
#[cfg(test)]
mod hub_tests;
mod peek;
mod stored;
mod text_chunk;

/// The locks of the hub. `tests/interleavings.rs` replaces them.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

pub use event::{Continuity, Event, EventSource, Malformed, Meta, Notification, Order, Origin, Update};
pub use hub::Events;
pub(crate) use hub::Hub;
pub(crate) use peek::{is_conversation, peek_session};
pub(crate) use stored::Stored;
