//! The body of a response as a stream.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::{Sleep, sleep, timeout_at};

use super::refusal::{connection_lost, header};
use crate::Error;
use crate::client::deadline::deadline_after;
use crate::client::network::check_runtime;
use crate::error::{Phase, Timeout};

/// A stream of body chunks. Fails on a stall, and if the body ends before its announced length.
pub(super) struct Incoming {
    /// The operation, for errors.
    what: &'static str,
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    content_type: Option<String>,
    announced: Option<u64>,
    received: u64,
    stall: Duration,
    /// Runs only while the caller waits for a chunk: a slow reader is not a stall.
    timer: Option<Pin<Box<Sleep>>>,
    ended: bool,
}

impl Incoming {
    pub(super) fn new(what: &'static str, response: Response, stall: Duration) -> Self {
        let content_type = header(&response, &CONTENT_TYPE);
        let announced = response.content_length();
        let body = response.bytes_stream().boxed();
        Self { what, body, content_type, announced, received: 0, stall, timer: None, ended: false }
    }

    /// Returns the announced length.
    pub(super) fn announced(&self) -> Option<u64> {
        self.announced
    }

    /// Returns the announced media type.
    pub(super) fn content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// Returns the operation, for errors.
    pub(super) fn what(&self) -> &'static str {
        self.what
    }

    /// Reads the whole body. Fails if it is larger than `limit`.
    pub(super) async fn collect(mut self, limit: usize) -> Result<Bytes, Error> {
        let mut body = Collected::default();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            let seen = body.len() + piece.len();
            if seen > limit {
                return Err(Error::MessageTooLarge { limit, seen, event_id: None });
            }
            body.push(piece);
        }
        Ok(body.into_bytes())
    }

    /// Reads the beginning of the body and ignores later failures. It takes no longer than one stall.
    pub(super) async fn start(mut self, limit: usize) -> Bytes {
        let until = deadline_after(self.stall);
        let mut start = BytesMut::new();
        while start.len() < limit {
            match timeout_at(until, self.next()).await {
                Ok(Some(Ok(piece))) => start.extend_from_slice(&piece),
                Ok(Some(Err(_)) | None) | Err(_) => break,
            }
        }
        start.truncate(limit);
        start.freeze()
    }

    /// Polls the stall timer.
    fn poll_stall(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let stall = self.stall;
        if self.timer.is_none()
            && let Err(error) = check_runtime()
        {
            return Poll::Ready(error);
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(stall)));
        timer.as_mut().poll(context).map(|()| {
            let waited = stall + timer.deadline().elapsed();
            Error::Timeout(Box::new(Timeout::new(Phase::Body, self.what, waited)))
        })
    }

    fn received(&mut self, piece: Option<reqwest::Result<Bytes>>) -> Option<Result<Bytes, Error>> {
        match piece {
            Some(Ok(piece)) => {
                self.received += piece.len() as u64;
                Some(Ok(piece))
            }
            Some(Err(error)) => Some(Err(connection_lost(self.what, error))),
            None => match self.announced {
                Some(announced) if self.received < announced => {
                    let what = format!("received {} of {announced} bytes", self.received);
                    let source = std::io::Error::new(std::io::ErrorKind::UnexpectedEof, what);
                    Some(Err(Error::ConnectionLost { what: self.what.to_owned(), source: Arc::new(source) }))
                }
                _ => None,
            },
        }
    }
}

impl Stream for Incoming {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = match self.body.poll_next_unpin(context) {
            Poll::Ready(piece) => self.received(piece),
            Poll::Pending => match self.poll_stall(context) {
                Poll::Ready(stalled) => Some(Err(stalled)),
                Poll::Pending => return Poll::Pending,
            },
        };
        self.timer = None;
        self.ended = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("what", &self.what)
            .field("announced", &self.announced)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

/// A body that usually arrives in one chunk, which is then not copied.
#[derive(Default)]
enum Collected {
    #[default]
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Collected {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }

    fn push(&mut self, piece: Bytes) {
        *self = match std::mem::take(self) {
            Self::Nothing => Self::One(piece),
            Self::One(first) => {
                let mut bytes = BytesMut::with_capacity(2 * (first.len() + piece.len()));
                bytes.extend_from_slice(&first);
                bytes.extend_from_slice(&piece);
                Self::Many(bytes)
            }
            Self::Many(mut bytes) => {
                bytes.extend_from_slice(&piece);
                Self::Many(bytes)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}
