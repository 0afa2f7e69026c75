//! A snapshot of a connection.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::{EventId, MessageId, client::Core};

/// A snapshot of a connection for a support request. It has neither secrets nor content.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Diagnostics {
    /// The number of the connection in this process. Every tracing span of the connection has it as `connection`.
    pub connection: u64,
    /// The dialect that the client was built with.
    pub dialect: &'static str,
    /// The state of the connection.
    pub state: String,
    /// The streams.
    pub streams: Vec<StreamDiagnostics>,
    /// Pending requests.
    pub pending: Vec<PendingRequest>,
    /// Sessions with a message that is being sent, or with a turn whose end was not seen.
    pub outboxes: usize,
    /// Open agent requests: id and method.
    pub open_agent_requests: Vec<(MessageId, String)>,
    /// Messages received on streams.
    pub messages: u64,
    /// How often a stream was reopened.
    pub reconnects: u64,
    /// Gaps that were reported.
    pub gaps: u64,
    /// Replayed events that were dropped.
    pub repeats: u64,
    /// Events that were not messages.
    pub malformed: u64,
    /// Events that were ignored as the event stream format requires: of another type than `message`, or blank.
    pub ignored: u64,
    /// Messages over the limit that were skipped.
    pub oversize: u64,
    /// How often the server restarted.
    pub restarts: u64,
    /// Subscriptions that are being read.
    pub subscribers: usize,
    /// Tasks that run for this connection.
    pub tasks: usize,
}

/// One stream at one moment.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StreamDiagnostics {
    /// Which stream.
    pub name: String,
    /// The state of the stream: `opening`, `live`, `down` or `ended`.
    pub state: String,
    /// The last event up to which nothing is missing.
    pub last_event_id: Option<EventId>,
    /// What orders responses on it, as declared or as learnt so far.
    pub barrier: String,
    /// Whether its event ids are treated as a sequence of numbers.
    pub numbered: bool,
    /// Deferred responses: they wait until everything before them was delivered.
    pub deferred: usize,
    /// Requests whose response can only arrive on this stream.
    pub waiting: usize,
    /// How long ago the last message arrived.
    pub last_message_age_ms: Option<u64>,
}

/// One pending request.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PendingRequest {
    /// Its id.
    pub id: MessageId,
    /// Its method.
    pub method: String,
    /// How long it has been pending.
    pub age_ms: u64,
    /// Whether only the stream can deliver the response: its POST was accepted without one, or failed.
    pub unconfirmed: bool,
}

impl Diagnostics {
    pub(crate) fn of(core: &Core) -> Self {
        let streams = core.links.all().into_iter().map(|link| {
            let last_event_id = link.last_event_id();
            let ordered = link.core();
            StreamDiagnostics {
                name: link.source().to_string(),
                state: link.state().name().to_owned(),
                last_event_id,
                barrier: format!("{:?}", ordered.barrier()).to_lowercase(),
                numbered: ordered.identity().is_sequence(),
                deferred: ordered.deferred(),
                waiting: ordered.waiting(),
                last_message_age_ms: link.last_message().map(|at| millis(at.elapsed())),
            }
        });
        let pending = core
            .pending()
            .iter()
            .map(|(number, waiter)| PendingRequest {
                id: core.ids.id(number),
                method: waiter.method.to_string(),
                age_ms: millis(waiter.since.elapsed()),
                unconfirmed: waiter.unconfirmed,
            })
            .collect();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            connection: core.spans.connection,
            dialect: core.options.dialect.name(),
            state: core.state().to_string(),
            streams: streams.collect(),
            pending,
            outboxes: core.outbox.len(),
            open_agent_requests: core.calls.list(),
            messages: count(&core.stats.messages),
            reconnects: count(&core.stats.reconnects),
            gaps: count(&core.stats.gaps),
            repeats: count(&core.stats.repeats),
            malformed: count(&core.stats.malformed),
            ignored: count(&core.stats.ignored),
            oversize: count(&core.stats.oversize),
            restarts: count(&core.stats.restarts),
            subscribers: core.hub.subscriber_count(),
            tasks: core.tasks.len(),
        }
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
