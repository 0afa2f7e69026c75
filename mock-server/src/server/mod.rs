//! The server: sockets, recorded requests, fault injection, start and stop.

mod agents;
mod builder;
mod core;
mod gate;
mod journal;
mod listener;
mod mock;
mod socket;
mod tasks;

pub(crate) use self::core::Core;
pub use self::core::Echo;
pub use builder::Builder;
pub(crate) use gate::EchoOverride;
pub use journal::RecordedRequest;
pub use mock::{MockServer, State};
pub(crate) use socket::Socket;
pub(crate) use tasks::{Panicked, Panics};
