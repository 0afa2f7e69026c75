//! The one task that turns messages into events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client as wire;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use super::hub::{Hub, ended_event};
use super::names::SESSION_UPDATE;
use super::reading::{request_record, response_record};
use super::router::{OwnedSessions, RequestRouter, UnclaimedTable};
use super::stream::StreamPosition;
use super::supports::Learned;
use crate::client::event::{Gap, Origin};
use crate::client::limits::{BodyKind, Limits};
use crate::convert::partial_json::readable_members;
use crate::convert::retries::{CLAUDE_MESSAGE, retry_notice};
use crate::convert::termination::TerminationReport;
use crate::convert::update::Missed;
use crate::error::{AgentUnparsed, LostReason};
use crate::requests::Admission;
use crate::requests::ELICITATION_COMPLETE;
use crate::{ConnectionState, Error, Event, TerminationInfo, Update};

/// How many commands may wait for the pump.
pub(super) const COMMANDS: usize = 64;
/// How long the last words of an agent may come behind the notice of its end: servers write the two side by side.
const TRAILING: Duration = Duration::from_millis(50);
/// How many lines that are no messages are kept, and how much of each.
const OUTPUT_LINES: usize = 16;
const OUTPUT_CHARS: usize = 1024;
/// How much of a message that cannot be decoded is shown.
const MALFORMED_CHARS: usize = 256;

/// What the pump of a connection shares with the calls that are made over it.
#[derive(Debug)]
pub(super) struct Shared {
    /// Whether other clients use the same endpoint and see the same stream.
    pub(super) is_shared: bool,
    /// Whether `_adapter/agent_exited` is about the one agent behind the endpoint.
    exit_notices_trusted: AtomicBool,
    /// How many calls wait for an answer.
    pub(super) in_flight: AtomicUsize,
    /// Guards how the agent ended, once it has and the connection with it; held for a copy. Details may follow.
    ended: Mutex<Option<TerminationInfo>>,
    /// Whether this client has begun to end the agent.
    pub(super) stop_requested: AtomicBool,
    /// Agent requests that belong to other clients, as far as is known.
    pub(super) unclaimed: UnclaimedTable,
    /// The sessions with agent requests that this client answers.
    pub(super) owned: Arc<OwnedSessions>,
    /// What the open agent requests take.
    pub(super) admission: Arc<Admission>,
    pub(super) limits: Limits,
    /// What was found out about methods that need not be there.
    pub(super) learned: Learned,
    /// Guards what the agent printed last that is no message; held for a push or a copy.
    output: Mutex<VecDeque<String>>,
}

impl Shared {
    pub(super) fn new(is_shared: bool, limits: &Limits) -> Self {
        Self {
            is_shared,
            exit_notices_trusted: AtomicBool::new(!is_shared),
            in_flight: AtomicUsize::new(0),
            ended: Mutex::default(),
            stop_requested: AtomicBool::new(false),
            unclaimed: UnclaimedTable::new(limits.unclaimed_requests),
            owned: Arc::default(),
            admission: Arc::new(Admission::new(limits.open_request_bytes)),
            limits: limits.clone(),
            learned: Learned::default(),
            output: Mutex::default(),
        }
    }

    /// Several agents may be behind a shared endpoint, and any of them can print such a notice. Servers with several
    /// agents advertise extensions and report ends by session; the adapter has one agent and advertises none.
    pub(super) fn trust_exit_notices(&self, trusted: bool) {
        self.exit_notices_trusted.store(trusted, Ordering::Release);
    }

    /// How the agent ended, if it has.
    pub(super) fn ended(&self) -> Option<TerminationInfo> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_ended(&self, info: TerminationInfo) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(info);
    }

    fn printed(&self, line: &str) {
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if output.len() == OUTPUT_LINES {
            output.pop_front();
        }
        output.push_back(line.chars().take(OUTPUT_CHARS).collect());
    }

    /// What the agent printed last that is no message.
    pub(super) fn output(&self) -> Vec<String> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// What calls ask of the pump.
pub(super) enum Command {
    /// To be told when everything that has arrived was given out.
    Barrier(oneshot::Sender<()>),
    /// To put the account of an agent's end together now, if there is one.
    Settle(oneshot::Sender<()>),
    /// To route an agent request that another reader of the stream received.
    Serve(Box<(wire::AgentRequest, wire::Responder)>),
    /// To take note of a sign that the agent has ended, and to tell how.
    Report(Box<TerminationReport>, oneshot::Sender<TerminationInfo>),
}

/// Reads everything a connection brings, in order, and gives it to the hub.
///
/// Because there is one such task, events have one order, an end is told of once, and a call that waits at the
/// barrier knows that everything which came before its answer was delivered.
pub(super) struct Pump {
    pub(super) wire: wire::AcpHttpClient,
    pub(super) events: wire::Events,
    pub(super) requests: wire::AgentRequests,
    /// The agent requests whose events follow.
    pub(super) queued: VecDeque<(wire::AgentRequest, wire::Responder)>,
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
    pub(super) router: RequestRouter,
    /// How long the rest of an account of the agent's end may take.
    pub(super) patience: Duration,
    pub(super) exit: Exit,
    /// Whether the stream was lost and has not come back.
    pub(super) away: bool,
}

