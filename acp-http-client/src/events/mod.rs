//! The events of a connection and their subscribers.

mod event;
mod hub;
#[cfg(test)]
mod hub_tests;

/// What the hub is locked with. `tests/interleavings.rs` puts its own in their place.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

pub use event::{
    Continuity, Event, Malformed, Meta, Notification, Order, Origin, Stream as EventSource, Update,
};
pub(crate) use event::{Stored, is_conversation, peek_message_session, peek_session};
pub use hub::Events;
pub(crate) use hub::Hub;
