//! Whether a message was completely handed to the HTTP connection.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{Notify, oneshot};

/// A body is sent in pieces of this size.
const PIECE: usize = 64 * 1024;

/// Counts how much of a message was handed to the HTTP connection, and reports when all of it was. Until then the
/// message can be withdrawn: a server cannot run a message that it has not read completely.
#[derive(Debug, Clone, Default)]
pub(crate) struct Handover(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// How many bytes were handed over: [`WHOLE`] for all of them, [`WITHDRAWN`] after the message was withdrawn.
    taken: AtomicUsize,
    notify: Notify,
}

const WHOLE: usize = usize::MAX;
const WITHDRAWN: usize = usize::MAX - 1;

impl Handover {
    /// The body to send. Counting starts over with each.
    pub(super) fn body(&self, bytes: &Bytes) -> reqwest::Body {
        self.0.change(|_| 0);
        reqwest::Body::wrap(Pieces { rest: bytes.clone(), handover: self.clone() })
    }

    /// How many bytes of the last body were handed over, if it was not all of it.
    pub(super) fn incomplete(&self) -> Option<usize> {
        Some(self.0.taken.load(Ordering::Acquire)).filter(|taken| *taken != WHOLE)
    }

    /// Withholds the last byte. Returns `false` if it was already handed over.
    pub(crate) fn withdraw(&self) -> bool {
        let taken = &self.0.taken;
        let withdrawn = |taken| if taken == WHOLE { None } else { Some(WITHDRAWN) };
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, withdrawn).is_ok()
    }

    /// Waits until the message was completely handed over.
    pub(crate) async fn completed(&self) {
        let notified = self.0.notify.notified();
        let mut notified = std::pin::pin!(notified);
        // Registered before the check, so that no change is missed.
        notified.as_mut().enable();
        if self.incomplete().is_some() {
            notified.await;
        }
    }
}

impl State {
    /// Changes the count, unless the message was withdrawn. Returns whether it was changed.
    fn change(&self, change: impl Fn(usize) -> usize) -> bool {
        let change = |taken| if taken == WITHDRAWN { None } else { Some(change(taken)) };
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

/// The message was withdrawn.
#[derive(Debug)]
struct Withdrawn;

impl fmt::Display for Withdrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the message was withdrawn")
    }
}

impl Error for Withdrawn {}

struct Pieces {
    rest: Bytes,
    handover: Handover,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Withdrawn;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Withdrawn>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let size = PIECE.min(self.rest.len());
        let piece = self.rest.split_to(size);
        let state = &self.handover.0;
        let is_last = self.rest.is_empty();
        if !state.change(|taken| if is_last { WHOLE } else { taken + size }) {
            return Poll::Ready(Some(Err(Withdrawn)));
        }
        if is_last {
            state.notify.notify_waiters();
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

/// The body of a request without content, and a signal that the HTTP connection has taken the request. The signal also
/// comes when the request fails.
pub(super) fn empty_body() -> (reqwest::Body, impl Future<Output = ()>) {
    let (dropped, taken) = oneshot::channel();
    let body = reqwest::Body::wrap(Empty { _dropped: dropped });
    // The sender is only ever dropped.
    (body, async { drop(taken.await) })
}

/// A body without content. The HTTP connection drops it when it has taken the head of the request.
struct Empty {
    _dropped: oneshot::Sender<()>,
}

impl Body for Empty {
    type Data = Bytes;
    type Error = Withdrawn;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Withdrawn>>> {
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        true
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(body: &mut reqwest::Body) -> Option<bool> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(body).poll_frame(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| frame.is_ok()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_message_is_withdrawn_until_its_last_byte_was_handed_over() {
        let bytes = Bytes::from(vec![0; PIECE + 1]);
        let handover = Handover::default();
        let mut body = handover.body(&bytes);
        assert_eq!((next(&mut body), handover.incomplete()), (Some(true), Some(PIECE)));
        assert!(handover.withdraw() && handover.withdraw());
        assert_eq!(next(&mut body), Some(false));
        assert_eq!(next(&mut handover.body(&bytes)), Some(false), "it is not sent again either");

        let handover = Handover::default();
        let mut body = handover.body(&bytes);
        assert_eq!([next(&mut body), next(&mut body)], [Some(true); 2]);
        assert!(handover.incomplete().is_none() && !handover.withdraw());
    }
}
