//! One turn of a session.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use acp_http_client::RequestOptions;
use futures::{Stream, StreamExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::connection::Connection;
use super::lifecycle::Inner;
use super::list::find_session;
use super::metering::metered;
use super::session::Session;
use crate::event::Queue;
use crate::open_enum::open_enum;
use crate::snapshot::Patch;
use crate::usage::{BudgetEvent, TurnUsage};
use crate::{AgentResult, DropPolicy, Error, Prompt, SessionInfo, TerminationReport, Update};

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
    /// The response as it came.
    pub raw: Value,
    /// What the turn used, as far as the agent reports it.
    pub usage: Box<TurnUsage>,
    /// The budget that was spent in the turn, if that is why it was cancelled.
    pub budget: Option<Box<BudgetEvent>>,
}

impl TurnOutcome {
    /// Reads the response to a prompt.
    fn read(raw: Value) -> Self {
        let reason = raw.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        Self { stop_reason: StopReason::from(reason), raw, usage: Box::default(), budget: None }
    }

    /// The member `_meta` of the response.
    #[must_use]
    pub fn meta(&self) -> Option<&Value> {
        self.raw.get("_meta")
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

/// One turn: a stream of the agent's reports, and an outcome.
///
/// The stream ends when the turn is over, after every report that came before its end. What a crash leaves behind
/// is delivered too, and the outcome is an error then. Dropping a turn that is not over cancels it, unless the
/// [`DropPolicy`] says otherwise.
#[must_use = "a turn that is dropped is cancelled"]
pub struct Turn {
    session: Session,
    queue: Arc<Queue<Update>>,
    outcome: watch::Receiver<Option<Outcome>>,
    /// Tells the task that runs the turn when nobody holds this any more.
    _held: oneshot::Sender<()>,
}

impl Turn {
    pub(super) fn start(session: Session, prompt: &Prompt) -> Self {
        let inner = Arc::clone(session.client().inner());
        let (held, dropped) = oneshot::channel();
        let (sender, outcome) = watch::channel(None);
        let Some(queue) = inner.hub.begin_turn(session.id()) else {
            let queue = Arc::new(Queue::new(0));
            queue.end();
            let session_id = session.id().to_owned();
            sender.send_replace(Some(Err(Error::TurnInProgress { session_id })));
            return Self { session, queue, outcome, _held: held };
        };
        let driver = Driver {
            inner: Arc::clone(&inner),
            session: session.id().to_owned(),
            params: json!({"sessionId": session.id(), "prompt": prompt.to_value()}),
            outcome: sender,
        };
        if !inner.spawn(driver.run(dropped)) {
            // Nothing runs outside a runtime; the sender is gone with the driver, and the outcome says so.
            inner.hub.end_turn(session.id());
        }
        Self { session, queue, outcome, _held: held }
    }

    /// The session it belongs to.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How it ends, for somebody who does not hold it.
    pub(crate) fn watch(&self) -> watch::Receiver<Option<Outcome>> {
        self.outcome.clone()
    }

    /// The next report, or `None` when the turn is over.
    pub async fn next(&mut self) -> Option<Update> {
        StreamExt::next(self).await
    }

    /// Waits for the end of the turn. Reports that were not read can be read afterwards.
    ///
    /// # Errors
    /// [`Error::AgentEnded`] if the agent or the session ended before its answer,
    /// [`Error::TurnInProgress`] if another turn is running, and what else can go wrong.
    pub async fn outcome(&mut self) -> Result<TurnOutcome, Error> {
        match self.outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone()) {
            Ok(Some(outcome)) => outcome,
            _ => Err(Error::config("a turn needs a tokio runtime and its client")),
        }
    }

    /// Waits for the end of the turn and gives the agent's message as one text.
    ///
    /// # Errors
    /// As [`outcome`](Self::outcome).
    pub async fn text(mut self) -> Result<String, Error> {
        let mut text = String::new();
        while let Some(update) = self.next().await {
            text.push_str(update.message_text().unwrap_or_default());
        }
        self.outcome().await.map(|_| text)
    }

    /// Cancels the turn and waits until it has stopped: [`Session::cancel`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not stop in time.
    pub async fn cancel(&self) -> Result<(), Error> {
        self.session.cancel().await
    }
}

impl Stream for Turn {
    type Item = Update;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.queue.poll(context)
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
    outcome: watch::Sender<Option<Outcome>>,
}

/// Frees the session for the next turn, also when the task is ended from outside.
struct Free<'a>(&'a Inner, &'a str);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.hub.end_turn(self.1);
    }
}

impl Driver {
    async fn run(self, dropped: oneshot::Receiver<()>) {
        let outcome = self.turn(dropped).await;
        self.outcome.send_replace(Some(outcome));
    }

    async fn turn(&self, dropped: oneshot::Receiver<()>) -> Outcome {
        let _free = Free(&self.inner, &self.session);
        let outcome = metered(&self.inner, &self.session, self.finished(dropped)).await;
        self.inner.hub.turn_outcome(&self.session, &outcome);
        outcome
    }

    async fn finished(&self, dropped: oneshot::Receiver<()>) -> Outcome {
        let connection = self.inner.connection().await?;
        let began = self.inner.hub.now();
        let outcome = self.prompt(&connection, dropped).await;
        // Whatever came before the end belongs to the turn.
        connection.barrier().await;
        if let Ok(outcome) = &outcome {
            self.inner.hub.answered(&self.session, Patch::of_answer(&outcome.raw), began);
        }
        match outcome {
            Err(Error::Rpc { error, .. }) if error.message.contains(ALREADY_ENDED) => {
                Err(self.already_ended(Error::Rpc { error, status: None }).await)
            }
            outcome => outcome,
        }
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

    async fn prompt(&self, connection: &Connection, dropped: oneshot::Receiver<()>) -> Outcome {
        // The protocol has a message of its own for turns that are not wanted any more.
        let options = RequestOptions::new().no_timeout().cancel_on_drop(false);
        let call = connection.session_call("session/prompt", self.params.clone(), &self.session, options);
        let mut call = std::pin::pin!(call);
        let answer = tokio::select! {
            answer = &mut call => answer,
            _ = dropped => match self.inner.options.drop_policy {
                DropPolicy::Cancel => {
                    self.inner.hub.leave_turn(&self.session);
                    // The session is busy until the agent has stopped: it must never have two turns at once.
                    let (cancelled, answer) = tokio::join!(connection.cancel(&self.session), &mut call);
                    if let Err(error) = cancelled {
                        tracing::debug!(%error, "a turn that was dropped could not be cancelled");
                    }
                    answer
                }
                DropPolicy::Detach => {
                    self.inner.hub.leave_turn(&self.session);
                    call.await
                }
            },
        };
        answer.map(TurnOutcome::read)
    }
}
