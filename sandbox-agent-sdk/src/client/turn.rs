//! One turn of a session.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
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
use super::pump::wait_until;
use super::session::{Session, TurnState};
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
mod item;

pub use collected::{CollectedTurn, FileChange, IncompleteTurn};
pub use item::TurnEvent;
pub(crate) use item::TurnItem;

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
    /// The response as it came.
    pub raw: Value,
    /// What the turn used, as far as the agent reports it.
    pub usage: Box<TurnUsage>,
    /// The budget that was spent in the turn, if that is why it was cancelled.
    pub budget: Option<Box<BudgetEvent>>,
}

impl TurnOutcome {
    /// Reads the response to a prompt.
    fn read(raw: Value, missing: Vec<Missed>) -> Self {
        let reason = raw.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        let stop_reason = StopReason::from(reason);
        Self { stop_reason, missing, raw, usage: Box::default(), budget: None }
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

/// When a turn has to end, and how long that was from its setting.
type Deadline = Option<(Instant, Duration)>;

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
    queue: Arc<Queue<TurnItem>>,
    outcome: watch::Receiver<Option<Outcome>>,
    deadline: watch::Sender<Deadline>,
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
    pub(super) fn start(session: Session, prompt: &Prompt) -> Self {
        let inner = Arc::clone(session.client().inner());
        let queue = inner.hub.turn_queue();
        let (held, dropped) = oneshot::channel();
        let (sender, outcome) = watch::channel(None);
        let (deadline, due) = watch::channel(None);
        let before = match prompt.is_empty() {
            true => {
                sender.send_replace(Some(Err(Error::config("a prompt needs content"))));
                None
            }
            false => Some(inner.hub.begin_turn(session.id(), &queue)),
        };
        let driver = Driver {
            inner: Arc::clone(&inner),
            session: session.id().to_owned(),
            params: json!({"sessionId": session.id(), "prompt": prompt.to_value()}),
            queue: Arc::clone(&queue),
            outcome: sender,
            due,
        };
        match before {
            Some(TurnState::Running) => driver.refuse(),
            Some(before) => {
                if !inner.spawn(driver.run(dropped, before)) {
                    // Nothing runs outside a runtime; the sender is gone with the driver, and the outcome says so.
                    if before == TurnState::Idle {
                        inner.hub.end_turn(session.id());
                    }
                    queue.end();
                }
            }
            None => queue.end(),
        }
        Self { session, queue, outcome, deadline, reading: Reading::NotYet, _held: held }
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How it ends, for a task that does not hold it.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<Outcome>> {
        self.outcome.clone()
    }

    /// Cancels the turn if it is not over within this time from now.
    ///
    /// Its outcome is then an [`Error::Timeout`] with [`Phase::Deadline`]; [`text`](Self::text) and
    /// [`collect`](Self::collect) give an [`Error::IncompleteTurn`] with what was received.
    pub fn with_deadline(self, within: Duration) -> Self {
        self.deadline.send_replace(Some((Instant::now() + within, within)));
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
    /// [`Error::IncompleteTurn`] if something is missing or the deadline has passed; it has what was received.
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
            Err(error) if is_deadline(&error) => {
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
        self.session.cancel().await
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
            inner.hub.drop_turn(self.session.id(), &self.queue, inner.options.drop_policy);
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
    params: Value,
    queue: Arc<Queue<TurnItem>>,
    outcome: watch::Sender<Option<Outcome>>,
    due: watch::Receiver<Deadline>,
}

/// Frees the session for the next turn, also when the task is ended from outside.
struct Free<'a>(&'a Inner, &'a str);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.hub.end_turn(self.1);
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
        self.queue.end();
        self.outcome.send_if_modified(|settled| {
            let first = settled.is_none();
            if first {
                *settled = Some(outcome);
            }
            first
        });
    }

    async fn turn(&mut self, dropped: oneshot::Receiver<()>) -> Outcome {
        let inner = Arc::clone(&self.inner);
        let session = self.session.clone();
        let _free = Free(&inner, &session);
        let outcome = metered(&inner, &session, self.finished(dropped)).await;
        self.inner.hub.turn_outcome(&self.session, &outcome);
        outcome
    }

    async fn finished(&mut self, dropped: oneshot::Receiver<()>) -> Outcome {
        let connection = self.inner.connection().await?;
        let began = self.inner.hub.now();
        let outcome = self.prompt(&connection, dropped).await;
        // Whatever came before the end belongs to the turn.
        connection.barrier().await;
        let outcome = match outcome {
            // It was cancelled before its prompt was sent: there is no response.
            Err(Error::Withdrawn { .. }) => {
                let mut outcome = TurnOutcome::read(Value::Null, Vec::new());
                outcome.stop_reason = StopReason::Cancelled;
                Ok(outcome)
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
        mut dropped: oneshot::Receiver<()>,
    ) -> Result<Value, Error> {
        // The protocol has a message of its own for turns that are not wanted any more.
        let options = RequestOptions::new().no_timeout().cancel_on_drop(false);
        let params = std::mem::take(&mut self.params);
        let session = self.session.clone();
        let call = connection.session_call("session/prompt", params, &session, options);
        let mut call = std::pin::pin!(call);
        let policy = self.inner.options.drop_policy;
        if policy == DropPolicy::Cancel && dropped.try_recv() == Err(TryRecvError::Closed) {
            return Err(Error::config("the turn was dropped before its prompt was sent"));
        }
        let mut state = self.inner.hub.watch_turn(&self.session);
        if *state.borrow_and_update() == TurnState::Cancelling {
            return Err(Error::Withdrawn { what: "session/prompt".to_owned() });
        }
        tokio::select! {
            biased;
            answer = &mut call => answer,
            // Every cancel of the turn follows its prompt.
            () = async { drop(state.wait_for(|state| *state == TurnState::Cancelling).await) } => {
                stop(connection, &self.session, call).await
            }
            _ = dropped => {
                self.inner.hub.leave_turn(&self.session);
                match policy {
                    DropPolicy::Detach => call.await,
                    // The session is busy until the agent has stopped: it must never have two turns at once.
                    DropPolicy::Cancel => stop(connection, &self.session, call).await,
                }
            }
            within = passed(&mut self.due) => {
                let late = || {
                    let timeout = Timeout::new(Phase::Deadline, "session/prompt", within);
                    Error::Timeout(Box::new(timeout))
                };
                let limit = self.inner.options.timeouts.cancel;
                let mut stopped = std::pin::pin!(stop(connection, &self.session, call));
                if tokio::time::timeout(limit, &mut stopped).await.is_err() {
                    // Its reader does not wait for an agent that does not stop; the session does.
                    self.settle(Err(late()));
                    let _ = stopped.await;
                }
                Err(late())
            }
        }
    }
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

/// Waits until the deadline has passed, if one is set, and says how long it was.
async fn passed(due: &mut watch::Receiver<Deadline>) -> Duration {
    loop {
        let set = *due.borrow_and_update();
        tokio::select! {
            () = wait_until(set.map(|(at, _)| at)) => return set.map_or(Duration::ZERO, |(_, within)| within),
            changed = due.changed() => {
                if changed.is_err() {
                    // The turn is not held any more, which ends it in its own way.
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

fn is_deadline(error: &Error) -> bool {
    matches!(error, Error::Timeout(timeout) if timeout.phase == Phase::Deadline)
}
