//! A body that knows how much of it was handed over.

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

use super::handover::Handover;

/// A body goes out in pieces of this size.
const PIECE: usize = 64 * 1024;

/// Counts how much of a body the connection has taken.
#[derive(Debug, Default)]
pub(super) struct Metered {
    taken: Arc<AtomicUsize>,
    handover: Handover,
}

impl Metered {
    pub(super) fn new(handover: Handover) -> Self {
        Self { taken: Arc::default(), handover }
    }

    /// The body to send. Counting starts over with each.
    pub(super) fn body(&self, bytes: &Bytes) -> reqwest::Body {
        self.taken.store(0, Ordering::Release);
        let (taken, handover) = (self.taken.clone(), self.handover.clone());
        reqwest::Body::wrap(Pieces { rest: bytes.clone(), taken, handover })
    }

    /// How much of the last body was taken, if it was not all of it.
    pub(super) fn incomplete(&self, bytes: &Bytes) -> Option<usize> {
        let taken = self.taken.load(Ordering::Acquire);
        (taken < bytes.len()).then_some(taken)
    }
}

struct Pieces {
    rest: Bytes,
    taken: Arc<AtomicUsize>,
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
        self.taken.fetch_add(size, Ordering::AcqRel);
        if self.rest.is_empty() {
            self.handover.complete();
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
