//! One turn of a session.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use acp_http_client::RequestOptions;
use futures::{Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::connection::Connection;
use super::lifecycle::Inner;
use super::list::find_session;
use super::metering::metered;
use super::names::PROMPT;
use super::reading::id_text;
use super::session::{Session, TurnState};
use super::stream::PromptLayer;
use crate::client::event::Queue;
use crate::client::snapshot::Patch;
use crate::convert::open_enum::open_enum;
use crate::error::{Phase, Timeout};
use crate::session::SessionInfo;
use crate::termination::TerminationReport;
use crate::thread::AgentResult;
use crate::update::Missed;
use crate::usage::{BudgetEvent, TurnUsage};
use crate::{DropPolicy, Error, Prompt, Update, UpdateKind};

mod collected;
mod feed;
mod item;
mod limits;

pub use collected::{CollectedTurn, FileChange, IncompleteTurn};
pub use item::TurnEvent;
pub(crate) use item::TurnItem;
use limits::{TurnLimits, reached};

open_enum! {
    /// Why a turn ended.
    pub enum StopReason {
        /// The agent has said what it had to say.
        EndTurn = "end_turn",
        /// The model's limit of tokens was reached.
        MaxTokens = "max_tokens",
        /// The limit of requests in one turn was reached.
        MaxTurnRequests = "max_turn_requests",
        /// The agent refused to go on.
        Refusal = "refusal",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TurnOutcome {
    /// Why.
    pub stop_reason: StopReason,
    /// What is missing of the reports, as far as is known: the connection lost them, or they were not read in time.
    pub missing: Vec<Missed>,
    /// The response as it came, or the report that ended the turn where the response says only that the prompt was
    /// accepted. An error
    /// response to a turn that was cancelled is in its member `error`.
    pub raw: Value,
    /// What the turn used, as far as the agent reports it.
    pub usage: Box<TurnUsage>,
    /// The budget that was spent in the turn, if that is why it was cancelled.
    pub budget: Option<Box<BudgetEvent>>,
}

impl TurnOutcome {
    /// Reads the response to a prompt.
    pub(crate) fn read(raw: Value, missing: Vec<Missed>) -> Self {
        let reason = raw.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        let stop_reason = StopReason::from(reason);
        Self { stop_reason, missing, raw, usage: Box::default(), budget: None }
    }

    /// The outcome of a turn that this client has cancelled, whatever the response says.
    fn cancelled(raw: Value, missing: Vec<Missed>) -> Self {
        Self { stop_reason: StopReason::Cancelled, ..Self::read(raw, missing) }
    }

    /// The member `_meta` of the response.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.get("_meta")
    }

    /// Whether every report of the turn was received.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// What the outcome amounts to as a result, to be classified for a thread.
    #[must_use]
    pub fn to_result(&self) -> AgentResult {
        AgentResult::from_stop_reason(self.stop_reason.as_str())
    }
}

/// What servers say of a prompt to a session that has ended.
const ALREADY_ENDED: &str = "session already ended";

type Outcome = Result<TurnOutcome, Error>;

/// The session that a turn runs in: another one once its prompt was sent again. It is held to read or replace the id.
#[derive(Debug, Clone)]
struct Current(Arc<Mutex<Arc<str>>>);

impl Current {
    fn new(id: &str) -> Self {
        Self(Arc::new(Mutex::new(id.into())))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn id(&self) -> Arc<str> {
        Arc::clone(&self.lock())
    }
}

/// One turn: a stream of the agent's reports, and an outcome.
///
/// The stream ends when the turn is over, after every report that came before its end. What a crash leaves behind
/// is delivered too, and the outcome is an error then. Dropping a turn that is not over cancels it, unless the
/// [`DropPolicy`] says otherwise.
///
/// [`next_event`](Self::next_event) gives the agent's requests as well, in order; its caller decides them. With every
/// other method the turn does not decide: requests go to the
/// [permission handler](crate::ClientOptions::permission_handler) or to deciding subscriptions, or are refused.
#[must_use = "a turn that is dropped is cancelled"]
pub struct Turn {
    session: Session,
    current: Current,
    queue: Arc<Queue<TurnItem>>,
    outcome: watch::Receiver<Option<Outcome>>,
    limits: watch::Sender<TurnLimits>,
    reading: Reading,
    /// Tells the task that runs the turn when it is no longer held.
    _held: oneshot::Sender<()>,
}

/// How a turn is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// It was not read yet.
    NotYet,
    /// Only its reports: its reader does not decide about requests.
    Reports,
    /// All its events: its reader decides.
    Events,
    /// The last event was given.
    Ended,
}

impl Turn {
    pub(super) fn start(session: Session, prompt: &Prompt, layer: Option<Box<dyn PromptLayer>>) -> Self {
        let inner = Arc::clone(session.client().inner());
        let queue = inner.hub.turn_queue();
        let (held, dropped) = oneshot::channel();
        let (sender, outcome) = watch::channel(None);
        let (limits, limited) = watch::channel(TurnLimits::default());
        let state = match prompt.is_empty() {
            true => {
                sender.send_replace(Some(Err(Error::config("a prompt needs content"))));
                None
            }
            false => Some(inner.hub.begin_turn(session.id(), &queue)),
        };
        let current = Current::new(session.id());
        let driver = Driver {
            inner: Arc::clone(&inner),
            session: session.id().to_owned(),
            current: current.clone(),
            prompt: prompt.to_value(),
            queue: Arc::clone(&queue),
            outcome: sender,
            layer: layer.map(Mutex::new),
            request_id: None,
            limits: limited,
        };
        match state {
            Some(TurnState::Running) => driver.refuse(),
            Some(state) => {
                if !inner.spawn(driver.run(dropped, state)) {
                    // Nothing runs outside a runtime; the sender is gone with the driver, and the outcome says so.
                    if state == TurnState::Idle {
                        inner.hub.end_turn(session.id());
                    }
                    queue.end();
                }
            }
            None => queue.end(),
        }
        Self { session, current, queue, outcome, limits, reading: Reading::NotYet, _held: held }
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    #[cfg(feature = "sessions")]
    /// How it ends, for a task that does not hold it.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<Outcome>> {
        self.outcome.clone()
    }

    /// Cancels the turn if it is not over within this time from now.
    ///
    /// Its outcome is then an [`Error::Timeout`] with [`Phase::Deadline`]; [`text`](Self::text) and
    /// [`collect`](Self::collect) give an [`Error::IncompleteTurn`] with what was received.
    pub fn with_deadline(self, within: Duration) -> Self {
        self.limits.send_modify(|limits| limits.deadline = Some((Instant::now() + within, within)));
        self
    }

    /// Cancels the turn if nothing is reported in it for this long.
    ///
    /// Agents that retry a failing model may be silent for minutes. Every update of the session counts, and the time
    /// does not run while the agent waits for a permission, an answer or a tool of this client. The outcome is then an
    /// [`Error::Timeout`] with [`Phase::Idle`]; [`text`](Self::text) and [`collect`](Self::collect) give an
    /// [`Error::IncompleteTurn`] with what was received.
    pub fn with_idle_timeout(self, limit: Duration) -> Self {
        self.limits.send_modify(|limits| limits.idle = Some(limit));
        self
    }

    /// The next report, or `None` when the turn is over.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Update> {
        StreamExt::next(self).await
    }

    /// The next event: a report, a permission request, a question, or the end of the turn, in order. `None` after the
    /// end.
    ///
    /// The caller decides the agent's requests: one that is dropped without an answer is cancelled.
    ///
    /// # Cancel safety
    /// Nothing is lost if the future is dropped.
    pub async fn next_event(&mut self) -> Option<TurnEvent> {
        match self.reading {
            Reading::Ended => return None,
            Reading::NotYet | Reading::Reports => self.queue.commit(),
            Reading::Events => {}
        }
        self.reading = Reading::Events;
        if let Some(item) = std::future::poll_fn(|context| self.queue.poll(context)).await {
            return Some(item.into());
        }
        let outcome = self.ended().await;
        self.reading = Reading::Ended;
        Some(outcome.into())
    }

    /// Waits for the end of the turn. Reports that were not read can be read afterwards.
    ///
    /// # Errors
    /// [`Error::AgentEnded`] if the agent or the session ended before its answer,
    /// [`Error::TurnInProgress`] if another turn is running, and what else can go wrong.
    pub async fn outcome(&mut self) -> Result<TurnOutcome, Error> {
        self.read_reports();
        self.ended().await
    }

    async fn ended(&mut self) -> Outcome {
        match self.outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            _ => Err(Error::config("a turn needs a tokio runtime and its client")),
        }
    }

    /// Waits for the end of the turn and gives the agent's message as one text.
    ///
    /// # Errors
    /// As [`collect`](Self::collect).
    pub async fn text(self) -> Result<String, Error> {
        self.collect().await.map(|collected| collected.text)
    }

    /// Waits for the end of the turn and gives everything it brought: text, thoughts, tool calls, changes of files.
    ///
    /// # Errors
    /// [`Error::IncompleteTurn`] if something is missing or a limit of the turn was reached; it has what was received.
    /// Else as [`outcome`](Self::outcome).
    pub async fn collect(mut self) -> Result<CollectedTurn, Error> {
        let mut collected = CollectedTurn::default();
        while let Some(update) = self.next().await {
            collected.add(&update);
        }
        match self.ended().await {
            Ok(outcome) => {
                let missing = outcome.missing.clone();
                collected.end(outcome);
                if missing.is_empty() {
                    return Ok(collected);
                }
                if self.session.client().inner().options.reload_incomplete
                    && let Some(whole) = self.reloaded(&collected).await
                {
                    return Ok(whole);
                }
                let incomplete = IncompleteTurn { collected, missing, source: None };
                Err(Error::IncompleteTurn(Box::new(incomplete)))
            }
            Err(error) if is_limit(&error) => {
                let source = Some(Arc::new(error));
                let incomplete = IncompleteTurn { collected, missing: Vec::new(), source };
                Err(Error::IncompleteTurn(Box::new(incomplete)))
            }
            Err(error) => Err(error),
        }
    }

    /// The turn from the agent's own history, if that has all of it.
    async fn reloaded(&self, collected: &CollectedTurn) -> Option<CollectedTurn> {
        let reloaded = match self.session.reload().await {
            Ok(reloaded) => reloaded,
            Err(error) => {
                tracing::debug!(%error, "an incomplete turn could not be loaded again");
                return None;
            }
        };
        let history = reloaded.history();
        if history.iter().any(|update| matches!(update.kind(), UpdateKind::Missed(_))) {
            return None;
        }
        let prompt =
            history.iter().rposition(|update| matches!(update.kind(), UpdateKind::UserMessage(_)))?;
        let mut whole = CollectedTurn::default();
        history[prompt + 1..].iter().for_each(|update| whole.add(update));
        let mut outcome = collected.outcome.clone()?;
        outcome.missing.clear();
        whole.end(outcome);
        Some(whole)
    }

    /// Cancels the turn and waits until it has stopped: [`Session::cancel`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not stop in time.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.session.client().cancel(self.current.id().as_ref()).await
    }

    /// The turn is read by a method that does not give requests: what waits for a decision here is refused.
    fn read_reports(&mut self) {
        if self.reading == Reading::NotYet {
            self.reading = Reading::Reports;
            for request in self.session.client().inner().hub.stop_deciding(&self.queue) {
                request.or_refuse();
            }
        }
    }
}