/// An end of the agent that is being put together.
#[derive(Debug, Default)]
pub(super) struct Exit {
    report: Option<TerminationReport>,
    /// Whether the notice has come on the stream, behind what the agent said before its end.
    noticed: bool,
    /// Whether a call that was waiting has failed with it.
    answered: bool,
    deadline: Option<Instant>,
    waiting: Vec<oneshot::Sender<TerminationInfo>>,
    /// The sessions that ended with it, once that is published.
    published: Option<Vec<Arc<str>>>,
    /// Whether everything that was worth waiting for is known.
    is_finished: bool,
}

impl Pump {
    pub(super) async fn run(mut self) {
        let (mut reading, mut asking) = (true, true);
        loop {
            if !self.queued.is_empty() {
                match self.events.try_recv() {
                    Some(event) => self.take(event),
                    // Everything that was published before these requests was read.
                    None => self.queued.drain(..).for_each(|(request, responder)| {
                        self.router.route(&request, responder);
                    }),
                }
                tokio::task::coop::consume_budget().await;
                continue;
            }
            let deadline = self.exit.deadline;
            tokio::select! {
                // What has arrived comes first, so that a barrier is behind it.
                biased;
                event = self.events.recv(), if reading => match event {
                    Some(event) => {
                        self.take(event);
                        tokio::task::coop::consume_budget().await;
                    }
                    None => reading = false,
                },
                request = self.requests.next(), if asking => match request {
                    Some(queued) => self.queued.push_back(queued),
                    None => asking = false,
                },
                command = self.commands.recv() => match command {
                    Some(Command::Barrier(reached)) => drop(reached.send(())),
                    Some(Command::Settle(done)) => {
                        self.finish_exit();
                        // A caller that went away needs no answer.
                        let _ = done.send(());
                    }
                    Some(Command::Serve(request)) => self.router.route_ours(&request.0, request.1),
                    Some(Command::Report(report, told)) => self.report(*report, Some(told)),
                    None => return,
                },
                () = wait_until(deadline) => self.finish_exit(),
                never = self.router.maintain() => match never {},
            }
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
            }
            wire::Event::Malformed(malformed) => {
                let (reason, start) = (malformed.reason, malformed.start);
                self.hub.publish(&Event::Malformed { reason, start, lost: false });
            }
            wire::Event::TooLarge { error } => {
                let reason = error.to_string();
                self.hub.publish(&Event::Malformed { reason, start: String::new(), lost: true });
            }
            wire::Event::AnswerLost { method, error, .. } => {
                self.hub.publish(&Event::AnswerLost { method, error: Error::from_wire(error) });
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
                if let Some(record) = response_record(&self.shared.limits, &id, &raw) {
                    self.hub.log(record, position, Origin::from_wire(origin));
                }
            }
            // Responses go to their calls.
            _ => {}
        }
    }

    /// Routes a request in its place between the updates: it was queued before its event was published.
    fn route_request(&mut self, id: &wire::MessageId) {
        while let Some(queued) = self.requests.try_recv() {
            self.queued.push_back(queued);
        }
        let Some(position) = self.queued.iter().position(|(request, _)| request.id() == id) else { return };
        for (request, responder) in self.queued.drain(..=position) {
            self.router.route(&request, responder);
        }
    }

    /// What a message takes in memory, if that is within its limit. What is not is reported.
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
        let Some(size) = self.admitted(SESSION_UPDATE, &notification.params) else { return };
        let position = self.position(&notification.meta.event_id, notification.params.as_bytes());
        let origin = Origin::from_wire(notification.meta.origin);
        let event = Event::Update(Update::from_json(&notification.params, origin, size));
        self.hub.publish_at(&event, position);
    }

    fn notified(&mut self, notification: &wire::Notification) {
        if notification.method == SESSION_UPDATE {
            return self.updated(notification);
        }
        let Some(size) = self.admitted(&notification.method, &notification.params) else { return };
        let origin = Origin::from_wire(notification.meta.origin);
        let params = match serde_json::from_str::<Value>(notification.params.as_str()) {
            Ok(params) => params,
            Err(error) => return self.unreadable(notification, &error),
        };
        match notification.method.as_str() {
            "_sandboxagent/session/ended" => {
                let position = self.position(&notification.meta.event_id, notification.params.as_bytes());
                self.session_ended(params, origin, position);
            }
            "_adapter/agent_exited"
                if origin == Origin::Live && self.shared.exit_notices_trusted.load(Ordering::Acquire) =>
            {
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
            method => {
                let position = self.position(&notification.meta.event_id, notification.params.as_bytes());
                let notice = if method == CLAUDE_MESSAGE { retry_notice(&params) } else { None };
                let event = match notice {
                    Some(notice) => Event::Update(Update::read(notice, origin, size)),
                    None => Event::Other { method: method.to_owned(), params, origin },
                };
                self.hub.publish_at(&event, position);
            }
        }
    }

    /// A notification that the parser refuses, because it is nested too deep, say. That a session has ended is known
    /// from its outermost members.
    fn unreadable(&mut self, notification: &wire::Notification, error: &serde_json::Error) {
        let method = &notification.method;
        let reason = format!("the parameters of `{method}` cannot be read: {error}");
        let text = notification.params.as_str();
        if method == "_sandboxagent/session/ended" {
            let origin = Origin::from_wire(notification.meta.origin);
            let position = self.position(&notification.meta.event_id, notification.params.as_bytes());
            self.session_ended(readable_members(text, 1), origin, position);
        }
        let start = text.chars().take(OUTPUT_CHARS).collect();
        self.hub.publish(&Event::Malformed { reason, start, lost: true });
    }

    /// Where an event stands in the stream.
    fn position(&self, id: &Option<wire::EventId>, content: &[u8]) -> Option<StreamPosition> {
        let offset = id.as_ref()?.as_number()?;
        Some(StreamPosition::of(self.hub.incarnation(), offset, content))
    }

    fn session_ended(&mut self, params: Value, origin: Origin, at: Option<StreamPosition>) {
        let report = TerminationReport::from_session_ended(&params);
        let named = report.and_then(|report| Some((report.session_id()?.to_owned(), report)));
        match named {
            Some((id, report)) if origin == Origin::Live => {
                self.hub.end_session_at(&id, report, at);
            }
            // An old end says nothing about the session as it is now: it may have been taken up again since.
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
            wire::ConnectionState::Live if self.away => {
                self.away = false;
                self.hub.connection(ConnectionState::Connected);
            }
            wire::ConnectionState::Reconnecting { attempt } => {
                self.away = true;
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

    /// Takes note of a sign that the agent has ended. The first one that is certain is published at once.
    fn report(&mut self, report: TerminationReport, told: Option<oneshot::Sender<TerminationInfo>>) {
        if let (true, Some(info)) = (self.exit.is_finished, self.shared.ended()) {
            if let Some(told) = told {
                // A caller that went away needs no answer.
                let _ = told.send(info);
            }
            return;
        }
        // The notice with the exit code follows a failed write.
        let is_certain = !report.is_failed_write();
        match told {
            Some(told) => {
                self.exit.answered = true;
                self.exit.waiting.push(told);
            }
            None => self.exit.noticed = true,
        }
        let requested = self.shared.stop_requested.load(Ordering::Acquire);
        let report = if requested { report.merge(TerminationReport::requested()) } else { report };
        let report = match self.exit.report.take() {
            Some(before) => before.merge(report),
            None => report,
        };
        // The code comes with the notice, what the agent wrote to stderr with the failure of a call that waits.
        let waits = self.shared.in_flight.load(Ordering::Acquire) > 0;
        let complete = self.exit.noticed && (report.has_stderr() || self.exit.answered || !waits);
        self.exit.report = Some(report);
        let patience = if complete || requested { TRAILING } else { self.patience };
        let deadline = Instant::now() + patience;
        self.exit.deadline = Some(self.exit.deadline.map_or(deadline, |before| before.min(deadline)));
        if is_certain {
            self.publish_exit();
        }
    }

    /// Publishes that the agent has ended, with what is known of it by now.
    fn publish_exit(&mut self) {
        let Some(report) = self.exit.report.clone().filter(|_| self.exit.published.is_none()) else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        self.exit.published = Some(self.hub.end_all(&report));
        if !self.shared.stop_requested.load(Ordering::Acquire) {
            self.hub.connection(ConnectionState::AgentEnded(Box::new(info)));
        }
    }

    /// What is known about the end of the agent is all there will be: the connection ends.
    fn finish_exit(&mut self) {
        self.publish_exit();
        let finished = Exit { is_finished: self.exit.report.is_some(), ..Exit::default() };
        let Exit { report, waiting, published, .. } = std::mem::replace(&mut self.exit, finished);
        let Some(report) = report else { return };
        let info = report.clone().into_info();
        self.shared.set_ended(info.clone());
        self.hub.complete_ends(&published.unwrap_or_default(), &report);
        for told in waiting {
            // A caller that went away needs no answer.
            let _ = told.send(info.clone());
        }
        self.wire.control().end(Error::ended(None, info, true));
    }
}

/// On a shared endpoint, requests that were not read belong to other clients, as far as is known: they are not to be
/// cancelled when the connection is dropped.
impl Drop for Pump {
    fn drop(&mut self) {
        if !self.shared.is_shared {
            return;
        }
        let unread = std::iter::from_fn(|| self.requests.try_recv());
        for (_, responder) in self.queued.drain(..).chain(unread) {
            // If it was cancelled before, there is nothing to leave to others.
            let _ = responder.ignore();
        }
    }
}

/// Why a connection was lost; `None` if it was given up by this program.
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
