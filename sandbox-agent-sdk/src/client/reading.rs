//! Reads a part of the server's stream again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use acp_http_client as wire;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::connection::Connection;
use super::event_loop::malformed_event;
use super::hub::ended_event;
use super::lifecycle::Inner;
use super::names::{AGENT_EXITED, SESSION_UPDATE};
use super::stream::{LogEntry, LogRecord, StreamPosition};
use crate::client::limits::{BodyKind, Limits};
use crate::error::{AgentUnparsed, RpcError};
use crate::event::{Gap, Origin};
use crate::termination::TerminationReport;
use crate::{Error, Event, ServerKind, Update};

/// Reads the server's stream after a position, over a separate HTTP stream.
///
/// It returns everything that the server's replay buffer has after the position: updates, agent requests and
/// responses of all sessions and clients. If the position belongs to another incarnation of the server,
/// [`Event::ServerRestarted`] comes first, and the entries start at the beginning of the replay buffer. If the server
/// no longer has some events, a [`LogRecord::Missing`] takes their place.
#[must_use = "nothing is read before the first call of `next`"]
pub struct StreamReader {
    state: State,
    from: StreamPosition,
    to: Option<u64>,
    /// Whether the event at the start position was checked.
    is_verified: bool,
    /// Whether that event is the expected one.
    is_same: Option<bool>,
}

enum State {
    Opening(BoxFuture<'static, Result<Opened, Error>>),
    Reading(Box<Opened>),
    /// Everything was read. The stream stays open for the agent requests that were read from it.
    Read(Box<Opened>),
    Failed,
}

/// A separate stream, which responds to nothing.
struct Opened {
    wire: wire::AcpHttpClient,
    events: wire::Events,
    requests: wire::AgentRequests,
    /// Resolves when everything was read that the server had when the stream was opened; `None` afterwards.
    probe: Option<Probe>,
    /// Whether the one agent of the endpoint has ended, so that nothing responds to the probe.
    has_ended: bool,
    limits: Limits,
    incarnation: u64,
    /// The entries that were read and not returned yet.
    pending: Option<LogEntry>,
    /// The silence after which everything counts as read, on an endpoint without an agent.
    quiet: Duration,
    /// Agent requests that were read. They can be offered or answered while the stream is open.
    asked: Vec<(wire::AgentRequest, wire::Responder)>,
    connection: Arc<Connection>,
}

impl StreamReader {
    pub(super) fn new(inner: Arc<Inner>, from: StreamPosition, to: Option<u64>) -> Self {
        Self::open(inner, None, from, to)
    }

    #[cfg(feature = "sessions")]
    /// Reads another endpoint of a released server.
    pub(super) fn at(inner: Arc<Inner>, path: String, from: StreamPosition) -> Self {
        Self::open(inner, Some(path), from, None)
    }

    fn open(inner: Arc<Inner>, path: Option<String>, from: StreamPosition, to: Option<u64>) -> Self {
        let opening = async move {
            let connection = inner.connection().await?;
            Opened::new(connection, path.as_deref(), from)
        };
        Self {
            state: State::Opening(Box::pin(opening)),
            from,
            to,
            is_verified: from.offset == 0,
            is_same: None,
        }
    }

    /// Returns the next entry, or `None` at the end. The end is the event with the number `to`, or the last event
    /// that the server had when reading began.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the server does not number its events. [`Error::NotConnected`] without a connection.
    /// After an error, it returns `None`.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn next(&mut self) -> Option<Result<LogEntry, Error>> {
        loop {
            match &mut self.state {
                State::Opening(opening) => match opening.await {
                    Ok(opened) => self.state = State::Reading(Box::new(opened)),
                    Err(error) => {
                        self.state = State::Failed;
                        return Some(Err(error));
                    }
                },
                State::Reading(opened) => {
                    let entry = match opened.next().await {
                        Ok(Some(entry)) => entry,
                        Ok(None) => {
                            self.finish();
                            return None;
                        }
                        Err(error) => {
                            self.state = State::Failed;
                            return Some(Err(error));
                        }
                    };
                    if let Some(entry) = self.checked(entry) {
                        return Some(Ok(entry));
                    }
                }
                State::Read(_) | State::Failed => return None,
            }
        }
    }

    /// Returns whether the event at the start position is unchanged. If it is, the server has not restarted since it
    /// sent that event. Returns `None` if the server no longer has the event.
    #[must_use]
    pub fn is_same_stream(&self) -> Option<bool> {
        self.is_same
    }

