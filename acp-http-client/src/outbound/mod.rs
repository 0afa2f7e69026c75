//! What is sent: one outbox per session, one exchange per request, cancels, and who may send first.

mod cancel;
mod exchange;
mod gate;
mod notices;
mod one_way;
mod open_posts;
mod options;
mod outbox;
#[cfg(test)]
mod outbox_tests;
mod ticket;

/// The locks of the outboxes. `tests/interleavings.rs` replaces them.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

pub(crate) use cancel::cancel;
pub(crate) use exchange::{Draft, Exchange};
pub(crate) use gate::Gate;
pub(crate) use notices::{Notices, run as run_notices};
pub(crate) use one_way::send_one_way;
pub(crate) use open_posts::KeptPosts;
pub use open_posts::OpenPosts;
pub use options::RequestOptions;
pub(crate) use outbox::{Outbox, Slot};
pub(crate) use ticket::{Settled, Waiter};
