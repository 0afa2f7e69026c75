use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};

use super::engine::{Faults, Moment};
use super::kind::{Cut, Fault, LineEnding};
use crate::server::Socket;

/// The contents of events that never end. Sent repeatedly, so that their size costs no memory.
static FILLER: [u8; 16_384] = [b'x'; 16_384];

/// The changes to the bytes of one stream, decided when it is opened.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shape {
    /// Bytes before everything else.
    prefix: Vec<u8>,
    /// How many bytes of a never-ending event follow the prefix, before the stream goes silent.
    filler: Option<usize>,
    /// Line endings, if not plain line feeds.
    line_ending: Option<LineEnding>,
    /// The size of every chunk except the last of a batch.
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

    /// Returns the changed body.
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

    /// Replaces the line endings. Payloads contain no raw line feeds, so each one ends a line.
    fn rewrite(&self, bytes: Bytes, line: &mut usize) -> Bytes {
        let Some(ending) = self.line_ending else { return bytes };
        let mut out = BytesMut::with_capacity(bytes.len() * 2);
        for &byte in &bytes {
            if byte != b'\n' {
                out.extend_from_slice(&[byte]);
                continue;
            }
            let kind = match ending {
                // CR directly followed by LF would be read as one line ending, so the kind changes only after
                // a blank line.
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

/// A stream body that passes through a [`Shape`].
struct Shaped {
    shape: Shape,
    source: BodyDataStream,
    /// Bytes that were read from the source and not sent yet.
    queue: VecDeque<Bytes>,
    /// How many lines were sent, for mixed line endings.
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
            // The previous chunk is written to the socket before the next one is created.
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

/// Waits until the connection has sent its pending data.
async fn flushed(socket: Option<&Socket>) {
    match socket {
        Some(socket) => socket.flushed().await,
        None => tokio::task::yield_now().await,
    }
}