    /// Routes an agent request that was read to the handlers of this client. Returns whether the request was read.
    ///
    /// Use it for a session whose owner has gone. The reader must stay alive until the request is answered.
    pub async fn offer(&mut self, request_id: &str) -> bool {
        let Some(opened) = self.opened() else { return false };
        let Some((request, responder)) = opened.take_request(request_id) else { return false };
        let connection = Arc::clone(&opened.connection);
        connection.serve(request, responder).await;
        true
    }

    /// Responds to an agent request that was read. Returns whether the request was read and has no response yet.
    pub fn respond(&mut self, request_id: &str, result: &Value) -> bool {
        let request = self.opened().and_then(|opened| opened.take_request(request_id));
        request.is_some_and(|(_, responder)| responder.respond(result))
    }

    #[cfg(feature = "sessions")]
    /// Returns the entries after the end that [`next`](Self::next) has reached; `None` once the stream has ended.
    pub(crate) async fn follow(&mut self) -> Option<LogEntry> {
        let State::Read(opened) = &mut self.state else { return None };
        loop {
            let event = opened.events.recv().await?;
            opened.keep_requests();
            if let Some(entry) = opened.read(event) {
                return Some(entry);
            }
        }
    }

    #[cfg(feature = "sessions")]
    /// Answers an agent request that was read as cancelled.
    pub(crate) fn cancel_request(&mut self, request_id: &str) {
        // Dropping the responder cancels the request.
        drop(self.opened().and_then(|opened| opened.take_request(request_id)));
    }

    #[cfg(feature = "sessions")]
    /// Cancels the turn of a session on the endpoint that is read.
    pub(crate) async fn cancel_turn(&mut self, session: &str) -> Result<(), Error> {
        let Some(opened) = self.opened() else { return Err(Error::NotConnected) };
        let notification = wire::schema::v1::CancelNotification::new(session.to_owned());
        opened.wire.cancel(notification).await.map_err(Error::from_wire)
    }

    fn opened(&mut self) -> Option<&mut Opened> {
        match &mut self.state {
            State::Reading(opened) | State::Read(opened) => Some(opened),
            State::Opening(_) | State::Failed => None,
        }
    }

    fn finish(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Failed) {
            State::Reading(opened) => State::Read(opened),
            state => state,
        };
    }

    /// Checks that the stream is the expected one, and ends after the last position.
    fn checked(&mut self, entry: LogEntry) -> Option<LogEntry> {
        let entry = match (&entry.record, entry.position) {
            (LogRecord::Missing(gap), _) if !self.is_verified => {
                // The event at the position is gone too, and whether it was the same cannot be known.
                self.is_verified = true;
                let from = gap.from.max(self.from.offset.saturating_add(1));
                let missing = LogRecord::Missing(Gap { from, to: gap.to });
                (from <= gap.to).then(|| LogEntry::new(missing, None, Origin::Replayed))?
            }
            (LogRecord::Event(Event::ServerRestarted), _) => {
                (self.is_verified, self.is_same) = (true, Some(false));
                entry
            }
            (_, Some(position)) if !self.is_verified => {
                self.is_verified = true;
                if position.is_same_event(&self.from) {
                    self.is_same = Some(true);
                    return None;
                }
                if position.offset > self.from.offset {
                    // The server sends the events after the position, as requested.
                    entry
                } else {
                    self.is_same = Some(false);
                    let State::Reading(opened) = &mut self.state else { return None };
                    opened.pending = Some(entry);
                    LogEntry::of_event(&Event::ServerRestarted, None)
                }
            }
            _ => entry,
        };
        if let (LogRecord::Missing(gap), Some(to)) = (&entry.record, self.to)
            && gap.to >= to
        {
            self.finish();
            let missing = LogRecord::Missing(Gap { from: gap.from, to });
            return (gap.from <= to).then(|| LogEntry::new(missing, None, Origin::Replayed));
        }
        let offset = entry.position.map(|position| position.offset);
        match (offset, self.to) {
            (Some(offset), Some(to)) if offset > to => {
                self.finish();
                None
            }
            (Some(offset), Some(to)) if offset == to => {
                self.finish();
                Some(entry)
            }
            _ => Some(entry),
        }
    }
}

