//! Delays an event until it is stored.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::client::event::Hold;

/// Delays an item in the queues of its readers. Dropping it discards the item, unless it was released.
#[derive(Debug)]
pub(super) struct Holder(Hold);

impl Holder {
    pub(super) fn new() -> Self {
        Self(Hold { state: Arc::default(), is_discardable: true })
    }

    pub(super) fn hold(&self) -> Hold {
        self.0.clone()
    }

    /// Delivers the item to its readers.
    pub(super) fn release(&self) {
        self.settle(true);
    }

    fn settle(&self, is_released: bool) {
        let mut state = self.0.lock();
        if state.is_released.is_none() {
            state.is_released = Some(is_released);
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.settle(false);
    }
}

/// Waits until readers get a held item or it is discarded.
pub(super) async fn ended(hold: &Hold) {
    poll_fn(|context| match hold.wake(context.waker()) {
        true => Poll::Pending,
        false => Poll::Ready(()),
    })
    .await;
}
