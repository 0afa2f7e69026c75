//! The calls that make sessions, whose names nobody knows before their answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the calls that are making sessions over one connection.
#[derive(Debug, Default)]
pub(super) struct Openings {
    running: AtomicUsize,
    /// Wakes the one who waits for one of them to be over.
    over: Notify,
}

impl Openings {
    /// A session is being made, until the guard is gone. By then its name is known, or nobody will know it.
    pub(super) fn begin(&self) -> Opening<'_> {
        self.running.fetch_add(1, Ordering::AcqRel);
        Opening(self)
    }

    /// Whether a session is being made.
    pub(super) fn any(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Waits until one of them is over. There is one who waits.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }
}

/// A session that is being made.
#[derive(Debug)]
pub(super) struct Opening<'a>(&'a Openings);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.over.notify_one();
    }
}
