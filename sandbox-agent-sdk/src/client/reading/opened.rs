//! A separate stream of the server, which responds to no agent request.

use std::sync::Arc;
use std::time::Duration;

use acp_http_client as wire;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::records::{id_text, request_record, response_record};
use crate::client::connection::Connection;
use crate::client::deadline::deadline_after;
use crate::client::event_loop::malformed_event;
use crate::client::hub::ended_event;
use crate::client::limits::{BodyKind, Limits};
use crate::client::names::{AGENT_EXITED, SESSION_UPDATE};
use crate::client::network::check_runtime;
use crate::client::stream::{LogEntry, LogRecord, StreamPosition};
use crate::error::AgentUnparsed;
use crate::event::{Gap, Origin};
use crate::termination::TerminationReport;
use crate::{Error, Event, ServerKind, Update};

/// A separate stream, which responds to no agent request.
pub(super) struct Opened {
    pub(super) wire: wire::AcpHttpClient,
    pub(super) events: wire::Events,
    requests: wire::AgentRequests,
    /// Resolves when everything was read that the server had when the stream was opened; `None` afterwards.
    probe: Option<Probe>,
    /// When to stop repeating the probe.
    until: Instant,
    /// Whether the one agent of the endpoint has ended, so that nothing responds to the probe.
    has_ended: bool,
    limits: Limits,
    incarnation: u64,
    /// The silence after which everything counts as read, on an endpoint without an agent.
    quiet: Duration,
    /// Agent requests that were read. They can be offered, or get a response, while the stream is open.
    asked: Vec<(wire::AgentRequest, wire::Responder)>,
    pub(super) connection: Arc<Connection>,
    /// The path of another endpoint that is read.
    path: Option<String>,
}

impl Opened {
    pub(super) fn new(
        connection: Arc<Connection>,
        path: Option<String>,
        from: StreamPosition,
    ) -> Result<Self, Error> {
        if connection.kind() == ServerKind::ConnectionId {
            return Err(Error::Unsupported { method: "read the stream".to_owned() });
        }
        // The event at the position comes first, so that it can be compared.
        let (builder, requests) =
            connection.reader(path.as_deref(), from.offset.saturating_sub(1)).agent_requests();
        let wire = builder.build().map_err(Error::from_wire)?;
        let events = wire.events().untyped();
        Ok(Self {
            probe: Some(probe(&wire)),
            until: deadline_after(wire::Timeouts::default().order_limit),
            wire,
            events,
            requests,
            has_ended: false,
            limits: connection.options.limits.clone(),
            incarnation: connection.hub.incarnation(),
            quiet: wire::Timeouts::default().backlog_quiet,
            asked: Vec::new(),
            connection,
            path,
        })
    }

    /// Opens the stream again, at its beginning.
    pub(super) fn reopened(&self) -> Result<Self, Error> {
        Self::new(Arc::clone(&self.connection), self.path.clone(), StreamPosition::beginning())
    }

    /// Whether the response to a request on the stream has shown that everything was read.
    pub(super) fn is_read_to_probe(&self) -> bool {
        self.probe.is_none() && !self.has_ended
    }

    pub(super) async fn next(&mut self) -> Result<Option<LogEntry>, Error> {
        check_runtime()?;
        loop {
            let event = match &mut self.probe {
                // The server sends its buffer at once, and nothing follows.
                _ if self.has_ended => match tokio::time::timeout(self.quiet, self.events.recv()).await {
                    Ok(Some(event)) => event,
                    Ok(None) | Err(_) => return Ok(None),
                },
                Some(probe) => tokio::select! {
                    biased;
                    // A stream that ends before the probe's response is not read to its end.
                    event = self.events.recv() => event.ok_or_else(|| self.wire_ended())?,
                    probed = probe => {
                        self.probe = None;
                        match probed {
                            Ok(order) => self.check_order(order)?,
                            Err(error) => self.probe_failed(error)?,
                        }
                        continue;
                    }
                },
                None => match self.events.try_recv() {
                    Some(event) => event,
                    None => return Ok(None),
                },
            };
            self.keep_requests();
            match &event {
                wire::Event::Notification(notification) if notification.method == AGENT_EXITED => {
                    self.has_ended |= self.connection.kind() == ServerKind::PerAgent;
                }
                // The response may have been lost with the stream, or with the server.
                wire::Event::Reconnected { .. } if self.probe.is_some() => {
                    self.probe = Some(probe(&self.wire))
                }
                _ => {}
            }
            if let Some(entry) = self.read(event) {
                return Ok(Some(entry));
            }
        }
    }

    /// Why the stream ended before all of it was read.
    fn wire_ended(&self) -> Error {
        match self.wire.state().end_reason() {
            Some(wire::EndReason::StreamRefused(_)) => {
                Error::Unsupported { method: "read the stream".to_owned() }
            }
            _ => Error::NotConnected,
        }
    }

    /// A released server refuses the probe if its agent has ended. This waits for the notification of the end on the
    /// stream.
    fn probe_failed(&mut self, error: Error) -> Result<(), Error> {
        let status = error.http().map(|http| http.status);
        if self.connection.kind() != ServerKind::PerAgent || !matches!(status, Some(500 | 502)) {
            return Err(error);
        }
        let limit = wire::Timeouts::default().stream_open;
        self.probe = Some(Box::pin(async move {
            tokio::time::sleep(limit).await;
            Err(error)
        }));
        Ok(())
    }

