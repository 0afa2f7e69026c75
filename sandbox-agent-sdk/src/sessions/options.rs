//! How sessions are stored.

use std::time::Duration;

use super::replay::ReplayLimits;

/// How a [`StoredClient`](super::StoredClient) stores sessions.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "options do nothing until a client gets them"]
#[non_exhaustive]
pub struct StoreOptions {
    /// How many events of a session may wait to be stored: 8192.
    pub capacity: usize,
    /// How many bytes these may take, about: 32 MiB.
    pub max_bytes: usize,
    /// How many events are stored in one transaction: 512.
    pub batch: usize,
    /// How long events are gathered for one transaction: 20 ms. Longer means fewer transactions, and more events that
    /// the next process has to read from the server if this one is killed.
    pub linger: Duration,
    /// After how many events of the endpoint, of any session, a process stores how far it has read, if it stores nothing
    /// else meanwhile: 256. It has to be well below the server's replay buffer (1,024 on known servers): else a quiet
    /// session of a killed process looks as if the server had dropped events of it.
    pub advance_every: usize,
    /// How long a store that fails is tried again, how long a call waits for it, and how long a session is acquired
    /// again if other processes acquire it at the same time: 30 s.
    pub retry_for: Duration,
    /// How much of its history an agent gets as text when it cannot continue a session.
    pub replay: ReplayLimits,
    /// Whether a suspended session may be resumed by transcript replay: yes.
    pub resume_by_replay: bool,
    /// How long a prompt waits for a turn that another program began, before it cancels that turn: 10 s.
    pub open_turn_timeout: Duration,
}

impl StoreOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            capacity: 8192,
            max_bytes: 32 << 20,
            batch: 512,
            linger: Duration::from_millis(20),
            advance_every: 256,
            retry_for: Duration::from_secs(30),
            replay: ReplayLimits::default(),
            resume_by_replay: true,
            open_turn_timeout: Duration::from_secs(10),
        }
    }

    /// Sets how many events of a session may wait to be stored; at least one.
    pub fn capacity(mut self, events: usize) -> Self {
        self.capacity = events.max(1);
        self
    }

    /// Sets how many bytes the waiting events of a session may take. One event may take more.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets how many events are stored in one transaction; at least one.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events.max(1);
        self
    }

    /// Sets how long events are gathered for one transaction.
    pub fn linger(mut self, time: Duration) -> Self {
        self.linger = time;
        self
    }

    /// Sets after how many events of the endpoint a process stores how far it has read; at least one.
    pub fn advance_every(mut self, events: usize) -> Self {
        self.advance_every = events.max(1);
        self
    }

    /// Sets how long a store that fails is tried again, and how long a call waits for it.
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = time;
        self
    }

    /// Sets how many messages of its history an agent gets at most. Default 50; the newest are sent.
    pub fn replay_max_messages(mut self, messages: usize) -> Self {
        self.replay.max_messages = messages;
        self
    }

    /// Sets how many characters these may have. Default 12,000.
    pub fn replay_max_chars(mut self, chars: usize) -> Self {
        self.replay.max_chars = chars;
        self
    }

    /// Sets whether a suspended session may be resumed by transcript replay.
    pub fn resume_by_replay(mut self, allowed: bool) -> Self {
        self.resume_by_replay = allowed;
        self
    }

    /// Sets how long a prompt waits for a turn that another program began, before it cancels that turn.
    pub fn open_turn_timeout(mut self, time: Duration) -> Self {
        self.open_turn_timeout = time;
        self
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}
