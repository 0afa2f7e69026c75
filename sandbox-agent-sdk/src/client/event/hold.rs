//! Items of a queue that their readers do not get yet.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// What happens to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Readers do not get the item yet, nor the items after it.
    Held,
    Released,
    /// Its readers never get it.
    Discarded,
}

#[derive(Debug)]
struct State {
    fate: Fate,
    /// The readers that wait for it.
    wakers: Vec<Waker>,
}

/// Holds an item back in the queues of its readers. Dropping it discards the item, unless it was released.
#[derive(Debug)]
pub(crate) struct Holder(Arc<Mutex<State>>);

impl Holder {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { fate: Fate::Held, wakers: Vec::new() })))
    }

    pub(crate) fn hold(&self) -> Hold {
        Hold { state: Arc::clone(&self.0), is_discardable: true }
    }

    /// Delivers the item to its readers.
    pub(crate) fn release(&self) {
        settle(&self.0, Fate::Released);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        settle(&self.0, Fate::Discarded);
    }
}

/// The hold on an item in one queue.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    state: Arc<Mutex<State>>,
    is_discardable: bool,
}

impl Hold {
    /// A hold that ends at the same time and discards nothing.
    pub(crate) fn until_settled(&self) -> Self {
        Self { is_discardable: false, ..self.clone() }
    }

    pub(crate) fn fate(&self) -> Fate {
        match lock(&self.state).fate {
            Fate::Discarded if !self.is_discardable => Fate::Released,
            fate => fate,
        }
    }

    /// Wakes a reader when the hold ends. Returns `false` if it has ended.
    pub(crate) fn wake(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        if state.fate != Fate::Held {
            return false;
        }
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        true
    }
}

fn settle(state: &Mutex<State>, fate: Fate) {
    let mut state = lock(state);
    if state.fate == Fate::Held {
        state.fate = fate;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