    /// A response whose order is not verified ends the reading only if the stream is open and the server does not echo
    /// responses. Otherwise events before it may be missing: where the server echoes responses, the probe is repeated.
    fn check_order(&mut self, order: wire::Order) -> Result<(), Error> {
        let is_open = matches!(self.wire.state(), wire::ConnectionState::Live);
        let is_echoing = self.connection.kind() == ServerKind::Shared;
        if order == wire::Order::Verified || (is_open && !is_echoing) {
            return Ok(());
        }
        if is_open && Instant::now() < self.until {
            self.probe = Some(probe(&self.wire));
            return Ok(());
        }
        let source = Arc::new(std::io::Error::other("the stream was interrupted while it was read"));
        Err(Error::ConnectionLost { what: "read the stream".to_owned(), source })
    }

    /// Keeps the latest requests, within the number that a connection may have open.
    pub(super) fn keep_requests(&mut self) {
        while let Some(request) = self.requests.try_recv() {
            if self.asked.len() >= self.limits.open_requests.max(1) {
                // The connection received the request too and serves it.
                let _ = self.asked.remove(0).1.ignore();
            }
            self.asked.push(request);
        }
    }

    pub(super) fn take_request(&mut self, id: &str) -> Option<(wire::AgentRequest, wire::Responder)> {
        self.keep_requests();
        let position = self.asked.iter().rposition(|(request, _)| id_text(request.id()) == id)?;
        Some(self.asked.remove(position))
    }

    pub(super) fn read(&self, event: wire::Event) -> Option<LogEntry> {
        let (record, position) = match event {
            wire::Event::Notification(notification) => {
                let id = notification.meta.event_id.as_ref();
                let position = self.position(id, notification.params.as_bytes());
                (LogRecord::Event(self.notification(&notification)), position)
            }
            wire::Event::AgentRequest { id, request } => {
                let position = self.position(request.meta.event_id.as_ref(), request.params.as_bytes());
                (request_record(&self.limits, &id, &request), position)
            }
            wire::Event::UnmatchedResponse { id, raw, event_id, .. } => {
                let position = self.position(event_id.as_ref(), raw.as_bytes());
                (response_record(&self.limits, &id, &raw), position)
            }
            wire::Event::Gap { from, to, .. } => (LogRecord::Missing(Gap { from, to }), None),
            wire::Event::Restarted { .. } => (LogRecord::Event(Event::ServerRestarted), None),
            wire::Event::Lagged(count) => (LogRecord::Event(Event::Lagged(count)), None),
            wire::Event::Malformed(malformed) => (LogRecord::Event(malformed_event(malformed)), None),
            wire::Event::TooLarge { error } => (LogRecord::Event(too_large(&Error::from_wire(error))), None),
            _ => return None,
        };
        Some(LogEntry::new(record, position, Origin::Replayed))
    }

    fn notification(&self, notification: &wire::Notification) -> Event {
        let origin = Origin::Replayed;
        let method = &*notification.method;
        if method == SESSION_UPDATE {
            return Event::Update(Update::from_json(&notification.params, origin));
        }
        if let Err(error) = self.limits.check(BodyKind::Message, method, notification.params.as_bytes()) {
            return too_large(&error);
        }
        let params: Value = match notification.params.parse() {
            Ok(params) => params,
            Err(error) => {
                let start = notification.params.as_str().chars().take(256).collect();
                return Event::Malformed { reason: error.to_string(), start, lost: true };
            }
        };
        let ended = |params: &Value| {
            let report = TerminationReport::from_session_ended(params)?;
            let id = report.session_id()?.to_owned();
            Some(ended_event(&id, &report.into_info(), origin))
        };
        match method {
            "_sandboxagent/agent/unparsed" | "_adapter/invalid_stdout" => {
                Event::AgentUnparsed { unparsed: AgentUnparsed::from_params(&params), origin }
            }
            "_sandboxagent/session/ended" => match ended(&params) {
                Some(event) => event,
                None => Event::Other { method: method.to_owned(), params, origin },
            },
            _ => Event::Other { method: method.to_owned(), params, origin },
        }
    }

    fn position(&self, id: Option<&wire::EventId>, content: &[u8]) -> Option<StreamPosition> {
        let offset = id?.as_number()?;
        Some(StreamPosition::of(self.incarnation, offset, content))
    }
}

/// On a shared endpoint the reader responds to nothing, not even when it is dropped.
impl Drop for Opened {
    fn drop(&mut self) {
        self.wire.control().end(Error::NotConnected);
        let unread = std::iter::from_fn(|| self.requests.try_recv());
        for (_, responder) in self.asked.drain(..).chain(unread) {
            // The connection received the request too and serves it.
            let _ = responder.ignore();
        }
    }
}

/// A request whose response follows everything that the server had before. Every server responds to it, at least with
/// an error.
type Probe = BoxFuture<'static, Result<wire::Order, Error>>;

fn probe(wire: &wire::AcpHttpClient) -> Probe {
    let probe = wire.request_raw("session/list", &json!({})).ordered(true).cancel_on_drop(false);
    Box::pin(async move {
        // Only its position in the stream matters, not its content.
        probe.settled().await.map(|(_, order)| order).map_err(Error::from_wire)
    })
}

fn too_large(error: &Error) -> Event {
    Event::Malformed { reason: error.to_string(), start: String::new(), lost: true }
}
