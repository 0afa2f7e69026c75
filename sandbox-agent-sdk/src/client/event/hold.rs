//! Items of a queue that are not delivered to their readers yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// A hold on an item, which the queues of all its readers share.
#[derive(Debug, Default)]
pub(crate) struct HoldState {
    /// Whether readers get the item or it is discarded; `None` while it is held.
    pub(crate) is_released: Option<bool>,
    /// The readers that wait for it.
    pub(crate) wakers: Vec<Waker>,
}

/// The hold on an item in one queue. Readers get neither the item nor those after it until the hold ends.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// Guards the state of the hold; held for a look-up or a change.
    pub(crate) state: Arc<Mutex<HoldState>>,
    pub(crate) is_discardable: bool,
}

impl Hold {
    /// A hold that ends at the same time and discards nothing.
    pub(crate) fn until_settled(&self) -> Self {
        Self { is_discardable: false, ..self.clone() }
    }

    /// Whether readers get the item or it is discarded; `None` while it is held.
    pub(crate) fn is_released(&self) -> Option<bool> {
        self.lock().is_released.map(|is_released| is_released || !self.is_discardable)
    }

    /// Wakes a reader when the hold ends. Returns `false` if it has ended.
    pub(crate) fn wake(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        if state.is_released.is_some() {
            return false;
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        true
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
