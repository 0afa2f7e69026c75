//! How sessions are stored.

use std::time::Duration;

use super::replay::ReplayLimits;

/// When the application gets an event of a stored session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// At once. The event is stored in the background, within milliseconds.
    #[default]
    Background,
    /// After it was stored, so that nothing that a user saw is missing from the store after the process was killed.
    ///
    /// Updates, agent requests and the end of a turn wait for the transaction that stores them. What the store does not
    /// take within [`StoreOptions::retry_for`] is not delivered: [`Event::Lagged`](crate::Event::Lagged) or
    /// [`Missed::Lagged`](crate::update::Missed::Lagged) stands for it, and its turn ends with
    /// [`Error::Store`](crate::Error::Store).
    BeforeDelivery,
}

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
    /// When the application gets an event: at once.
    pub durability: Durability,
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
            durability: Durability::default(),
        }
    }
}

setters! { StoreOptions:
    /// Sets how many events of a session may wait to be stored; at least one.
    capacity(events: usize) => capacity = events.max(1);
    /// Sets how many bytes the waiting events of a session may take. One event may take more.
    max_bytes(bytes: usize) => max_bytes = bytes;
    /// Sets how many events are stored in one transaction; at least one.
    batch(events: usize) => batch = events.max(1);
    /// Sets how long events are gathered for one transaction.
    linger(time: Duration) => linger = time;
    /// Sets after how many events of the endpoint a process stores how far it has read; at least one.
    advance_every(events: usize) => advance_every = events.max(1);
    /// Sets how long a store that fails is tried again, and how long a call waits for it.
    retry_for(time: Duration) => retry_for = time;
    /// Sets how many messages of its history an agent gets at most. Default 50; the newest are sent.
    replay_max_messages(messages: usize) => replay.max_messages = messages;
    /// Sets how many characters these may have. Default 12,000.
    replay_max_chars(chars: usize) => replay.max_chars = chars;
    /// Sets whether a suspended session may be resumed by transcript replay.
    resume_by_replay(allowed: bool) => resume_by_replay = allowed;
    /// Sets how long a prompt waits for a turn that another program began, before it cancels that turn.
    open_turn_timeout(time: Duration) => open_turn_timeout = time;
    /// Sets when the application gets an event.
    durability(durability: Durability) => durability = durability;
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}
