//! A large body that counts how much of it was handed over.

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

/// Bodies up to this size are sent in one piece.
const ONE_PIECE: usize = 256 * 1024;
/// The size of the pieces of larger bodies.
const PIECE: usize = 64 * 1024;

/// Counts how much of a body the connection has taken.
#[derive(Debug, Default)]
pub(super) struct Metered {
    taken: Arc<AtomicUsize>,
}

impl Metered {
    /// The body to send. The count begins again with each.
    pub(super) fn body(&self, bytes: &Bytes) -> reqwest::Body {
        if bytes.len() <= ONE_PIECE {
            return bytes.clone().into();
        }
        self.taken.store(0, Ordering::Release);
        reqwest::Body::wrap(Pieces { rest: bytes.clone(), taken: self.taken.clone() })
    }

    /// How much of the last body was taken, if it was not all of it. Of a body in one piece nothing is known.
    pub(super) fn incomplete(&self, bytes: &Bytes) -> Option<usize> {
        let taken = self.taken.load(Ordering::Acquire);
        (bytes.len() > ONE_PIECE && taken < bytes.len()).then_some(taken)
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