impl Stream for Turn {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.read_reports();
        loop {
            match self.queue.poll(context) {
                Poll::Ready(Some(item)) => {
                    if let Some(update) = item.or_refuse() {
                        return Poll::Ready(Some(update));
                    }
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The session is being cancelled from this moment on, so that the next prompt waits for that.
impl Drop for Turn {
    fn drop(&mut self) {
        let inner = self.session.client().inner();
        let is_running = self.outcome.borrow().is_none() && self.outcome.has_changed().is_ok();
        if is_running {
            inner.hub.drop_turn(&self.current.id(), &self.queue, inner.options.drop_policy);
        }
        // Requests that wait here are not decided any more.
        self.queue.abandon();
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.outcome.borrow().is_some();
        f.debug_struct("Turn").field("session", &self.session).field("over", &over).finish_non_exhaustive()
    }
}

/// Runs a turn, from its prompt to its end.
struct Driver {
    inner: Arc<Inner>,
    session: String,
    current: Current,
    prompt: Value,
    queue: Arc<Queue<TurnItem>>,
    outcome: watch::Sender<Option<Outcome>>,
    /// What stores the prompt before it is sent. The lock makes the driver shareable; it is never waited for.
    layer: Option<Mutex<Box<dyn PromptLayer>>>,
    /// The id of the prompt, once it is known.
    request_id: Option<String>,
    limits: watch::Receiver<TurnLimits>,
}

/// Frees the session for the next turn, also when the task is ended from outside.
struct Free(Arc<Inner>, Current);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.hub.end_turn(&self.1.id());
    }
}

impl Driver {
    async fn run(mut self, mut dropped: oneshot::Receiver<()>, before: TurnState) {
        if before == TurnState::Cancelling && !self.wait_for_cancel(&mut dropped).await {
            return self.refuse();
        }
        let outcome = self.turn(dropped).await;
        self.settle(outcome);
    }

    /// Waits, within a bound, until the turn before has stopped, and begins this one.
    async fn wait_for_cancel(&self, dropped: &mut oneshot::Receiver<()>) -> bool {
        let limit = self.inner.options.timeouts.cancel;
        let mut state = self.inner.hub.watch_turn(&self.session);
        let idle = tokio::time::timeout(limit, state.wait_for(|state| *state == TurnState::Idle));
        let is_idle = tokio::select! {
            biased;
            _ = dropped => return false,
            idle = idle => idle.is_ok_and(|idle| idle.is_ok()),
        };
        is_idle && self.inner.hub.begin_turn(&self.session, &self.queue) == TurnState::Idle
    }

    /// Another turn is running.
    fn refuse(&self) {
        self.settle(Err(Error::TurnInProgress { session_id: self.session.clone() }));
    }

    /// Ends the turn for its reader, unless it has ended for it before.
    fn settle(&self, outcome: Outcome) {
        settle(&self.queue, &self.outcome, outcome);
    }

    async fn turn(&mut self, mut dropped: oneshot::Receiver<()>) -> Outcome {
        let inner = Arc::clone(&self.inner);
        let _free = Free(Arc::clone(&inner), self.current.clone());
        let session = self.session.clone();
        let mut outcome = metered(&inner, &session, self.finished(&mut dropped)).await;
        if let Err(error) = &outcome
            && !error.maybe_executed()
            && dropped.try_recv() != Err(TryRecvError::Closed)
            && self.is_sent_again(error).await
        {
            let session = self.session.clone();
            outcome = metered(&inner, &session, self.finished(&mut dropped)).await;
        }
        self.inner.hub.turn_outcome(&self.session, self.request_id.clone(), &outcome);
        outcome
    }

    /// Asks the layer where a prompt that was not executed is sent again, and moves the turn there.
    async fn is_sent_again(&mut self, error: &Error) -> bool {
        let Some(layer) = &mut self.layer else { return false };
        // What the agent reports until the prompt is sent again does not belong to the turn.
        self.inner.hub.prompt_withdrawn(&self.session);
        let resend = layer.get_mut().unwrap_or_else(PoisonError::into_inner).not_executed(error);
        let Some(resend) = resend.await else { return false };
        if !self.inner.hub.move_turn(&self.session, &resend.session_id, &self.queue) {
            return false;
        }
        *self.current.lock() = resend.session_id.as_str().into();
        self.session = resend.session_id;
        self.prompt = resend.prompt.to_value();
        true
    }

    async fn finished(&mut self, dropped: &mut oneshot::Receiver<()>) -> Outcome {
        let connection = self.inner.connection().await?;
        let began = self.inner.hub.now();
        let outcome = self.prompt(&connection, dropped).await;
        // Whatever came before the end belongs to the turn.
        connection.barrier().await;
        let cancelled = *self.inner.hub.watch_turn(&self.session).borrow() == TurnState::Cancelling;
        let outcome = match outcome {
            // It was cancelled before its prompt was sent: there is no response.
            Err(Error::Withdrawn { .. }) => Ok(TurnOutcome::cancelled(Value::Null, Vec::new())),
            // Agents end a turn that this client has cancelled in many ways.
            Ok(raw) if cancelled => Ok(TurnOutcome::cancelled(raw, self.missing())),
            Err(Error::Rpc { error, .. }) if cancelled => {
                Ok(TurnOutcome::cancelled(json!({ "error": error }), self.missing()))
            }
            outcome => outcome.map(|raw| TurnOutcome::read(raw, self.missing())),
        };
        if let Ok(outcome) = &outcome {
            self.inner.hub.answered(&self.session, Patch::of_answer(&outcome.raw), began);
        }
        match outcome {
            Err(Error::Rpc { error, .. }) if error.message.contains(ALREADY_ENDED) => {
                Err(self.already_ended(Error::Rpc { error, status: None, executed: false }).await)
            }
            // The agent may have done a part of the work before it failed.
            Err(Error::Rpc { error, status, .. }) => Err(Error::Rpc { error, status, executed: true }),
            outcome => outcome,
        }
    }

    /// What is missing of the turn: what the connection lost, and what its reader did not read in time.
    fn missing(&self) -> Vec<Missed> {
        let mut missing = self.inner.hub.turn_missed(&self.session);
        let dropped = self.queue.dropped();
        if dropped > 0 {
            missing.push(Missed::Lagged(dropped));
        }
        missing
    }

    /// The session ended before this client knew it; the server knows how.
    async fn already_ended(&self, refusal: Error) -> Error {
        let info = match find_session(&self.inner, &self.session).await {
            Ok(SessionInfo { termination_info: Some(info), .. }) => info,
            _ => return refusal,
        };
        let info = self.inner.hub.end_session(&self.session, TerminationReport::from_info(info));
        Error::ended(Some(&self.session), info, false)
    }

    async fn prompt(
        &mut self,
        connection: &Connection,
        dropped: &mut oneshot::Receiver<()>,
    ) -> Result<Value, Error> {
        // The protocol has a message of its own for turns that are not wanted any more.
        let options = RequestOptions::new().no_timeout().cancel_on_drop(false);
        let session = self.session.clone();
        let params = json!({"sessionId": session, "prompt": self.prompt});
        let request = connection.wire.request_raw(PROMPT, &params).options(options);
        self.request_id = request.id().map(|id| id_text(&id));
        if let (Some(layer), Some(id)) = (&mut self.layer, self.request_id.clone()) {
            let stored = layer.get_mut().unwrap_or_else(PoisonError::into_inner).before_send(id);
            stored.await?;
        }
        let call = connection.prompt(&session, request);
        let mut call = std::pin::pin!(call);
        let policy = self.inner.options.drop_policy;
        if policy == DropPolicy::Cancel && dropped.try_recv() == Err(TryRecvError::Closed) {
            return Err(Error::config("the turn was dropped before its prompt was sent"));
        }
        let progress = self.inner.hub.watch_progress(&self.session);
        let mut state = self.inner.hub.watch_turn(&self.session);
        if *state.borrow_and_update() == TurnState::Cancelling {
            return Err(Error::Withdrawn { what: "session/prompt".to_owned() });
        }
        self.inner.hub.prompt_sent(&session);
        tokio::select! {
            biased;
            answer = &mut call => answer,
            // Every cancel of the turn follows its prompt.
            () = async { drop(state.wait_for(|state| *state == TurnState::Cancelling).await) } => {
                stop(connection, &self.session, call).await
            }
            _ = &mut *dropped => {
                self.inner.hub.leave_turn(&self.session);
                match policy {
                    DropPolicy::Detach => call.await,
                    // The session is busy until the agent has stopped: it must never have two turns at once.
                    DropPolicy::Cancel => stop(connection, &self.session, call).await,
                }
            }
            (phase, within) = reached(&mut self.limits, progress) => {
                let late = || {
                    let timeout = Timeout::new(phase, "session/prompt", within);
                    Error::Timeout(Box::new(timeout))
                };
                let limit = self.inner.options.timeouts.cancel;
                let mut stopped = std::pin::pin!(stop(connection, &self.session, call));
                if tokio::time::timeout(limit, &mut stopped).await.is_err() {
                    // Its reader does not wait for an agent that does not stop; the session does.
                    settle(&self.queue, &self.outcome, Err(late()));
                    let _ = stopped.await;
                }
                Err(late())
            }
        }
    }
}

fn settle(queue: &Queue<TurnItem>, settled: &watch::Sender<Option<Outcome>>, outcome: Outcome) {
    queue.end();
    settled.send_if_modified(|settled| {
        let first = settled.is_none();
        if first {
            *settled = Some(outcome);
        }
        first
    });
}

/// Cancels a turn and waits until it has stopped. The prompt is sent, or at least queued, before its cancel.
async fn stop(
    connection: &Connection,
    session: &str,
    mut call: Pin<&mut impl Future<Output = Result<Value, Error>>>,
) -> Result<Value, Error> {
    tokio::select! {
        biased;
        answer = &mut call => return answer,
        cancelled = connection.cancel(session) => {
            if let Err(error) = cancelled {
                tracing::debug!(%error, "a turn could not be cancelled");
            }
        }
    }
    call.await
}

/// Whether a limit of the turn has ended it.
fn is_limit(error: &Error) -> bool {
    matches!(error, Error::Timeout(timeout) if matches!(timeout.phase, Phase::Deadline | Phase::Idle))
}
