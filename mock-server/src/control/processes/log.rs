//! The output of a process.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};
use tokio::sync::watch;

/// An output stream, or a combination of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stream {
    Stdout,
    Stderr,
    Combined,
    Pty,
}

impl Stream {
    /// Whether a reader of this stream sees output of another.
    fn covers(self, other: Self) -> bool {
        match self {
            Self::Combined => matches!(other, Self::Stdout | Self::Stderr),
            one => one == other,
        }
    }
}

/// A chunk of output.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) stream: Stream,
    timestamp_ms: u64,
    pub(super) data: Bytes,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_struct("Entry", 5)?;
        entry.serialize_field("sequence", &self.sequence)?;
        entry.serialize_field("stream", &self.stream)?;
        entry.serialize_field("timestampMs", &self.timestamp_ms)?;
        entry.serialize_field("data", &STANDARD.encode(&self.data))?;
        entry.serialize_field("encoding", "base64")?;
        entry.end()
    }
}

/// The output of a process in bounded memory; the oldest entries are dropped first. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Log {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Guards the entries, never across an await.
    kept: Mutex<Kept>,
    /// The sequence number of the last entry.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    entries: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
}

impl Log {
    pub(super) fn new(limit: usize) -> Self {
        let kept = Mutex::new(Kept { limit, ..Kept::default() });
        Self { shared: Arc::new(Shared { kept, last: watch::Sender::new(0) }) }
    }

    pub(super) fn push(&self, stream: Stream, data: Bytes) {
        let mut kept = self.kept();
        let sequence = *self.shared.last.borrow() + 1;
        kept.bytes += data.len();
        kept.entries.push_back(Entry { sequence, stream, timestamp_ms: now_ms(), data });
        while kept.bytes > kept.limit
            && kept.entries.len() > 1
            && let Some(oldest) = kept.entries.pop_front()
        {
            kept.bytes -= oldest.data.len();
        }
        self.shared.last.send_replace(sequence);
    }

    /// Returns the entries of a stream after a sequence number, or the last `tail` of them.
    pub(super) fn read(&self, stream: Stream, since: u64, tail: Option<usize>) -> Vec<Entry> {
        let kept = self.kept();
        let entries =
            kept.entries.iter().filter(|entry| entry.sequence > since && stream.covers(entry.stream));
        let skipped = tail.map_or(0, |tail| entries.clone().count().saturating_sub(tail));
        entries.skip(skipped).cloned().collect()
    }

    /// Returns at most `count` entries of a stream after a sequence number.
    pub(super) fn next(&self, stream: Stream, since: u64, count: usize) -> Vec<Entry> {
        let kept = self.kept();
        let entries =
            kept.entries.iter().filter(|entry| entry.sequence > since && stream.covers(entry.stream));
        entries.take(count).cloned().collect()
    }

    /// Returns a receiver of the last sequence number.
    pub(super) fn last(&self) -> watch::Receiver<u64> {
        self.shared.last.subscribe()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
