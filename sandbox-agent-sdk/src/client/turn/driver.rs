//! The task that runs a turn.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client as wire;
use serde_json::{Value, json};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{oneshot, watch};

use super::limits::{TurnLimits, is_limit, late, reached, unread, unsent};
use super::reload::Reload;
use super::{Current, Outcome, TurnItem, TurnOutcome};
use crate::client::connection::Connection;
use crate::client::event::Queue;
use crate::client::lifecycle::Inner;
use crate::client::list::find_session;
use crate::client::metering::metered;
use crate::client::names::PROMPT;
use crate::client::prompting::is_cancelled;
use crate::client::reading::id_text;
use crate::client::session::TurnState;
use crate::client::snapshot::Patch;
use crate::client::stream::{PromptLayer, Resend};
use crate::error::{RpcError, is_unknown_session};
use crate::event::TurnEnded;
use crate::session::SessionInfo;
use crate::termination::TerminationReport;
use crate::update::Missed;
use crate::{DropPolicy, Error};

/// The error of servers for a prompt to a session that has ended. An agent may use the same words for another failure,
/// so that the prompt counts as not executed only if the server confirms the end.
const ALREADY_ENDED: &str = "session already ended";

/// Runs a turn, from its prompt to its end.
pub(super) struct Driver {
    pub(super) inner: Arc<Inner>,
    pub(super) session: String,
    pub(super) current: Current,
    pub(super) prompt: Value,
    pub(super) queue: Arc<Queue<TurnItem>>,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
    /// The layer that stores the prompt before it is sent. The lock makes the driver shareable and is never
    /// contended.
    pub(super) layer: Option<Mutex<Box<dyn PromptLayer>>>,
    /// The id of the prompt, once it is known.
    pub(super) request_id: Option<String>,
    pub(super) limits: watch::Receiver<TurnLimits>,
    /// How an incomplete turn is loaded again, if it is.
    pub(super) reload: Option<Arc<Reload>>,
}

/// How the wait for an earlier turn ended.
enum Waited {
    /// The turn has begun.
    Begun,
    /// The application cancelled it.
    Cancelled,
    /// Another turn is running.
    Refused,
}

/// Frees the session for the next turn, even if the task is aborted.
struct Free {
    inner: Arc<Inner>,
    current: Current,
    done: bool,
}

impl Free {
    fn finish(mut self, request_id: Option<String>, outcome: &Outcome) {
        self.done = true;
        let session_id = self.current.id().to_string();
        self.inner.hub.finish_turn(TurnEnded { session_id, request_id, outcome: outcome.clone() });
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        if !self.done {
            self.inner.hub.end_turn(&self.current.id());
        }
    }
}

impl Driver {
    pub(super) async fn run(mut self, mut dropped: oneshot::Receiver<()>, before: TurnState) {
        if before == TurnState::Cancelling {
            let waited = self.unsent(self.wait_for_cancel(&mut dropped)).await;
            self.inner.hub.stop_waiting(&self.session, &self.queue);
            match waited {
                Ok(Waited::Begun) => {}
                // A layer has stored nothing and gets no end.
                Ok(Waited::Cancelled) if self.layer.is_some() => return self.settle(Err(withdrawn())),
                Ok(Waited::Cancelled) => return self.settle(Ok(TurnOutcome::withdrawn())),
                Ok(Waited::Refused) => return self.refuse(),
                Err(late) => return self.settle(Err(late)),
            }
        }
        let outcome = self.turn(dropped).await;
        self.settle(outcome);
    }

    /// Waits, within a time limit, until the previous turn has stopped, and begins this one. If several prompts wait,
    /// the first one begins.
    async fn wait_for_cancel(&self, dropped: &mut oneshot::Receiver<()>) -> Waited {
        let limit = self.inner.options.timeouts.cancel;
        let mut state = self.inner.hub.watch_turn(&self.session);
        let begun = async {
            loop {
                state.mark_unchanged();
                match self.inner.hub.begin_waiting(&self.session, &self.queue) {
                    None => return Waited::Cancelled,
                    Some(TurnState::Idle) => return Waited::Begun,
                    Some(TurnState::Running) => return Waited::Refused,
                    Some(TurnState::Cancelling) => {}
                }
                if state.changed().await.is_err() {
                    return Waited::Refused;
                }
            }
        };
        tokio::select! {
            biased;
            _ = dropped, if !self.is_detached() => Waited::Refused,
            begun = tokio::time::timeout(limit, begun) => begun.unwrap_or(Waited::Refused),
        }
    }

