//! Events as a stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};

use super::{Event, Queue};

/// A subscription to the events of a client or of one session.
///
/// Each subscriber has its own budget. A subscriber that falls behind receives [`Event::Lagged`] instead of the
/// dropped events and never slows down others. A subscription stays valid when the client disconnects and connects
/// again.
#[derive(Debug)]
#[must_use = "an unread subscription only counts the events that it misses"]
pub struct Events {
    queue: Arc<Queue<Event>>,
}

impl Events {
    pub(crate) fn new(queue: Arc<Queue<Event>>) -> Self {
        Self { queue }
    }

    /// Makes this subscription decide agent requests: permission requests and questions wait for its response.
    ///
    /// A request is cancelled when the last deciding subscription drops it. Other subscriptions, such as a log,
    /// receive requests but do not decide them. If there is neither a deciding subscription nor a turn that is read
    /// with [`next_event`](crate::Turn::next_event), questions are cancelled immediately. Permission requests are then
    /// rejected immediately, unless the policy or a [handler](crate::ClientOptions::permission_handler) decides them.
    pub fn deciding(self) -> Self {
        self.queue.set_deciding(true);
        self
    }

    /// Returns the next event, or `None` after the client was dropped.
    pub async fn next(&mut self) -> Option<Event> {
        StreamExt::next(self).await
    }

    /// Returns the next event if one is queued, without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.pop()
    }
}

/// Queued events are dropped at once, which cancels the requests among them.
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
