use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};

use super::engine::{Faults, Moment};
use super::kind::{Cut, Fault, LineEnding};
use crate::server::Socket;

/// The stuff of events that never end: sent again and again, so that any number of them costs nothing.
static FILLER: [u8; 16_384] = [b'x'; 16_384];

/// What is done to the bytes of one stream, decided when it is opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shape {
    /// Bytes in front of everything.
    prefix: Vec<u8>,
    /// How many bytes of an event that never ends follow the prefix, before the stream goes silent.
    filler: Option<usize>,
    /// Line ends, if not plain line feeds.
    line_ending: Option<LineEnding>,
    /// The size of every chunk but the last of a batch.
    chunk: Option<usize>,
    /// Where and how the stream ends.
    cut: Option<(u64, Cut)>,
    /// Where the stream goes silent.
    stall: Option<u64>,
}

impl Shape {
    /// Asks the engine what happens to the stream opened at `moment`.
    pub(crate) fn decide(faults: &Faults, moment: &Moment<'_>) -> Self {
        let mut shape = Self::default();
        if faults.strike(moment, |fault| matches!(fault, Fault::Bom).then_some(())).is_some() {
            shape.prefix.extend_from_slice(b"\xef\xbb\xbf");
        }
        let retry = faults.strike(moment, |fault| match fault {
            Fault::Retry(milliseconds) => Some(*milliseconds),
            _ => None,
        });
        if let Some(milliseconds) = retry {
            shape.prefix.extend_from_slice(format!("retry: {milliseconds}\n\n").as_bytes());
        }
        shape.filler = faults.strike(moment, |fault| match fault {
            Fault::UnterminatedEvent { bytes } => Some(*bytes),
            _ => None,
        });
        if shape.filler.is_some() {
            shape.prefix.extend_from_slice(b"data: ");
        }
        shape.line_ending = faults.strike(moment, |fault| match fault {
            Fault::LineEnding(ending) => Some(*ending),
            _ => None,
        });
        shape.chunk = faults.strike(moment, |fault| match fault {
            Fault::ChunkSize(size) => Some((*size).max(1)),
            _ => None,
        });
        shape.cut = faults.strike(moment, |fault| match fault {
            Fault::StreamCutAt { byte, cut } => Some((*byte, *cut)),
            _ => None,
        });
        shape.stall = faults.strike(moment, |fault| match fault {
            Fault::StreamStall => Some(0),
            Fault::StreamStallAt { byte } => Some(*byte),
            _ => None,
        });
        shape
    }

    /// The body as it goes out.
    pub(crate) fn apply(self, body: Body, socket: Option<Arc<Socket>>) -> Body {
        if self == Self::default() {
            return body;
        }
        let mut queue = VecDeque::new();
        let mut line = 0;
        if !self.prefix.is_empty() {
            queue.push_back(self.rewrite(Bytes::from(self.prefix.clone()), &mut line));
        }
        let shaped = Shaped { shape: self, source: body.into_data_stream(), queue, line, sent: 0, socket };
        Body::from_stream(stream::unfold(shaped, |mut shaped| async move {
            let item = shaped.next().await?;
            Some((item, shaped))
        }))
    }

    /// Exchanges the line ends. Payloads hold no raw line feeds, so every one of them ends a line.
    fn rewrite(&self, bytes: Bytes, line: &mut usize) -> Bytes {
        let Some(ending) = self.line_ending else { return bytes };
        let mut out = BytesMut::with_capacity(bytes.len() * 2);
        for &byte in &bytes {
            if byte != b'\n' {
                out.extend_from_slice(&[byte]);
                continue;
            }
            let kind = match ending {
                // Two returns in a row would be read as one return and an empty line less if a feed followed
                // directly, so the turn changes after each blank line only.
                LineEnding::Mixed => [LineEnding::Lf, LineEnding::CrLf, LineEnding::Cr][(*line / 4) % 3],
                other => other,
            };
            *line += 1;
            out.extend_from_slice(match kind {
                LineEnding::CrLf => b"\r\n",
                LineEnding::Cr => b"\r",
                LineEnding::Lf | LineEnding::Mixed => b"\n",
            });
        }
        out.freeze()
    }
}

/// A stream body on its way through a [`Shape`].
struct Shaped {
    shape: Shape,
    source: BodyDataStream,
    /// Bytes that were read from the source and not sent yet.
    queue: VecDeque<Bytes>,
    /// How many lines went by, for mixed line ends.
    line: usize,
    /// How many bytes were sent.
    sent: u64,
    socket: Option<Arc<Socket>>,
}

impl Shaped {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some((byte, cut)) = self.shape.cut
            && self.sent >= byte
        {
            return self.end(cut).await;
        }
        if self.shape.stall.is_some_and(|byte| self.sent >= byte) {
            return std::future::pending().await;
        }
        while self.queue.is_empty() {
            let bytes = match &mut self.shape.filler {
                Some(0) => return std::future::pending().await,
                Some(left) => {
                    let piece = &FILLER[..FILLER.len().min(*left)];
                    *left -= piece.len();
                    Bytes::from_static(piece)
                }
                None => match self.source.next().await? {
                    Ok(bytes) => self.shape.rewrite(bytes, &mut self.line),
                    Err(error) => return Some(Err(io::Error::other(error))),
                },
            };
            self.queue.push_back(bytes);
        }
        let mut front = self.queue.pop_front()?;
        let mut limit = self.shape.chunk.unwrap_or(usize::MAX);
        for end in [self.shape.cut.map(|(byte, _)| byte), self.shape.stall].into_iter().flatten() {
            limit = limit.min(usize::try_from(end - self.sent).unwrap_or(usize::MAX));
        }
        if front.len() > limit {
            let rest = front.split_off(limit);
            self.queue.push_front(rest);
        }
        if self.shape.chunk.is_some() && self.sent > 0 {
            // The chunk before this one is written to the socket before this one is made.
            flushed(self.socket.as_deref()).await;
        }
        self.sent += front.len() as u64;
        Some(Ok(front))
    }

    async fn end(&mut self, cut: Cut) -> Option<io::Result<Bytes>> {
        flushed(self.socket.as_deref()).await;
        match cut {
            Cut::Clean => None,
            Cut::Dropped => Some(Err(io::Error::other("cut"))),
            Cut::Reset => {
                if let Some(socket) = &self.socket {
                    socket.reset();
                }
                std::future::pending().await
            }
        }
    }
}

/// Waits until what was handed to the connection has left it.
async fn flushed(socket: Option<&Socket>) {
    match socket {
        Some(socket) => socket.flushed().await,
        None => tokio::task::yield_now().await,
    }
}