    /// Whether the turn continues after its reader was dropped.
    fn is_detached(&self) -> bool {
        self.inner.options.drop_policy == DropPolicy::Detach
    }

    /// Waits for a step before the prompt is sent, within the limits of the turn.
    fn unsent<T>(&self, step: impl Future<Output = T>) -> impl Future<Output = Result<T, Error>> {
        unsent(self.limits.clone(), self.inner.hub.watch_progress(&self.session), step)
    }

    /// Another turn is running.
    pub(super) fn refuse(&self) {
        self.settle(Err(Error::TurnInProgress { session_id: self.session.clone() }));
    }

    /// Ends the turn for its reader, unless that has already happened.
    fn settle(&self, outcome: Outcome) {
        settle(&self.queue, &self.outcome, outcome);
    }

    async fn turn(&mut self, mut dropped: oneshot::Receiver<()>) -> Outcome {
        let inner = Arc::clone(&self.inner);
        let free = Free { inner: Arc::clone(&inner), current: self.current.clone(), done: false };
        let session = self.session.clone();
        let mut outcome = metered(&inner, &session, self.finished(&mut dropped)).await;
        if let Err(error) = &outcome
            && !error.maybe_executed()
            && !is_limit(error)
            && dropped.try_recv() != Err(TryRecvError::Closed)
        {
            match self.is_sent_again(error).await {
                Ok(false) => {}
                Ok(true) => {
                    let session = self.session.clone();
                    outcome = metered(&inner, &session, self.finished(&mut dropped)).await;
                }
                Err(late) => outcome = Err(late),
            }
        }
        free.finish(self.request_id.clone(), &outcome);
        let ended = self.layer.as_mut().map(|layer| layer.get_mut().unwrap_or_else(PoisonError::into_inner));
        let Some(ended) = ended.map(|layer| layer.ended()) else { return outcome };
        match (outcome, ended.await) {
            (Ok(outcome), Err(error)) => {
                Err(Error::AfterTurn { outcome: Box::new(outcome), source: Arc::new(error) })
            }
            (outcome, _) => outcome,
        }
    }

    /// Asks the layer where a prompt that was not executed is sent again, and moves the turn there. Fails if a limit is
    /// reached meanwhile.
    async fn is_sent_again(&mut self, error: &Error) -> Result<bool, Error> {
        let Some(layer) = &mut self.layer else { return Ok(false) };
        // Updates that arrive before the prompt is sent again do not belong to the turn.
        self.inner.hub.prompt_withdrawn(&self.session);
        let mut resend = layer.get_mut().unwrap_or_else(PoisonError::into_inner).not_executed(error);
        let (mut limits, progress) = (self.limits.clone(), self.inner.hub.watch_progress(&self.session));
        let (resend, late) = tokio::select! {
            biased;
            resend = &mut resend => (resend, None),
            (phase, within) = reached(&mut limits, progress) => {
                let late = late(phase, within, false);
                // Its reader does not wait for the session to be restored. The turn ends where the session is then.
                self.settle(Err(late.clone()));
                (resend.await, Some(late))
            }
        };
        let move_turn =
            |resend: &Resend| self.inner.hub.move_turn(&self.session, &resend.session_id, &self.queue);
        let moved = resend.filter(move_turn);
        let is_moved = moved.is_some();
        if let Some(resend) = moved {
            *self.current.lock() = resend.session_id.as_str().into();
            self.session = resend.session_id;
            self.prompt = resend.prompt.to_value();
        }
        late.map_or(Ok(is_moved), Err)
    }

