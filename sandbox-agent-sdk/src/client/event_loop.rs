//! The event loop of a connection: the task that turns messages into events.

use std::collections::VecDeque;
use std::sync::Arc;

use acp_http_client as wire;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use super::hub::{Hub, Numbered, ended_event};
use super::names::{AGENT_EXITED, SESSION_UPDATE};
use super::reading::{request_record, response_record};
use super::router::RequestRouter;
use super::stream::StreamPosition;
use super::tasks::Tasks;
use crate::client::event::{Gap, Origin};
use crate::client::limits::BodyKind;
use crate::convert::claude::{CLAUDE_MESSAGE, interrupted_session, retry_notice};
use crate::convert::gemini::{mode_report, reported_mode};
use crate::convert::partial_json::readable_members;
use crate::convert::termination::TerminationReport;
use crate::convert::update::Missed;
use crate::error::{AgentUnparsed, LostReason};
use crate::requests::ELICITATION_COMPLETE;
use crate::{ConnectionState, Error, Event, TerminationInfo, Update, UpdateKind};

mod exit;
mod shared;

pub(super) use exit::Exit;
use shared::OUTPUT_CHARS;
pub(super) use shared::Shared;

/// How many commands may wait for the event loop.
pub(super) const COMMANDS: usize = 64;
/// How many events are read before commands and timers are checked again.
const EVENTS: usize = 64;
/// How much of an undecodable message is shown.
const MALFORMED_CHARS: usize = 256;

/// A command to the event loop.
pub(super) enum Command {
    /// Runs after everything that has arrived was published and routed, and before anything later.
    InOrder(Box<dyn FnOnce() + Send>),
    /// Completes the report of an agent's end now, if there is one.
    Settle(oneshot::Sender<()>),
    /// Routes an agent request that another reader of the stream received.
    Serve(Box<(wire::AgentRequest, wire::Responder)>),
    /// Reports a sign that the agent has ended, and responds with how it ended.
    Report(Box<TerminationReport>, oneshot::Sender<TerminationInfo>),
}

/// Reads everything from a connection, in order, and publishes it.
///
/// There is one such task, so events have one order, an end is published once, and a call that waits at the barrier
/// knows that everything before its response was delivered.
pub(super) struct EventLoop {
    pub(super) wire: wire::AcpHttpClient,
    pub(super) events: wire::Events,
    pub(super) requests: wire::AgentRequests,
    /// The agent requests whose events follow.
    pub(super) queued: VecDeque<(wire::AgentRequest, wire::Responder)>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
    pub(super) router: RequestRouter,
    /// How long the details of the agent's end may take.
    pub(super) termination_timeout: Duration,
    /// How long the details of the agent's end may take after the pending calls have failed.
    pub(super) late_details: Duration,
    pub(super) late: Tasks,
    /// How long updates may follow the notification of the agent's end.
    pub(super) trailing: Duration,
    pub(super) exit: Exit,
    /// Whether the stream is lost and not reopened yet.
    pub(super) is_lost: bool,
}

