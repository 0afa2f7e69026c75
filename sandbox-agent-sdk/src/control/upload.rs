//! The body of an upload: bytes or a stream.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use super::progress::{Progress, Watched};

/// The chunk size in which bytes are sent, small enough to observe progress.
const PIECE_BYTES: usize = 64 * 1024;

/// Data to upload: bytes, text, or a stream.
///
/// A stream is never held in memory as a whole.
///
/// ```
/// use sandbox_agent_sdk::control::Upload;
///
/// let text = Upload::from("a few words");
/// let bytes = Upload::from(vec![0_u8, 159, 146, 150]);
/// let reader = Upload::reader(&b"anything that can be read"[..]).length(25);
/// # let _ = (text, bytes, reader);
/// ```
#[must_use]
pub struct Upload {
    source: Source,
    length: Option<u64>,
}

enum Source {
    Bytes(Bytes),
    Stream(BoxStream<'static, io::Result<Bytes>>),
}

impl Upload {
    /// Creates an upload from a stream.
    ///
    /// If the stream yields an error, the request is aborted, nothing is written, and the call fails with
    /// [`Error::Local`](crate::Error::Local).
    pub fn stream<S, B, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<B, E>> + Send + 'static,
        B: Into<Bytes>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = stream.map(|piece| piece.map(Into::into).map_err(io::Error::other));
        Self { source: Source::Stream(stream.boxed()), length: None }
    }

    /// Creates an upload from a reader, such as a local file.
    pub fn reader(reader: impl AsyncRead + Send + 'static) -> Self {
        let stream = ReaderStream::with_capacity(reader, PIECE_BYTES);
        Self { source: Source::Stream(stream.boxed()), length: None }
    }

    /// Declares the length of a stream.
    ///
    /// The server can then immediately reject a stream that is too large. If the stream is longer or shorter than
    /// declared, the call fails and nothing is written.
    pub fn length(mut self, bytes: u64) -> Self {
        self.length = Some(bytes);
        self
    }

    /// Returns the number of bytes, if known.
    pub(super) fn size(&self) -> Option<u64> {
        match &self.source {
            Source::Bytes(bytes) => Some(bytes.len() as u64),
            Source::Stream(_) => self.length,
        }
    }

    /// Copies the upload, if it can be sent twice.
    pub(super) fn again(&self) -> Option<Self> {
        match &self.source {
            Source::Bytes(bytes) => Some(Self { source: Source::Bytes(bytes.clone()), length: self.length }),
            Source::Stream(_) => None,
        }
    }

    /// Returns the body to send and its progress.
    pub(super) fn start(self) -> (Watched, Arc<Progress>) {
        let progress = Arc::new(Progress::new(self.size()));
        let pieces = match self.source {
            Source::Bytes(bytes) => stream::iter(pieces(bytes).map(Ok)).boxed(),
            Source::Stream(stream) => stream,
        };
        (Watched::new(pieces, Arc::clone(&progress)), progress)
    }
}

impl From<Bytes> for Upload {
    fn from(bytes: Bytes) -> Self {
        Self { length: Some(bytes.len() as u64), source: Source::Bytes(bytes) }
    }
}

impl From<Vec<u8>> for Upload {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Upload {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&str> for Upload {
    fn from(text: &str) -> Self {
        Bytes::copy_from_slice(text.as_bytes()).into()
    }
}

impl From<&[u8]> for Upload {
    fn from(bytes: &[u8]) -> Self {
        Bytes::copy_from_slice(bytes).into()
    }
}

impl<const N: usize> From<&[u8; N]> for Upload {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.source {
            Source::Bytes(_) => "bytes",
            Source::Stream(_) => "stream",
        };
        f.debug_struct("Upload").field("source", &kind).field("length", &self.length).finish()
    }
}

fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let next = bytes.split_to(bytes.len().min(PIECE_BYTES));
        (!next.is_empty()).then_some(next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn outcome(upload: Upload) -> (Vec<u8>, Option<String>) {
        let (mut body, progress) = upload.start();
        let mut sent = Vec::new();
        while let Some(piece) = body.next().await {
            match piece {
                Ok(piece) => sent.extend_from_slice(&piece),
                Err(_) => break,
            }
        }
        assert_eq!(progress.sent(), sent.len() as u64);
        (sent, progress.failure().map(|failure| failure.to_string()))
    }

    #[tokio::test]
    async fn bytes_are_sent_whole_and_can_be_sent_again() {
        for size in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
            let upload = Upload::from(bytes.clone());
            assert_eq!(upload.size(), Some(size as u64));
            assert_eq!(outcome(upload.again().unwrap()).await, (bytes.clone(), None));
            assert_eq!(outcome(upload).await, (bytes, None));
        }
    }

    #[tokio::test]
    async fn a_stream_of_another_length_than_declared_fails() {
        let three = || Upload::stream(stream::iter([Ok::<_, io::Error>("one"), Ok("two")]));
        assert!(three().again().is_none());
        assert_eq!(outcome(three()).await, (b"onetwo".to_vec(), None));
        assert_eq!(outcome(three().length(6)).await, (b"onetwo".to_vec(), None));
        let (sent, failure) = outcome(three().length(5)).await;
        assert_eq!(sent, b"one");
        assert!(failure.unwrap().contains("longer"));
        let (sent, failure) = outcome(three().length(3)).await;
        assert_eq!(sent, b"", "the end of the stream is checked before the last chunk is sent");
        assert!(failure.unwrap().contains("longer"));
        let (_, failure) = outcome(three().length(7)).await;
        assert!(failure.unwrap().contains("shorter"));
    }

    #[tokio::test]
    async fn the_error_of_a_failed_stream_is_preserved() {
        let broken = stream::iter([Ok("one"), Err(io::Error::other("disk failed"))]);
        let (sent, failure) = outcome(Upload::stream(broken)).await;
        assert_eq!((sent.as_slice(), failure.as_deref()), (&b"one"[..], Some("disk failed")));
    }
}