    async fn finished(&mut self, dropped: &mut oneshot::Receiver<()>) -> Outcome {
        if self.limits.borrow().idle.is_some() {
            self.inner.hub.time_progress(&self.session);
        }
        let (connection, request) = match self.prepared_unless_stopped(dropped).await {
            Err(Error::Withdrawn { .. }) => return Ok(TurnOutcome::withdrawn()),
            prepared => prepared?,
        };
        let began = self.inner.hub.now();
        let outcome = self.prompt(&connection, request, dropped).await;
        let cancelled = *self.inner.hub.watch_turn(&self.session).borrow() == TurnState::Cancelling;
        let outcome = match outcome {
            // It was cancelled before its prompt was sent: there is no response.
            Err(Error::Withdrawn { .. }) => Ok(TurnOutcome::withdrawn()),
            // Agents end a turn that this client has cancelled in many ways.
            Ok(raw) if cancelled => Ok(TurnOutcome::cancelled(raw, self.missing())),
            Err(error @ (Error::Rpc { .. } | Error::LoginRequired(_))) if cancelled => {
                Ok(TurnOutcome::cancelled(json!({ "error": error.rpc_error() }), self.missing()))
            }
            outcome => outcome.map(|raw| TurnOutcome::read(raw, self.missing())),
        };
        if let Ok(outcome) = &outcome {
            self.inner.hub.answered(&self.session, Patch::of_answer(&outcome.raw), began);
        }
        match outcome {
            Err(Error::Rpc { error, .. })
                if error.message.contains(ALREADY_ENDED) && !self.inner.hub.has_updates(&self.session) =>
            {
                Err(self.already_ended(Error::Rpc { error, status: None, executed: true }).await)
            }
            Err(Error::Rpc { error, status, .. }) => Err(self.refused(error, status)),
            Err(Error::LoginRequired(mut login)) => {
                // The prompt is not sent again, but the next one finds the agent logged in. A login that fails does not
                // change what is known about this prompt.
                let agent = self.inner.hub.agent_of(&self.session);
                let _ = connection.log_in_if_required(agent.as_deref()).await;
                login.executed = true;
                Err(Error::LoginRequired(login))
            }
            outcome => outcome,
        }
    }

    /// Returns the error of a prompt to which the agent responded with an error: it may have done a part of the work,
    /// unless it does not have the session and has reported nothing.
    fn refused(&self, error: RpcError, status: Option<u16>) -> Error {
        let is_silent = !self.inner.hub.has_updates(&self.session) && self.missing().is_empty();
        let mut refusal = Error::Rpc { error, status, executed: true };
        let is_unknown = is_silent && is_unknown_session(&refusal);
        if let Error::Rpc { executed, .. } = &mut refusal {
            *executed = !is_unknown;
        }
        refusal
    }

    /// Returns what is missing in the turn: lost on the connection, or not read in time.
    fn missing(&self) -> Vec<Missed> {
        let mut missing = self.inner.hub.turn_missed(&self.session);
        missing.extend(self.queue.missed());
        missing
    }

    /// The session ended without this client's knowledge, if the server confirms it. Otherwise the response is returned.
    async fn already_ended(&self, response: Error) -> Error {
        let info = match find_session(&self.inner, &self.session).await {
            Ok(SessionInfo { termination_info: Some(info), .. }) => info,
            _ => return response,
        };
        let info = self.inner.hub.end_session(&self.session, TerminationReport::from_info(info));
        Error::ended(Some(&self.session), info, false)
    }

    /// Prepares the prompt, within the limits of the turn and until the turn is dropped or cancelled.
    async fn prepared_unless_stopped(
        &mut self,
        dropped: &mut oneshot::Receiver<()>,
    ) -> Result<(Arc<Connection>, wire::Request<wire::Json>), Error> {
        let is_detached = self.is_detached();
        let progress = self.inner.hub.watch_progress(&self.session);
        let mut state = self.inner.hub.watch_turn(&self.session);
        tokio::select! {
            biased;
            prepared = unsent(self.limits.clone(), progress, self.prepared()) => prepared?,
            _ = dropped, if !is_detached => Err(dropped_unsent()),
            _ = state.wait_for(|state| *state == TurnState::Cancelling) => Err(withdrawn()),
        }
    }

    /// Connects, and lets the layer store the prompt. Events that have arrived until then do not belong to the turn.
    async fn prepared(&mut self) -> Result<(Arc<Connection>, wire::Request<wire::Json>), Error> {
        let connection = self.inner.connection().await?;
        // Turns are cancelled with a separate message.
        let options = wire::RequestOptions::new().no_timeout().cancel_on_drop(false);
        let params = json!({"sessionId": self.session, "prompt": self.prompt});
        let request = connection.wire.request_raw(PROMPT, &params).options(options);
        self.request_id = request.id().map(|id| id_text(&id));
        if let (Some(layer), Some(id)) = (&mut self.layer, self.request_id.clone()) {
            let stored = layer.get_mut().unwrap_or_else(PoisonError::into_inner).before_send(id);
            stored.await?;
        }
        self.begin_prompt(&connection).await;
        Ok((connection, request))
    }

