//! POSTs that stay open after the end of their connection.

use std::{
    fmt, mem,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tokio::sync::Notify;

use super::ticket::Posting;
use crate::Error;

/// A POST whose request failed with the end of the connection.
pub(crate) struct OpenPost {
    pub(super) method: Arc<str>,
    pub(super) posting: Posting,
}

impl fmt::Debug for OpenPost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenPost").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Where failed requests leave their open POSTs: at most one for each request that was pending at the end.
#[derive(Debug, Default)]
pub(crate) struct KeptPosts {
    /// Guards the POSTs that [`OpenPosts`] has not received yet.
    arrived: Mutex<Vec<OpenPost>>,
    changed: Notify,
}

impl KeptPosts {
    pub(super) fn push(&self, post: OpenPost) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(post);
        self.changed.notify_one();
    }

    fn take(&self) -> Vec<OpenPost> {
        mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The POSTs that were open when their connection ended, from
/// [`Control::end_keeping_posts`](crate::Control::end_keeping_posts).
///
/// Dropping it closes them.
pub struct OpenPosts {
    kept: Arc<KeptPosts>,
    open: FuturesUnordered<BoxFuture<'static, (Arc<str>, Option<Error>)>>,
}

impl OpenPosts {
    pub(crate) fn new(kept: Arc<KeptPosts>) -> Self {
        Self { kept, open: FuturesUnordered::new() }
    }

    /// Waits for the next POST that fails, and returns its method and the error.
    ///
    /// Successful responses are skipped. Without a further failure it never returns, because a call that has not
    /// noticed the end may still have an open POST: use a timeout.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next_failure(&mut self) -> (Arc<str>, Error) {
        loop {
            for OpenPost { method, posting } in self.kept.take() {
                self.open.push(Box::pin(async move {
                    let failure = posting.await.err();
                    (method, failure.map(|failure| failure.into_error()))
                }));
            }
            tokio::select! {
                Some((method, error)) = self.open.next() => {
                    if let Some(error) = error {
                        return (method, error);
                    }
                }
                () = self.kept.changed.notified() => {}
            }
        }
    }
}

impl fmt::Debug for OpenPosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenPosts").field("open", &self.open.len()).finish_non_exhaustive()
    }
}