impl Opened {
    fn new(connection: Arc<Connection>, path: Option<&str>, from: StreamPosition) -> Result<Self, Error> {
        if connection.kind() == ServerKind::ConnectionId {
            return Err(Error::Unsupported { method: "reading the stream".to_owned() });
        }
        // The event at the position comes first, so that it can be compared.
        let (builder, requests) = connection.reader(path, from.offset.saturating_sub(1)).agent_requests();
        let wire = builder.build().map_err(Error::from_wire)?;
        let events = wire.events().untyped();
        Ok(Self {
            probe: Some(probe(&wire)),
            wire,
            events,
            requests,
            has_ended: false,
            limits: connection.options.limits.clone(),
            incarnation: connection.hub.incarnation(),
            pending: None,
            quiet: wire::Timeouts::default().backlog_quiet,
            asked: Vec::new(),
            connection,
        })
    }

    async fn next(&mut self) -> Result<Option<LogEntry>, Error> {
        if let Some(entry) = self.pending.take() {
            return Ok(Some(entry));
        }
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

    /// Why the stream has ended before it was read to its end.
    fn wire_ended(&self) -> Error {
        match self.wire.state().end_reason() {
            Some(wire::EndReason::StreamRefused(_)) => {
                Error::Unsupported { method: "reading the stream".to_owned() }
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

    /// A response whose order is not verified ends the reading only if the stream is open, as on a server that does
    /// not echo responses. Otherwise events before it may be missing.
    fn check_order(&self, order: wire::Order) -> Result<(), Error> {
        let is_open = matches!(self.wire.state(), wire::ConnectionState::Live);
        if order == wire::Order::Verified || is_open {
            return Ok(());
        }
        let source = Arc::new(std::io::Error::other("the stream was interrupted while it was read"));
        Err(Error::ConnectionLost { what: "reading the stream".to_owned(), source })
    }

    /// Keeps the latest requests, within the number that a connection may have open.
    fn keep_requests(&mut self) {
        while let Some(request) = self.requests.try_recv() {
            if self.asked.len() >= self.limits.open_requests.max(1) {
                // The connection received the request too and serves it.
                let _ = self.asked.remove(0).1.ignore();
            }
            self.asked.push(request);
        }
    }

    fn take_request(&mut self, id: &str) -> Option<(wire::AgentRequest, wire::Responder)> {
        self.keep_requests();
        let position = self.asked.iter().rposition(|(request, _)| id_text(request.id()) == id)?;
        Some(self.asked.remove(position))
    }

    fn read(&self, event: wire::Event) -> Option<LogEntry> {
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
        let method = notification.method.as_str();
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

/// The record of an agent request.
pub(super) fn request_record(
    limits: &Limits,
    id: &wire::MessageId,
    request: &wire::Notification,
) -> LogRecord {
    let admitted = limits.check(BodyKind::Message, &request.method, request.params.as_bytes());
    match admitted
        .map_err(|error| error.to_string())
        .and_then(|_| request.params.parse().map_err(|error| error.to_string()))
    {
        Ok(params) => {
            let (request_id, method) = (id_text(id), request.method.clone());
            LogRecord::AgentRequest { request_id, method, params }
        }
        Err(reason) => LogRecord::Event(Event::Malformed { reason, start: String::new(), lost: true }),
    }
}

/// The record of a response to a request of another client. One that cannot be decoded is an error: the request has ended.
pub(super) fn response_record(limits: &Limits, id: &wire::MessageId, raw: &wire::Json) -> LogRecord {
    let undecoded = |reason: String| {
        RpcError::new(RpcError::INTERNAL_ERROR, format!("the response cannot be decoded: {reason}"))
    };
    let admitted = limits.check(BodyKind::Message, "response", raw.as_bytes());
    let message = admitted
        .map_err(|error| undecoded(error.to_string()))
        .and_then(|_| raw.parse::<Value>().map_err(|error| undecoded(error.to_string())));
    let result = message.and_then(|mut message| {
        match message.get_mut("error").map(Value::take).filter(|error| !error.is_null()) {
            Some(error) => {
                Err(serde_json::from_value(error).unwrap_or_else(|error| undecoded(error.to_string())))
            }
            None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
        }
    });
    LogRecord::Response { request_id: id_text(id), result }
}

/// The id of a request as text.
pub(super) fn id_text(id: &wire::MessageId) -> String {
    match wire::json::from_str(id.as_json()) {
        Ok(Value::String(id)) => id,
        _ => id.as_json().to_owned(),
    }
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader").field("from", &self.from).field("to", &self.to).finish_non_exhaustive()
    }
}