impl EventLoop {
    pub(super) async fn run(mut self) {
        let mut reading = true;
        loop {
            let deadline = self.exit.deadline;
            tokio::select! {
                // Events have the lowest priority, so that a flood of them delays nothing else.
                biased;
                command = self.commands.recv() => {
                    let Some(command) = command else { return };
                    // It follows only the events that have already arrived.
                    for _ in 0..self.events.queued() {
                        let Some(event) = self.events.try_recv() else { break };
                        self.take(event);
                        tokio::task::coop::consume_budget().await;
                    }
                    self.run_command(command);
                }
                () = wait_until(deadline) => self.finish_exit(),
                never = self.router.maintain() => match never {},
                event = self.events.recv(), if reading => match event {
                    Some(event) => {
                        self.take(event);
                        // More events often follow at once. They are read without the cost of a wait.
                        for _ in 1..EVENTS {
                            let Some(event) = self.events.try_recv() else { break };
                            self.take(event);
                            tokio::task::coop::consume_budget().await;
                        }
                    }
                    None => {
                        reading = false;
                        self.route_queued();
                    }
                },
            }
        }
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::InOrder(run) => run(),
            Command::Settle(done) => {
                self.finish_exit();
                // The caller may be gone.
                let _ = done.send(());
            }
            Command::Serve(request) => self.router.route_ours(&request.0, request.1),
            Command::Report(report, reply) => self.report(*report, Some(reply)),
        }
    }

    fn take(&mut self, event: wire::Event) {
        match event {
            wire::Event::Notification(notification) => self.notified(&notification),
            wire::Event::State(state) => self.changed(&state),
            wire::Event::Reconnected { continuity, .. } => {
                let checked = continuity == wire::Continuity::Checked;
                self.hub.publish(&Event::Reconnected { checked });
                if continuity == wire::Continuity::Unverified {
                    self.hub.miss(Missed::Unverified);
                }
            }
            wire::Event::Restarted { .. } => {
                self.shared.learned.clear();
                self.hub.next_incarnation();
                self.hub.publish(&Event::ServerRestarted);
            }
            wire::Event::Gap { from, to, .. } => {
                self.hub.publish(&Event::Gap(Gap { from, to }));
            }
            wire::Event::Lagged(count) => {
                self.hub.publish(&Event::Lagged(count));
                // The events of these may be among the dropped ones.
                self.route_queued();
            }
            wire::Event::Malformed(malformed) => {
                let lost = malformed.lost;
                self.hub.publish(&malformed_event(malformed));
                if lost {
                    // It may have been an update of any session.
                    self.hub.miss(Missed::Malformed);
                }
            }
            wire::Event::TooLarge { error } => {
                let reason = error.to_string();
                self.hub.publish(&Event::Malformed { reason, start: String::new(), lost: true });
                self.hub.miss(Missed::Malformed);
            }
            wire::Event::ResponseLost { method, error, .. } => {
                self.hub.publish(&Event::ResponseLost { method, error: Error::from_wire(error) });
            }
            wire::Event::AgentRequest { id, request } => {
                if self.hub.has_logs() {
                    let position = self.position(&request.meta.event_id, request.params.as_bytes());
                    let record = request_record(&self.shared.limits, &id, &request);
                    self.hub.log(record, position, Origin::from_wire(request.meta.origin));
                }
                self.route_request(&id);
            }
            wire::Event::UnmatchedResponse { id, raw, origin, event_id } if self.hub.has_logs() => {
                let position = self.position(&event_id, raw.as_bytes());
                let record = response_record(&self.shared.limits, &id, &raw);
                self.hub.log(record, position, Origin::from_wire(origin));
            }
            // Responses go to their calls.
            _ => {}
        }
    }

    /// Routes a request in order between the updates, after its record in the log: it was queued before its event was
    /// published.
    fn route_request(&mut self, id: &wire::MessageId) {
        self.queued.extend(std::iter::from_fn(|| self.requests.try_recv()));
        let Some(position) = self.queued.iter().position(|(request, _)| request.id() == id) else { return };
        for (request, responder) in self.queued.drain(..=position) {
            self.router.route(&request, responder);
        }
    }

    /// Routes all requests that are queued.
    fn route_queued(&mut self) {
        self.queued.extend(std::iter::from_fn(|| self.requests.try_recv()));
        for (request, responder) in self.queued.drain(..) {
            self.router.route(&request, responder);
        }
    }

    /// Returns the decoded size of a notification, if it is within the limit. Reports one over the limit. Turns are not
    /// affected: it is not an update.
    fn admitted(&self, method: &str, raw: &wire::Json) -> Option<usize> {
        match self.shared.limits.check(BodyKind::Message, method, raw.as_bytes()) {
            Ok(size) => Some(size),
            Err(error) => {
                let reason = format!("`{method}` is dropped: {error}");
                let start = raw.as_str().chars().take(MALFORMED_CHARS).collect();
                self.hub.publish(&Event::Malformed { reason, start, lost: true });
                None
            }
        }
    }

    fn updated(&mut self, notification: &wire::Notification) {
        // Its size was checked where it was received.
        let at = numbered(&notification.meta, notification.params.as_bytes());
        let origin = Origin::from_wire(notification.meta.origin);
        let mut update = Update::from_json(&notification.params, origin);
        if origin == Origin::Live && self.hub.is_replay(&update) {
            update = update.into_history();
        }
        // Text of other clients, and stored text, is not a report.
        if self.shared.is_gemini()
            && update.origin() == Origin::Live
            && let Some(mode) = reported_mode(&update)
            && self.hub.is_idle(update.session_id())
            && self.hub.take_expected_mode(update.session_id(), mode)
        {
            update = mode_report(&update, mode);
        }
        if matches!(update.kind(), UpdateKind::Unreadable { .. }) && update.session_id().is_empty() {
            self.hub.miss(Missed::Malformed);
        }
        self.hub.publish_at(&Event::Update(update), at);
    }

    fn notified(&mut self, notification: &wire::Notification) {
        if notification.method == SESSION_UPDATE {
            return self.updated(notification);
        }
        let Some(size) = self.admitted(&notification.method, &notification.params) else { return };
        let origin = Origin::from_wire(notification.meta.origin);
        let params = match notification.params.parse::<Value>() {
            Ok(params) => params,
            Err(error) => return self.unreadable(notification, &error),
        };
        match &*notification.method {
            "_sandboxagent/session/ended" => {
                let at = numbered(&notification.meta, notification.params.as_bytes());
                self.session_ended(params, origin, at);
            }
            AGENT_EXITED if origin == Origin::Live && self.shared.exit_notices_trusted() => {
                self.report(TerminationReport::from_agent_exited(&params), None);
            }
            "_sandboxagent/agent/unparsed" | "_adapter/invalid_stdout" => {
                let unparsed = AgentUnparsed::from_params(&params);
                self.shared.printed(&unparsed.raw);
                self.hub.publish(&Event::AgentUnparsed { unparsed, origin });
            }
            ELICITATION_COMPLETE if origin == Origin::Live && params["elicitationId"].is_string() => {
                let id = params["elicitationId"].as_str().unwrap_or_default().to_owned();
                self.hub.publish(&Event::QuestionCompleted { id });
            }
            "$/cancel_request" => {}
            CLAUDE_MESSAGE
                if origin == Origin::Live
                    && interrupted_session(&params).is_some_and(|session| self.hub.run_ended(session)) => {}
            method => {
                let at = numbered(&notification.meta, notification.params.as_bytes());
                let notice = if method == CLAUDE_MESSAGE { retry_notice(&params) } else { None };
                let event = match notice {
                    Some(notice) => Event::Update(Update::read(notice, origin, size)),
                    None => Event::Other { method: method.to_owned(), params, origin },
                };
                self.hub.publish_at(&event, at);
            }
        }
    }

    /// Reports a notification that cannot be parsed, for example because it is nested too deep. Turns are not affected:
    /// it is not an update. The end of a session is still recognised by the outermost fields.
    fn unreadable(&mut self, notification: &wire::Notification, error: &serde_json::Error) {
        let method = &notification.method;
        let reason = format!("the parameters of `{method}` cannot be read: {error}");
        let text = notification.params.as_str();
        if method == "_sandboxagent/session/ended" {
            let origin = Origin::from_wire(notification.meta.origin);
            let at = numbered(&notification.meta, notification.params.as_bytes());
            self.session_ended(readable_members(text, 1), origin, at);
        }
        let start = text.chars().take(OUTPUT_CHARS).collect();
        self.hub.publish(&Event::Malformed { reason, start, lost: true });
    }

    fn position(&self, id: &Option<wire::EventId>, content: &[u8]) -> Option<StreamPosition> {
        let offset = id.as_ref()?.as_number()?;
        Some(StreamPosition::of(self.hub.incarnation(), offset, content))
    }

    fn session_ended(&mut self, params: Value, origin: Origin, at: Option<Numbered<'_>>) {
        let report = TerminationReport::from_session_ended(&params);
        let named = report.and_then(|report| Some((report.session_id()?.to_owned(), report)));
        match named {
            Some((id, report)) if origin == Origin::Live => {
                self.hub.end_session_at(&id, report, at);
            }
            // A replayed end does not describe the current state: the session may have been opened again.
            Some((id, report)) => {
                self.hub.publish_at(&ended_event(&id, &report.into_info(), origin), at);
            }
            None => {
                let method = "_sandboxagent/session/ended".to_owned();
                self.hub.publish(&Event::Other { method, params, origin });
            }
        }
    }

    fn changed(&mut self, state: &wire::ConnectionState) {
        match state {
            wire::ConnectionState::Live if self.is_lost => {
                self.is_lost = false;
                self.hub.stream_reopened();
                self.hub.connection(ConnectionState::Connected);
            }
            wire::ConnectionState::Reconnecting { attempt } => {
                if !std::mem::replace(&mut self.is_lost, true) {
                    self.hub.stream_lost();
                }
                self.hub.connection(ConnectionState::Reconnecting { attempt: *attempt });
            }
            wire::ConnectionState::Terminated(reason) => {
                self.router.end();
                if let Some(reason) = lost_reason(reason) {
                    self.hub.connection(ConnectionState::Lost(reason));
                }
            }
            _ => {}
        }
    }
}

