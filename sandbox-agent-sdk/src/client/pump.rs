//! The one task that turns messages into events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use acp_http_client as wire;
use futures::FutureExt;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant};

use super::hub::{Hub, ended_event};
use super::router::{OwnedSessions, RequestRouter, UnclaimedTable};
use super::supports::Learned;
use crate::client::limits::{BodyKind, Limits};
use crate::convert::decoded::decoded_size;
use crate::convert::partial_json::readable_members;
use crate::error::{AgentUnparsed, LostReason};
use crate::event::{Gap, Origin};
use crate::requests::Admission;
use crate::requests::ELICITATION_COMPLETE;
use crate::termination::TerminationReport;
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
    /// How the agent ended, once it has and the connection with it.
    pub(super) ended: OnceLock<TerminationInfo>,
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
            ended: OnceLock::new(),
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
    /// To do something between two events, and to tell which was the last one.
    Between(Box<dyn FnOnce() + Send>, oneshot::Sender<Option<String>>),
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
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
    pub(super) router: RequestRouter,
    /// How long the rest of an account of the agent's end may take.
    pub(super) patience: Duration,
    pub(super) exit: Exit,
    /// The last event that was given out.
    pub(super) last_event: Option<wire::EventId>,
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
}

impl Pump {
    pub(super) async fn run(mut self) {
        let (mut reading, mut asking) = (true, true);
        loop {
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
                    Some((request, responder)) => self.router.route(&request, responder),
                    None => asking = false,
                },
                command = self.commands.recv() => match command {
                    Some(Command::Barrier(reached)) => drop(reached.send(())),
                    Some(Command::Settle(done)) => {
                        self.finish_exit();
                        // A caller that went away needs no answer.
                        let _ = done.send(());
                    }
                    Some(Command::Between(act, told)) => {
                        act();
                        // A caller that went away needs no answer.
                        let _ = told.send(self.last_event.as_ref().map(|id| id.as_text().into_owned()));
                    }
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
            wire::Event::Update(update) => {
                self.gave_out(&update.meta);
                let raw = update.content.raw();
                let origin = Origin::from_wire(update.meta.origin);
                let place = self.place(&update.meta, raw.as_bytes());
                let Some(size) = self.admitted("session/update", raw) else { return };
                let event = Event::Update(Update::from_json(raw.as_str(), origin, size));
                self.hub.publish_at(&event, place.as_deref());
            }
            wire::Event::Notification(notification) => self.notified(&notification),
            wire::Event::State(state) => self.changed(&state),
            wire::Event::Reconnected { continuity, .. } => {
                let checked = continuity == wire::Continuity::Checked;
                self.hub.publish(&Event::Reconnected { checked });
            }
            wire::Event::Restarted { .. } => {
                self.shared.learned.clear();
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
            // Requests of the agent come with the means to answer them, and answers go to their calls.
            _ => {}
        }
    }

    /// What a message takes in memory, if that is within its limit. What is not is reported.
    fn admitted(&self, method: &str, raw: &wire::Json) -> Option<usize> {
        match self.shared.limits.check(BodyKind::Message, method, raw.as_bytes()) {
            Ok(()) => Some(decoded_size(raw.as_bytes())),
            Err(error) => {
                let reason = format!("`{method}` is dropped: {error}");
                let start = raw.as_str().chars().take(MALFORMED_CHARS).collect();
                self.hub.publish(&Event::Malformed { reason, start, lost: true });
                None
            }
        }
    }

    fn gave_out(&mut self, meta: &wire::Meta) {
        if meta.event_id.is_some() {
            self.last_event.clone_from(&meta.event_id);
        }
    }

    fn notified(&mut self, notification: &wire::Notification) {
        self.gave_out(&notification.meta);
        if self.admitted(&notification.method, &notification.params).is_none() {
            return;
        }
        let origin = Origin::from_wire(notification.meta.origin);
        let params = match serde_json::from_str::<Value>(notification.params.as_str()) {
            Ok(params) => params,
            Err(error) => return self.unreadable(notification, &error),
        };
        match notification.method.as_str() {
            "_sandboxagent/session/ended" => {
                let place = self.place(&notification.meta, notification.params.as_bytes());
                self.session_ended(params, origin, place.as_deref());
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
                let place = self.place(&notification.meta, notification.params.as_bytes());
                let event = Event::Other { method: method.to_owned(), params, origin };
                self.hub.publish_at(&event, place.as_deref());
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
            let place = self.place(&notification.meta, notification.params.as_bytes());
            self.session_ended(readable_members(text, 1), origin, place.as_deref());
        }
        let start = text.chars().take(OUTPUT_CHARS).collect();
        self.hub.publish(&Event::Malformed { reason, start, lost: true });
    }

    /// The place of an event in a stream that others see too: its number, and what it looks like.
    fn place(&self, meta: &wire::Meta, content: &[u8]) -> Option<String> {
        let number = meta.event_id.as_ref().filter(|_| self.shared.is_shared)?.as_number()?;
        Some(place(number, content))
    }

    fn session_ended(&mut self, params: Value, origin: Origin, place: Option<&str>) {
        let report = TerminationReport::from_session_ended(&params);
        let named = report.and_then(|report| Some((report.session_id()?.to_owned(), report)));
        match named {
            Some((id, report)) if origin == Origin::Live => {
                self.hub.end_session_at(&id, report, place);
            }
            // An old end says nothing about the session as it is now: it may have been taken up again since.
            Some((id, report)) => {
                self.hub.publish_at(&ended_event(&id, &report.into_info(), origin), place);
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

    /// Takes note of a sign that the agent has ended.
    fn report(&mut self, report: TerminationReport, told: Option<oneshot::Sender<TerminationInfo>>) {
        if let Some(info) = self.shared.ended.get() {
            if let Some(told) = told {
                // A caller that went away needs no answer.
                let _ = told.send(info.clone());
            }
            return;
        }
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
    }

    /// The agent is gone, and what is known about it is all there will be.
    fn finish_exit(&mut self) {
        let Exit { report, waiting, .. } = std::mem::take(&mut self.exit);
        let Some(report) = report else { return };
        let info = report.clone().into_info();
        if self.shared.ended.set(info.clone()).is_err() {
            return;
        }
        // Those who asked come first: their calls know more than the end of their session tells.
        for told in waiting {
            // A caller that went away needs no answer.
            let _ = told.send(info.clone());
        }
        self.hub.end_all(&report);
        if !self.shared.stop_requested.load(Ordering::Acquire) {
            self.hub.connection(ConnectionState::AgentEnded(Box::new(info.clone())));
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
        while let Some(Some((_, responder))) = tokio::task::unconstrained(self.requests.next()).now_or_never()
        {
            // If it was cancelled before, there is nothing to leave to others.
            let _ = responder.ignore();
        }
    }
}

/// What programs that see the same event call it, whoever they are and whenever they were built.
pub(super) fn place(number: u64, content: &[u8]) -> String {
    /// So much tells contents apart, beside their length and their number.
    const PRINTED_BYTES: usize = 4096;
    let printed = &content[..content.len().min(PRINTED_BYTES)];
    let hash = printed.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{number}-{:x}-{hash:016x}", content.len())
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
