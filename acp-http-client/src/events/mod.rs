//! The events of a connection and their subscribers.

mod event;
mod hub;
mod peek;
mod stored;
mod text_chunk;

pub use event::{Continuity, Event, EventSource, Malformed, Meta, Notification, Order, Origin, Update};
pub use hub::Events;
pub(crate) use hub::Hub;
pub(crate) use peek::{is_conversation, peek_session};
pub(crate) use stored::Stored;
