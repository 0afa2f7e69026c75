//! Reads a file from the server.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{Stream, StreamExt};
use tokio::io::{AsyncRead, ReadBuf};

use super::incoming::Incoming;
use crate::Error;
use crate::error::Phase;

/// A file being downloaded: a [`Stream`] of chunks, or an [`AsyncRead`].
///
/// It holds one chunk in memory at a time.
///
/// # Errors
/// Reading fails with [`Error::Timeout`] if the server sends nothing for [`ControlTimeouts::stall`], and with
/// [`Error::ConnectionLost`] if the file ends before its announced size. [`AsyncRead`] returns them as the
/// inner error of an [`io::Error`].
///
/// [`ControlTimeouts::stall`]: crate::control::ControlTimeouts::stall
#[derive(Debug)]
#[must_use = "a reader does nothing until it is read"]
pub struct FileReader {
    incoming: Incoming,
    /// The rest of a chunk that did not fit into the caller's buffer.
    rest: Bytes,
}

impl FileReader {
    pub(super) fn new(incoming: Incoming) -> Self {
        Self { incoming, rest: Bytes::new() }
    }

    /// Returns the size of the file, if the server announced it.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.incoming.announced()
    }

    pub(super) fn what(&self) -> &'static str {
        self.incoming.what()
    }

    /// Reads the rest of the file into memory.
    ///
    /// # Errors
    /// [`Error::MessageTooLarge`] if it is larger than `limit` bytes.
    pub async fn into_bytes(self, limit: usize) -> Result<Bytes, Error> {
        if self.rest.is_empty() {
            return self.incoming.collect(limit).await;
        }
        if self.rest.len() > limit {
            return Err(Error::MessageTooLarge { limit, seen: self.rest.len(), event_id: None });
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
        // An empty chunk would signal the end of the file.
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
