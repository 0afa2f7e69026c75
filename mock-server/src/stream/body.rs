use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use tokio::sync::watch;

use super::log::{Event, Log, Position, Read};
use super::seat::Seated;
use crate::fault::{EventFate, Faults};
use crate::server::Core;

/// How many events one read takes from the log. Limits the memory that a slow reader holds.
const BATCH: usize = 64;

/// The format of events and heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// `event: message`, `id`, `data`; the heartbeat is `: heartbeat`.
    Numbered,
    /// `data` only, as on the official transport; the heartbeat is an empty comment.
    DataOnly,
}

/// The number of open streams.
#[derive(Debug, Clone, Default)]
pub(crate) struct StreamCount(watch::Sender<usize>);

impl StreamCount {
    /// Returns the number of open streams.
    pub(crate) fn get(&self) -> usize {
        *self.0.borrow()
    }

    /// Returns a receiver that is notified about every change.
    pub(crate) fn bell(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    fn enter(&self) -> Entered {
        self.0.send_modify(|count| *count += 1);
        Entered(self.clone())
    }
}

/// Counts one open stream until it is dropped.
#[derive(Debug)]
struct Entered(StreamCount);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

/// One open stream of a log, used as a response body.
pub(crate) struct Tap {
    log: Arc<Log>,
    position: Position,
    bell: watch::Receiver<u64>,
    heartbeat: Duration,
    framing: Framing,
    faults: Arc<Faults>,
    /// Called with every position that was passed to the socket.
    observer: Option<Box<dyn FnMut(Position) + Send>>,
    /// The reader's slot, if only one reader is allowed.
    _seated: Option<Seated>,
    /// Counts the stream while it is open. Dropped last: when the count decreases, the slot is already free.
    _entered: Entered,
}

impl Tap {
    /// Opens `log` at `position`.
    pub(crate) fn open(core: &Core, log: Arc<Log>, position: Position, framing: Framing) -> Self {
        Self {
            bell: log.bell(),
            log,
            position,
            heartbeat: core.config.heartbeat,
            framing,
            faults: Arc::clone(&core.faults),
            observer: None,
            _entered: core.streams.enter(),
            _seated: None,
        }
    }

    /// Releases the slot when the stream ends.
    pub(crate) fn seated(mut self, seated: Seated) -> Self {
        self._seated = Some(seated);
        self
    }

    /// Calls `observer` with the position after each read.
    pub(crate) fn observed(mut self, observer: impl FnMut(Position) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Returns the response body. It ends when the log ends it or the reader disconnects.
    pub(crate) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut tap| async move {
            let chunk = tap.next().await?;
            Some((Ok::<_, std::convert::Infallible>(chunk), tap))
        }))
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.bell.mark_unchanged();
            // Without ids a reader cannot detect losses, so no more is taken than is sent at once.
            let limit = if self.framing == Framing::Numbered { BATCH } else { 1 };
            match self.log.read(self.position, limit) {
                Read::Closed => return None,
                Read::Events(events, position) => {
                    self.position = position;
                    if let Some(observer) = &mut self.observer {
                        observer(position);
                    }
                    let chunk = self.encode(&events);
                    if !chunk.is_empty() {
                        return Some(chunk);
                    }
                }
                Read::Nothing => match tokio::time::timeout(self.heartbeat, self.bell.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(self.silence()),
                },
            }
        }
    }

    fn encode(&self, events: &[Event]) -> Bytes {
        let mut buffer = BytesMut::new();
        for event in events {
            let copies = match self.faults.event_fate(event.id) {
                EventFate::Once => 1,
                EventFate::Never => 0,
                EventFate::Twice => 2,
            };
            for _ in 0..copies {
                self.frame(event, &mut buffer);
            }
        }
        buffer.freeze()
    }

    fn frame(&self, event: &Event, buffer: &mut BytesMut) {
        if self.framing == Framing::Numbered {
            buffer.put_slice(b"event: message\nid: ");
            buffer.put_slice(event.id.to_string().as_bytes());
            buffer.put_slice(b"\n");
        }
        buffer.put_slice(b"data: ");
        buffer.put_slice(&event.data);
        buffer.put_slice(b"\n\n");
    }

    fn silence(&self) -> Bytes {
        match self.framing {
            Framing::Numbered => Bytes::from_static(b": heartbeat\n\n"),
            Framing::DataOnly => Bytes::from_static(b": \n\n"),
        }
    }
}
