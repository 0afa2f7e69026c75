//! The options of stored sessions.

use std::time::Duration;

use super::replay::ReplayLimits;
use crate::thread::ResultRules;

/// When the application receives an event of a stored session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Immediately. The event is stored in the background, within milliseconds.
    #[default]
    Background,
    /// After the event was stored. Everything that a user saw is then in the store, even if the process is killed.
    ///
    /// Updates, agent requests and the end of a turn wait for the transaction that stores them. If an event cannot be
    /// stored within [`StoreOptions::retry_for`], the application receives [`Event::Lagged`](crate::Event::Lagged) or
    /// [`Missed::Lagged`](crate::update::Missed::Lagged) instead of the event, and the turn ends with
    /// [`Error::AfterTurn`](crate::Error::AfterTurn).
    BeforeDelivery,
}

/// The options of a [`StoredClient`](super::StoredClient).
#[derive(Debug, Clone, PartialEq)]
#[must_use = "options do nothing until they are passed to a client"]
#[non_exhaustive]
pub struct StoreOptions {
    /// How many events of a session may wait to be stored. Default 8192.
    pub capacity: usize,
    /// The approximate maximum size of these waiting events, in bytes. Default 32 MiB.
    pub max_bytes: usize,
    /// How many events are stored in one transaction. Default 512.
    pub batch: usize,
    /// How long events are collected for one transaction. Default 20 ms. A longer time means fewer transactions, but
    /// if this process is killed, the next one has to read more events from the server again.
    pub linger: Duration,
    /// After how many events of the endpoint an otherwise idle process stores its read position. Events of all sessions
    /// count. Default 256. The value must be well below the size of the server's replay buffer (1,024 on known
    /// servers). Otherwise, after a process was killed, a gap is stored in sessions that had no events.
    pub advance_every: usize,
    /// How long a failing store is retried. Default 30 s.
    ///
    /// A call waits at most this long for the store. Acquiring a session is retried this long if other processes
    /// acquire it at the same time.
    pub retry_for: Duration,
    /// The limits of transcript replay, for an agent that cannot continue a session.
    pub replay: ReplayLimits,
    /// Whether a suspended session may be resumed by transcript replay. Default true.
    pub resume_by_replay: bool,
    /// How long a prompt waits for a turn of another process before it cancels that turn. Default 10 s.
    pub open_turn_timeout: Duration,
    /// How long a turn that another process started may be silent after a gap, which may contain the response to its
    /// prompt. Default 30 s. Then the turn is cancelled, and stored as interrupted if it does not stop.
    pub unconfirmed_timeout: Duration,
    /// How long a session whose agent has ended, or whose connection is gone, is held in memory. Default 10 minutes.
    /// Servers may report updates and details of the end until then. The next call continues the session.
    pub ended_timeout: Duration,
    /// The name of the server in records. Default: its URL.
    ///
    /// Processes that reach one server under different URLs must use the same name. Otherwise they treat it as different
    /// servers: they store a running turn as interrupted, and load sessions that the agent still has. Sessions that were
    /// stored under another name are treated as sessions of another server, too.
    pub server_name: Option<String>,
    /// When the application receives an event. Default [`Durability::Background`].
    pub durability: Durability,
    /// The rules that classify the result of a turn. A terminal result moves the session to the status `error`.
    pub result_rules: ResultRules,
}

impl StoreOptions {
    /// Creates options with the default values.
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
            unconfirmed_timeout: Duration::from_secs(30),
            ended_timeout: Duration::from_secs(600),
            server_name: None,
            durability: Durability::default(),
            result_rules: ResultRules::default(),
        }
    }
}

setters! { StoreOptions:
    /// Sets how many events of a session may wait to be stored; at least one.
    capacity(events: usize) => capacity = events.max(1);
    /// Sets how many bytes the waiting events of a session may take. A single event may be larger.
    max_bytes(bytes: usize) => max_bytes = bytes;
    /// Sets how many events are stored in one transaction; at least one.
    batch(events: usize) => batch = events.max(1);
    /// Sets how long events are collected for one transaction.
    linger(time: Duration) => linger = time;
    /// Sets after how many events of the endpoint a process stores its read position; at least one.
    advance_every(events: usize) => advance_every = events.max(1);
    /// Sets how long a failing store is retried, and how long a call waits for it.
    retry_for(time: Duration) => retry_for = time;
    /// Sets how many messages transcript replay sends at most. Default 50. The newest messages are sent.
    replay_max_messages(messages: usize) => replay.max_messages = messages;
    /// Sets how many characters transcript replay sends at most. Default 12,000.
    replay_max_chars(chars: usize) => replay.max_chars = chars;
    /// Sets whether a suspended session may be resumed by transcript replay.
    resume_by_replay(allowed: bool) => resume_by_replay = allowed;
    /// Sets how long a prompt waits for a turn of another process before it cancels that turn.
    open_turn_timeout(time: Duration) => open_turn_timeout = time;
    /// Sets how long a turn that another process started may be silent after a gap.
    unconfirmed_timeout(time: Duration) => unconfirmed_timeout = time;
    /// Sets how long a session whose agent has ended, or whose connection is gone, is held in memory.
    ended_timeout(time: Duration) => ended_timeout = time;
    /// Sets the name of the server in records, which is used instead of its URL.
    server_name(name: impl Into<String>) => server_name = Some(name.into());
    /// Sets when the application receives an event.
    durability(durability: Durability) => durability = durability;
    /// Sets the rules that classify the result of a turn, for example the severity of further subtypes.
    result_rules(rules: ResultRules) => result_rules = rules;
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}
