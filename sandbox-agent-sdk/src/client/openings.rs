//! The calls that make sessions, whose names nobody knows before their answers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The calls that are making sessions over one connection.
#[derive(Debug, Default)]
pub(super) struct Openings {
    /// Guards when each of them began, by the hub's clock; held for a look or a change.
    began: Mutex<Vec<u64>>,
    /// Wakes the one who waits for one of them to be over.
    over: Notify,
}

impl Openings {
    /// A session is being made, until the guard is gone. By then its name is known, or nobody will know it.
    pub(super) fn begin(&self, now: u64) -> Opening<'_> {
        self.lock().push(now);
        Opening { openings: self, began: now }
    }

    /// Since when a session has been being made, if one is.
    pub(super) fn since(&self) -> Option<u64> {
        self.lock().iter().min().copied()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one of them is over. There is one who waits.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }
}

/// A session that is being made.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    openings: &'a Openings,
    began: u64,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let mut began = self.openings.lock();
        if let Some(place) = began.iter().position(|began| *began == self.began) {
            began.swap_remove(place);
        }
        drop(began);
        self.openings.over.notify_one();
    }
}
