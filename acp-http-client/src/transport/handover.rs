//! Whether a message was handed over whole.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Says when the last byte of a message was handed to the HTTP connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handover(Arc<State>);

#[derive(Debug, Default)]
struct State {
    complete: AtomicBool,
    notify: Notify,
}

impl Handover {
    pub(super) fn complete(&self) {
        self.0.complete.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    /// Waits until the message was handed over whole.
    pub(crate) async fn completed(&self) {
        let notified = self.0.notify.notified();
        let mut notified = std::pin::pin!(notified);
        // Registered before the look, so that it is not missed.
        notified.as_mut().enable();
        if !self.0.complete.load(Ordering::Acquire) {
            notified.await;
        }
    }
}
