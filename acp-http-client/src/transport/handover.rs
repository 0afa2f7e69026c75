//! Whether a message was handed over whole.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// A body is sent in pieces of this size.
const PIECE: usize = 64 * 1024;

/// Counts how much of a message was handed to the HTTP connection, and says when it was all of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handover(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// How many bytes were handed over; [`WHOLE`] once it was all of them.
    taken: AtomicUsize,
    notify: Notify,
}

const WHOLE: usize = usize::MAX;

impl Handover {
    /// The body to send. Counting starts over with each.
    pub(super) fn body(&self, bytes: &Bytes) -> reqwest::Body {
        self.0.taken.store(0, Ordering::Release);
        reqwest::Body::wrap(Pieces { rest: bytes.clone(), handover: self.clone() })
    }

    /// How many bytes of the last body were handed over, if it was not all of it.
    pub(super) fn incomplete(&self) -> Option<usize> {
        Some(self.0.taken.load(Ordering::Acquire)).filter(|taken| *taken != WHOLE)
    }

    /// Waits until the message was handed over whole.
    pub(crate) async fn completed(&self) {
        let notified = self.0.notify.notified();
        let mut notified = std::pin::pin!(notified);
        // Registered before the look, so that it is not missed.
        notified.as_mut().enable();
        if self.incomplete().is_some() {
            notified.await;
        }
    }
}

struct Pieces {
    rest: Bytes,
    handover: Handover,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let size = PIECE.min(self.rest.len());
        let piece = self.rest.split_to(size);
        let state = &self.handover.0;
        if self.rest.is_empty() {
            state.taken.store(WHOLE, Ordering::Release);
            state.notify.notify_waiters();
        } else {
            state.taken.fetch_add(size, Ordering::AcqRel);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