    /// Begins the prompt when no call loads the session. Everything that arrived before does not belong to the turn.
    async fn begin_prompt(&self, connection: &Connection) {
        let hub = &self.inner.hub;
        let mut loads = hub.watch_loads(&self.session);
        loop {
            // The sender lives as long as the state of the session, which the turn uses.
            let _ = loads.wait_for(|loads| *loads == 0).await;
            connection.barrier().await;
            if hub.prompt_sent(&self.session) {
                break;
            }
        }
        // A prompt that is sent again was already recorded.
        if let Some(reload) = self.reload.as_ref().filter(|reload| reload.earlier.get().is_none())
            && let Some(earlier) = hub.record_prompt(&self.session, &reload.prompt)
        {
            let _ = reload.earlier.set(earlier);
        }
    }

    async fn prompt(
        &mut self,
        connection: &Connection,
        request: wire::Request<wire::Json>,
        dropped: &mut oneshot::Receiver<()>,
    ) -> Result<Value, Error> {
        let session = self.session.clone();
        let call = connection.prompt(&session, request);
        let mut call = std::pin::pin!(call);
        let policy = self.inner.options.drop_policy;
        if policy == DropPolicy::Cancel && dropped.try_recv() == Err(TryRecvError::Closed) {
            return Err(dropped_unsent());
        }
        let progress = self.inner.hub.watch_progress(&self.session);
        let mut state = self.inner.hub.watch_turn(&self.session);
        if *state.borrow_and_update() == TurnState::Cancelling {
            return Err(withdrawn());
        }
        let mut is_left = false;
        loop {
            return tokio::select! {
                biased;
                answer = &mut call => answer,
                // Every cancel of the turn follows its prompt.
                () = async { drop(state.wait_for(|state| *state == TurnState::Cancelling).await) } => {
                    stop(connection, &self.session, call).await
                }
                _ = &mut *dropped, if !is_left => {
                    self.inner.hub.leave_turn(&self.session);
                    if policy == DropPolicy::Detach {
                        is_left = true;
                        continue;
                    }
                    // The session is busy until the agent has stopped: it must never have two turns at once.
                    stop(connection, &self.session, call).await
                }
                () = unread(progress.clone(), self.inner.options.timeouts.unread_request) => {
                    self.inner.hub.refuse_unread(&self.session, &self.queue);
                    continue;
                }
                (phase, within) = reached(&mut self.limits, progress.clone()) => {
                    let limit = self.inner.options.timeouts.cancel;
                    let mut stopped = std::pin::pin!(stop(connection, &self.session, call));
                    let answer = match tokio::time::timeout(limit, &mut stopped).await {
                        Ok(answer) => answer,
                        Err(_) => {
                            // Its reader does not wait for an agent that does not stop; the session does.
                            settle(&self.queue, &self.outcome, Err(late(phase, within, true)));
                            stopped.await
                        }
                    };
                    let is_unsent = matches!(answer, Err(Error::Withdrawn { .. } | Error::Unreachable(_)));
                    Err(late(phase, within, !is_unsent))
                }
            };
        }
    }
}

/// The error of a turn that was dropped before its prompt was sent.
fn dropped_unsent() -> Error {
    Error::config("the turn was dropped before its prompt was sent")
}

/// The error of a prompt that was cancelled before it was sent.
fn withdrawn() -> Error {
    Error::Withdrawn { what: PROMPT.to_owned() }
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

/// Cancels a turn and waits until it has stopped. The prompt is sent, or at least queued, before its cancel. Sends another
/// cancel whenever the application requests one.
async fn stop(
    connection: &Connection,
    session: &str,
    mut call: Pin<&mut impl Future<Output = Result<Value, Error>>>,
) -> Result<Value, Error> {
    let mut cancels = connection.hub.watch_cancels(session);
    let response = loop {
        let cancelling = async {
            if let Err(error) = connection.cancel(session).await {
                tracing::debug!(error = %crate::convert::text::OneLine(&error), "a turn could not be cancelled");
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            response = &mut call => break response,
            () = cancelling => {}
            Ok(_) = cancels.changed() => {}
        }
    };
    // Agents respond to a cancelled prompt in many ways. Only one of them says that the run was interrupted.
    if matches!(response, Ok(_) | Err(Error::Rpc { .. } | Error::LoginRequired(_))) {
        let is_interrupted = response.as_ref().is_ok_and(is_cancelled);
        connection.run_end(session, is_interrupted).await;
        connection.barrier().await;
    }
    response
}
