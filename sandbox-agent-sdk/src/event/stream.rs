//! Events as a stream.

use std::pin::Pin;
use std::sync::{Arc, Weak};
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

    pub(crate) fn queue(&self) -> Weak<Queue<Event>> {
        Arc::downgrade(&self.queue)
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
