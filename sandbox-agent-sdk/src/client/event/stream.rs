//! Events as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};

use super::{Event, Queue};

/// The events of a client or of one session, from the moment of subscribing on.
///
/// Each subscriber has a budget of its own: one that does not read gets an [`Event::Lagged`] in the place of what
/// was dropped, and never slows down anything else. The events of a client go on over disconnecting and
/// connecting again.
#[derive(Debug)]
#[must_use = "a subscription that is not read only counts what it misses"]
pub struct Events {
    queue: Arc<Queue<Event>>,
}

impl Events {
    pub(crate) fn new(queue: Arc<Queue<Event>>) -> Self {
        Self { queue }
    }

    #[cfg(feature = "sessions")]
    pub(crate) fn queue(&self) -> std::sync::Weak<Queue<Event>> {
        Arc::downgrade(&self.queue)
    }

    /// Makes this subscription a deciding one: the agent's permission requests and questions wait for it.
    ///
    /// A request that is read here is cancelled when the last deciding copy of it is dropped. A subscription that is
    /// not deciding, a log for example, sees requests too but never counts as something that decides: without a
    /// policy, a [handler](crate::ClientOptions::permission_handler), a turn that is read by
    /// [`next_event`](crate::Turn::next_event) or a deciding subscription, requests are refused at once.
    pub fn deciding(self) -> Self {
        self.queue.set_deciding(true);
        self
    }

    /// The next event; `None` once the client is gone.
    pub async fn next(&mut self) -> Option<Event> {
        StreamExt::next(self).await
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.pop()
    }
}

/// What nobody will read is given up at once: a request among it is answered as one that was dropped.
impl Drop for Events {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.queue.poll(context)
    }
}
