//! How a recorder works.

use std::time::Duration;

use tokio::time::Instant;

/// How a [`Recorder`](super::Recorder) works.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a recorder is started with them"]
#[non_exhaustive]
pub struct RecorderOptions {
    /// How many events may wait for the store. 8192 by default.
    pub capacity: usize,
    /// How many bytes these, and those that are being written, may take, about. 32 MiB by default.
    pub bytes: usize,
    /// How many events are written at once. 512 by default.
    pub batch: usize,
    /// How long a store that fails is tried again before a batch is given up. 30 s by default.
    pub patience: Duration,
}

impl RecorderOptions {
    /// Sets how many events may wait; at least one.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events.max(1);
        self
    }

    /// Sets how many bytes events may take until they are stored. One event at a time may take more.
    pub fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets how many events are written at once; at least one.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events.max(1);
        self
    }

    /// Sets how long a store that fails is tried again.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self { capacity: 8192, bytes: 32 << 20, batch: 512, patience: Duration::from_secs(30) }
    }
}

/// When somebody's patience ends that begins now. One without end ends in a year.
pub(crate) fn deadline_after(patience: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + patience.min(LONGEST)
}
