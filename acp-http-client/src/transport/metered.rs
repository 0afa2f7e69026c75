//! A large body that knows how much of it was taken.

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

/// Bodies up to this size go out in one piece; a server takes them before it can refuse them.
const ONE_PIECE: usize = 256 * 1024;
/// The pieces of larger ones.
const PIECE: usize = 64 * 1024;

/// Counts what was taken of a body.
#[derive(Debug, Default)]
pub(super) struct Metered {
    taken: Arc<AtomicUsize>,
}

impl Metered {
    /// The body to send. Counting starts over with each.
    pub(super) fn body(&self, bytes: &Bytes) -> reqwest::Body {
        if bytes.len() <= ONE_PIECE {
            return bytes.clone().into();
        }
        self.taken.store(0, Ordering::Release);
        reqwest::Body::wrap(Pieces { rest: bytes.clone(), taken: self.taken.clone() })
    }

    /// Whether some of the last body was never taken. Of a body in one piece nothing can be said.
    pub(super) fn left_over(&self, bytes: &Bytes) -> bool {
        bytes.len() > ONE_PIECE && self.taken.load(Ordering::Acquire) < bytes.len()
    }
}

struct Pieces {
    rest: Bytes,
    taken: Arc<AtomicUsize>,
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
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