/// On a shared endpoint, unread requests probably belong to other clients, so they must not be cancelled when the
/// connection is dropped.
impl Drop for EventLoop {
    fn drop(&mut self) {
        if !self.shared.is_shared {
            return;
        }
        let unread = std::iter::from_fn(|| self.requests.try_recv());
        for (_, responder) in self.queued.drain(..).chain(unread) {
            // An error means that the request was already cancelled.
            let _ = responder.ignore();
        }
    }
}

pub(super) fn malformed_event(malformed: wire::Malformed) -> Event {
    let wire::Malformed { reason, start, lost, .. } = malformed;
    Event::Malformed { reason, start, lost }
}

/// The number of an event, with its content.
fn numbered<'a>(meta: &wire::Meta, content: &'a [u8]) -> Option<Numbered<'a>> {
    let offset = meta.event_id.as_ref().and_then(wire::EventId::as_number)?;
    Some(Numbered { offset, content })
}

/// Why a connection was lost; `None` if this program closed it.
pub(super) fn lost_reason(reason: &wire::EndReason) -> Option<LostReason> {
    match Error::terminated(reason) {
        Error::ConnectionEnded { reason: LostReason::Dropped, .. } => None,
        Error::ConnectionEnded { reason, .. } => Some(reason),
        _ => None,
    }
}

pub(super) async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
