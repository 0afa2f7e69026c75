//! A file that is being read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, ReadBuf};

use super::incoming::Incoming;
use crate::Error;
use crate::error::Phase;

/// A file that is being read: a stream of its pieces, or an [`AsyncRead`]. It holds a piece at a time.
///
/// It fails with [`Error::Timeout`] when the server sends nothing for [`ControlTimeouts::stall`], and with
/// [`Error::ConnectionLost`] when the file ends before its announced size. Through [`AsyncRead`] these come as
/// the inner error of an [`io::Error`].
///
/// [`ControlTimeouts::stall`]: crate::control::ControlTimeouts::stall
#[derive(Debug)]
#[must_use = "a reader does nothing until it is read"]
pub struct FileReader {
    incoming: Incoming,
    /// What is left of a piece that did not fit into the buffer of a read.
    rest: Bytes,
}

impl FileReader {
    pub(super) fn new(incoming: Incoming) -> Self {
        Self { incoming, rest: Bytes::new() }
    }

    /// The size of the file, if the server announced it.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.incoming.announced()
    }

    pub(super) fn what(&self) -> &'static str {
        self.incoming.what()
    }

    /// The whole file, or what is left of it, unless that is larger than `limit`.
    ///
    /// # Errors
    /// [`Error::MessageTooLarge`] if it is.
    pub async fn into_bytes(self, limit: usize) -> Result<Bytes, Error> {
        if self.rest.is_empty() {
            return self.incoming.collect(limit).await;
        }
        let mut bytes = self.rest.to_vec();
        bytes.extend_from_slice(&self.incoming.collect(limit.saturating_sub(bytes.len())).await?);
        Ok(bytes.into())
    }
}

impl Stream for FileReader {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.rest.has_remaining() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        self.incoming.poll_next_unpin(context)
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // An empty piece would be taken for the end.
        while !self.rest.has_remaining() {
            match ready!(self.incoming.poll_next_unpin(context)) {
                Some(Ok(piece)) => self.rest = piece,
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let fitting = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(fitting));
        Poll::Ready(Ok(()))
    }
}

fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::Timeout(timeout) if timeout.phase == Phase::Body => io::ErrorKind::TimedOut,
        Error::ConnectionLost { .. } => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
