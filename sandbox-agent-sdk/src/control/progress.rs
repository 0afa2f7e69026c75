//! Tracks the progress of sending a request body.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, Fuse};
use futures::{Stream, StreamExt};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::client::deadline::deadline_from;
use crate::error::Cause;

/// A request body that records its progress.
pub(super) struct Watched {
    pieces: Fuse<BoxStream<'static, io::Result<Bytes>>>,
    /// The last chunk of a body of known length. It is sent only after the stream has ended: afterwards the
    /// HTTP client does not poll for more.
    last: Option<Bytes>,
    progress: Arc<Progress>,
}

impl Watched {
    pub(super) fn new(pieces: BoxStream<'static, io::Result<Bytes>>, progress: Arc<Progress>) -> Self {
        Self { pieces: pieces.fuse(), last: None, progress }
    }

    /// Returns the next chunk and checks the length of the stream.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let next = ready!(self.pieces.poll_next_unpin(context)).transpose()?;
            let held = self.last.as_ref().map_or(0, Bytes::len) as u64;
            let left = self.progress.length.map(|length| length - self.progress.sent() - held);
            let piece = match (next, left) {
                (Some(piece), _) if piece.is_empty() => continue,
                (Some(piece), Some(left)) if piece.len() as u64 > left => {
                    return Poll::Ready(Some(Err(io::Error::other(
                        "the stream is longer than its declared length",
                    ))));
                }
                (Some(piece), Some(left)) if piece.len() as u64 == left => {
                    self.last = Some(piece);
                    continue;
                }
                (None, Some(1..)) => {
                    return Poll::Ready(Some(Err(io::Error::other(
                        "the stream is shorter than its declared length",
                    ))));
                }
                (None, _) => self.last.take(),
                (piece, _) => piece,
            };
            return Poll::Ready(piece.map(Ok));
        }
    }
}

impl Stream for Watched {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.progress.waits_for(Awaited::Source);
        Poll::Ready(match ready!(self.poll_piece(context)) {
            Some(Ok(piece)) => {
                self.progress.took(piece.len());
                Some(Ok(piece))
            }
            Some(Err(error)) => {
                let kind = error.kind();
                self.progress.failed(Arc::new(error));
                Some(Err(kind.into()))
            }
            None => {
                self.progress.waits_for(Awaited::Response);
                None
            }
        })
    }
}

/// What a request is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The network or the server must accept the last chunk.
    Server,
    /// The application must supply the next chunk.
    Source,
    /// The whole body was sent; the server must respond.
    Response,
}

/// The progress of sending a request body.
#[derive(Debug)]
pub(super) struct Progress {
    /// The number of bytes to send, if known.
    length: Option<u64>,
    /// Guards a few numbers; held only for an assignment.
    state: Mutex<State>,
    /// Notified when the whole body was sent: the response may have a shorter timeout than the chunks.
    complete: Notify,
}

#[derive(Debug)]
struct State {
    awaited: Awaited,
    since: Instant,
    sent: u64,
    failure: Option<Cause>,
}

impl Progress {
    pub(super) fn new(length: Option<u64>) -> Self {
        let awaited = if length == Some(0) { Awaited::Response } else { Awaited::Server };
        let state = State { awaited, since: Instant::now(), sent: 0, failure: None };
        Self { length, state: Mutex::new(state), complete: Notify::new() }
    }

    fn waits_for(&self, awaited: Awaited) {
        let mut state = self.lock();
        state.awaited = awaited;
        state.since = Instant::now();
        if awaited == Awaited::Response {
            self.complete.notify_one();
        }
    }

    fn took(&self, bytes: usize) {
        let sent = {
            let mut state = self.lock();
            state.sent += bytes as u64;
            state.sent
        };
        // The HTTP client does not poll a body of known length for its end.
        self.waits_for(if self.length == Some(sent) { Awaited::Response } else { Awaited::Server });
    }

    fn failed(&self, cause: Cause) {
        self.lock().failure = Some(cause);
    }

    /// Returns how many bytes were sent.
    pub(super) fn sent(&self) -> u64 {
        self.lock().sent
    }

    /// Returns the error of the application's stream.
    pub(super) fn failure(&self) -> Option<Cause> {
        self.lock().failure.clone()
    }

    /// Completes when the server has stalled for too long, and returns that time. Time spent waiting for the
    /// application's stream does not count.
    pub(super) async fn stalled(&self, stall: Duration, response: Option<Duration>) -> Duration {
        loop {
            let (awaited, since) = {
                let state = self.lock();
                (state.awaited, state.since)
            };
            let limit = if awaited == Awaited::Response { response } else { Some(stall) };
            let (Some(limit), now) = (limit, Instant::now()) else { return std::future::pending().await };
            let end = match awaited {
                // The timer restarts with the next chunk, which cannot expire before this.
                Awaited::Source => deadline_from(now, limit),
                Awaited::Server | Awaited::Response => deadline_from(since, limit),
            };
            if end <= now {
                return limit;
            }
            tokio::select! {
                () = sleep_until(end) => {}
                () = self.complete.notified() => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::control::Upload;

    #[tokio::test(start_paused = true)]
    async fn only_the_server_can_stall() {
        let second = Duration::from_secs(1);
        let (mut body, progress) = Upload::stream(stream::pending::<io::Result<Bytes>>()).start();
        assert!(futures::poll!(body.next()).is_pending());
        let patient = tokio::time::timeout(60 * second, progress.stalled(second, Some(second)));
        assert!(patient.await.is_err(), "a slow source is not a stall");

        let unknown = || Upload::stream(stream::iter([Ok::<_, io::Error>("x")]));
        let (mut body, progress) = unknown().start();
        assert!(body.next().await.is_some());
        assert_eq!(progress.stalled(second, Some(2 * second)).await, second);
        assert!(body.next().await.is_none());
        assert_eq!(progress.stalled(second, Some(2 * second)).await, 2 * second);
        for (known, pieces) in [(Upload::from("x"), 1), (unknown().length(1), 1), (Upload::from(""), 0)] {
            let (body, progress) = known.start();
            assert_eq!(body.take(pieces).count().await, pieces);
            assert_eq!(
                progress.stalled(second, Some(2 * second)).await,
                2 * second,
                "the whole body was sent"
            );
        }
        let (body, progress) = unknown().start();
        let impatient = tokio::join!(progress.stalled(60 * second, Some(second)), async {
            tokio::time::sleep(second).await;
            body.count().await
        });
        assert_eq!(impatient, (second, 1), "the response has its own timeout");
        let endless = tokio::time::timeout(60 * second, progress.stalled(second, None));
        assert!(endless.await.is_err());
    }
}
