//! A snapshot of a connection.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::{EventId, MessageId, client::Core};

/// A snapshot of a connection for a support request. It contains neither secrets nor message contents.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Diagnostics {
    /// The number of the connection in this process. Every tracing span of the connection has it as `connection`.
    pub connection: u64,
    /// The dialect that the client was built with.
    pub dialect: &'static str,
    /// The state of the connection.
    pub state: String,
    /// The streams of the connection.
    pub streams: Vec<StreamDiagnostics>,
    /// The pending requests.
    pub pending: Vec<PendingRequest>,
    /// The number of sessions with a message that is being sent, or with a turn that has not ended.
    pub outboxes: usize,
    /// The open agent requests, with id and method.
    pub open_agent_requests: Vec<(MessageId, String)>,
    /// The number of messages received on streams.
    pub messages: u64,
    /// The number of times a stream was reopened.
    pub reconnects: u64,
    /// The number of reported gaps.
    pub gaps: u64,
    /// The number of replayed events that were dropped.
    pub repeats: u64,
    /// The number of events that were not messages.
    pub malformed: u64,
    /// The number of ignored events: blank ones, and those of a type other than `message`.
    pub ignored: u64,
    /// The number of messages that were skipped because they exceed the limit.
    pub oversize: u64,
    /// The number of detected server restarts.
    pub restarts: u64,
    /// The number of subscriptions.
    pub subscribers: usize,
    /// The number of running tasks of this connection.
    pub tasks: usize,
}

/// A snapshot of one stream.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct StreamDiagnostics {
    /// The name of the stream.
    pub name: String,
    /// The state of the stream: `opening`, `live`, `down` or `ended`.
    pub state: String,
    /// The id of the last event before any missing event.
    pub last_event_id: Option<EventId>,
    /// What orders responses on the stream, as declared or as learned so far.
    pub barrier: String,
    /// Whether the event ids of the stream are treated as a sequence of numbers.
    pub numbered: bool,
    /// The number of deferred responses, which wait until all earlier messages are delivered.
    pub deferred: usize,
    /// The number of requests whose response can only arrive on this stream.
    pub waiting: usize,
    /// How long ago the last message arrived, in milliseconds.
    pub last_message_age_ms: Option<u64>,
}

/// One pending request.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PendingRequest {
    /// The id of the request.
    pub id: MessageId,
    /// The method of the request.
    pub method: String,
    /// How long the request has been pending, in milliseconds.
    pub age_ms: u64,
    /// Whether only the stream can deliver the response, because the POST was accepted without one, or failed.
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
