//! Prompts, and turns of other processes.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::{Begun, Command, ForeignTurn, Owned, Replay, Tracker, Wish, ended_by, interrupted};
use crate::client::WeakClient;
use crate::sessions::UserAction;
use crate::sessions::entry::rpc_id_of;
use crate::sessions::failures::is_lost_unsent;
use crate::sessions::options::Durability;
use crate::sessions::scan::Response;
use crate::sessions::shared::Shared;
use crate::sessions::store::{Append, Fence, NewEvent, RecordPatch, StoreError, StoredEventKind, TurnEnd};
use crate::sessions::unique::unique_id;
use crate::stream::{PromptLayer, Resend, StreamPosition as Position};
use crate::{Content, Error, NewSession, Prompt, TurnOutcome};

impl Tracker {
    /// Begins a turn: acquires the session if necessary, stores the prompt, and sends it.
    pub(in crate::sessions) async fn prompt(
        &mut self,
        prompt: Prompt,
        new: Option<Arc<NewSession>>,
    ) -> Result<Begun, Error> {
        let wish = Wish { action: UserAction::Send, new };
        let deadline = self.shared.deadline();
        loop {
            let record = self.shared.record(&self.id).await?;
            if !record.status.accepts_input() {
                return Err(Error::NotAllowed { action: UserAction::Send, status: record.status });
            }
            if !self.is_current(&record) {
                self.acquire(&wish).await?;
            }
            // The ends of earlier turns come before the prompt.
            self.store_ends().await;
            match self.send(&prompt, &wish).await {
                // Another process acquired it meanwhile.
                Err(Error::Store(StoreError::OwnershipLost { .. })) if Instant::now() < deadline => {
                    self.lose_ownership();
                }
                begun => return begun,
            }
        }
    }

    async fn send(&mut self, prompt: &Prompt, wish: &Wish) -> Result<Begun, Error> {
        let client = self.client.upgrade()?;
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        if owned.foreign.is_some() {
            return Ok(Begun::Busy);
        }
        let session_id = self.id.clone();
        let in_progress = || Error::TurnInProgress { session_id: session_id.clone() };
        let agent_session = owned.agent_session.clone().filter(|_| owned.turn.is_none());
        let agent_session = agent_session.ok_or_else(in_progress)?;
        let sent = self.with_history(prompt, None).await?;
        let attempt = self.attempt()?;
        let turn_id = unique_id();
        let payload = json!({"prompt": prompt.to_value(), "at": attempt.at});
        let unconfirmed = prompt_event(&turn_id, payload.clone());
        let (stored, written) = oneshot::channel();
        let (entered, restoring) = oneshot::channel();
        let ahead = WriteAhead {
            shared: Arc::clone(&self.shared),
            client: self.client.clone(),
            session: self.id.clone(),
            turn_id: turn_id.clone(),
            payload,
            prompt: prompt.clone(),
            wish: wish.clone(),
            attempt: Arc::new(Mutex::new(attempt)),
            stored: Some(stored),
            entered: Some(entered),
            is_stored: Arc::default(),
        };
        let echoes = self.shared.feed.begin_turn(&agent_session, &turn_id, &self.inbox);
        if let Some(owned) = &mut self.owned {
            // Only a server that echoes responses shows which updates precede them.
            if !echoes {
                owned.trailing.clear();
            }
            if owned.replay == Replay::Pending {
                owned.replay = Replay::Sent { is_heard: false };
            }
            owned.turn = Some(turn_id.clone());
        }
        // Before the prompt is sent: agent requests that arrive at once are stored under this turn.
        self.show();
        let turn = client.session(&agent_session).prompt_with(sent, ahead);
        let failure = |mut outcome: watch::Receiver<Option<Result<TurnOutcome, Error>>>| async move {
            outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone()?.err())
        };
        self.not_stored = None;
        let (failed, is_confirmed) = tokio::select! {
            biased;
            Ok(written) = written => (written.err(), true),
            // It could not be sent, and the turn asks this tracker to restore the session.
            Ok(()) = restoring => (None, true),
            // It failed before anything was stored, or was cancelled before the store confirmed the prompt.
            failed = failure(turn.outcome.clone()) => (failed, false),
        };
        let is_stored = match &failed {
            None => true,
            Some(Error::Store(error)) => error.may_be_done(),
            Some(_) => false,
        };
        if let Some(owned) = &mut self.owned {
            owned.turn.take_if(|_| !is_stored);
        }
        match failed {
            None => {
                if !is_confirmed {
                    self.store_unconfirmed(unconfirmed).await;
                }
                self.is_active_now();
                Ok(Begun::Turn(Box::new(turn)))
            }
            Some(Error::TurnInProgress { .. }) => Err(in_progress()),
            Some(Error::Store(error)) if error.may_be_done() => {
                drop(failure(turn.outcome.clone()).await);
                self.store_unconfirmed(unconfirmed).await;
                Err(error.into())
            }
            Some(error @ (Error::Store(_) | Error::NotAllowed { .. } | Error::Status(_))) => Err(error),
            // The turn reports the error.
            Some(_) => Ok(Begun::Turn(Box::new(turn))),
        }
    }

    /// A prompt may be stored, and its turn has ended. Stores both, so that no turn is open and no end is without a prompt.
    async fn store_unconfirmed(&mut self, prompt: NewEvent) {
        if self.owned.is_some() {
            self.unstored_ends.push(prompt);
        }
        // The end waits in the mailbox.
        self.catch_up().await;
    }

    /// The prompt with the recent history before it, for an agent that does not know the session.
    async fn with_history(&mut self, prompt: &Prompt, resent: Option<&str>) -> Result<Prompt, Error> {
        let is_owed = self.owned.as_ref().is_some_and(|owned| owned.replay != Replay::Done);
        if !is_owed {
            return Ok(prompt.clone());
        }
        self.catch_up().await;
        let history = self.shared.history(&self.id, resent).await?;
        Ok(match history {
            Some(history) => {
                Prompt::new(iter::once(Content::text_of(history)).chain(prompt.content.iter().cloned()))
            }
            None => prompt.clone(),
        })
    }

    /// Restores the session for a prompt that did not run. Fails if the prompt is stored and another process has ended its
    /// turn, or runs its own turn: that process stores the ends of both.
    async fn resend(
        &mut self,
        (turn, is_stored): (&str, bool),
        prompt: Prompt,
        wish: &Wish,
    ) -> Result<(Resend, Attempt), Error> {
        if let Some(owned) = &mut self.owned {
            owned.is_live = false;
            if owned.replay != Replay::Done {
                owned.replay = Replay::Pending;
            }
        }
        self.acquire(wish).await?;
        let is_ended = |owned: &Owned| is_stored && owned.turn.as_deref() != Some(turn);
        if self.owned.as_ref().is_some_and(|owned| is_ended(owned) || owned.foreign.is_some()) {
            return Err(Error::TurnInProgress { session_id: self.id.clone() });
        }
        // It is already stored, and is not part of the history.
        let prompt = self.with_history(&prompt, Some(turn)).await?;
        let Some(owned) = &mut self.owned else { return Err(Error::NotConnected) };
        let session = owned.agent_session.clone().ok_or(Error::NotConnected)?;
        if owned.replay == Replay::Pending {
            owned.replay = Replay::Sent { is_heard: false };
        }
        Ok((Resend { session_id: session, prompt }, self.attempt()?))
    }

    /// Returns the fence and the position to store with a prompt that is about to be sent.
    fn attempt(&self) -> Result<Attempt, Error> {
        let owned = self.owned.as_ref().ok_or(Error::NotConnected)?;
        let at = self.shared.feed.position().unwrap_or_else(Position::beginning);
        Ok(Attempt { fence: owned.fence, at: Position { incarnation: owned.incarnation, ..at } })
    }

    /// The response to a prompt arrived on the stream.
    pub(super) async fn responded(&mut self, request: &str, response: &Response) {
        let Some(owned) = &mut self.owned else { return };
        if let Some(n) = owned.trailing.iter().position(|trailing| trailing.request == request) {
            owned.trailing.drain(..=n);
        }
        if owned.foreign.as_ref().is_some_and(|foreign| foreign.prompts.iter().any(|id| id == request)) {
            self.foreign_turn_ended(Some(response)).await;
        }
    }

    /// The response to the prompt of another process arrived, or never will.
    pub(super) async fn foreign_turn_ended(&mut self, response: Option<&Response>) {
        let Some(foreign) = self.owned.as_mut().and_then(|owned| owned.foreign.take()) else { return };
        let rules = &self.shared.options.result_rules;
        let end = response.map_or_else(interrupted, |response| ended_by(response, rules));
        self.end_turn(&foreign.turn.turn_id, &end, RecordPatch::default(), None).await;
    }

    /// Cancels a turn on the endpoint of another process.
    pub(in crate::sessions) async fn cancel_remote(&mut self) -> Result<(), Error> {
        match self.owned.as_ref().is_some_and(Owned::is_remote) {
            true => self.cancel_foreign(&self.client.upgrade()?).await,
            false => Ok(()),
        }
    }

    /// Gives up a turn of another program that did not stop and of which the agent reported nothing. It was probably never
    /// sent, unless a gap may hold its reports and its response.
    pub(in crate::sessions) async fn interrupt(&mut self, turn: String) -> Result<bool, Error> {
        let Some(owned) = &mut self.owned else { return Ok(false) };
        let is_unheard = |foreign: &ForeignTurn| foreign.turn.turn_id == turn && !foreign.is_heard;
        if let Some(foreign) = owned.foreign.take_if(|foreign| is_unheard(foreign)) {
            let end = TurnEnd { unheard: foreign.unconfirmed.is_none(), ..interrupted() };
            self.end_turn(&turn, &end, RecordPatch::default(), None).await;
            return Ok(true);
        }
        Ok(owned.foreign.is_none())
    }
}

/// One attempt to send a prompt.
#[derive(Clone, Copy)]
struct Attempt {
    fence: Fence,
    /// Counted as in the store: the next owner reads the turn from here if the server is the same one.
    at: Position,
}

/// Stores a prompt before it is sent.
struct WriteAhead {
    shared: Arc<Shared>,
    client: WeakClient,
    session: String,
    turn_id: String,
    payload: Value,
    prompt: Prompt,
    wish: Wish,
    /// Guards what is another one after the session was restored; held for a copy.
    attempt: Arc<Mutex<Attempt>>,
    /// Receives the outcome of the first attempt.
    stored: Option<oneshot::Sender<Result<(), Error>>>,
    /// Is notified that the session is being restored.
    entered: Option<oneshot::Sender<()>>,
    /// Whether the prompt is stored, so that the end of the turn is.
    is_stored: Arc<AtomicBool>,
}

impl PromptLayer for WriteAhead {
    fn before_send(&mut self, request_id: String) -> BoxFuture<'static, Result<(), Error>> {
        let append = self.append(&request_id);
        self.shared.feed.sending(&self.turn_id, &request_id);
        let (shared, stored) = (Arc::clone(&self.shared), self.stored.take());
        let is_stored = Arc::clone(&self.is_stored);
        Box::pin(async move {
            let result = shared.append_until(append, shared.deadline()).await.map_err(Error::from);
            is_stored.fetch_or(result.is_ok(), Ordering::AcqRel);
            if let Some(stored) = stored {
                // A tracker that has ended does not wait.
                let _ = stored.send(result.clone());
            }
            result
        })
    }

    fn ended(&mut self) -> BoxFuture<'static, Result<(), Error>> {
        let (shared, is_stored) = (Arc::clone(&self.shared), self.is_stored.load(Ordering::Acquire));
        let handle = shared.tracked(&self.session);
        if !is_stored || shared.options.durability == Durability::Background {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(async move {
            let (sender, stored) = oneshot::channel();
            let handle = handle.ok_or(Error::NotConnected)?;
            handle.inbox.command(Command::TurnStored(sender)).map_err(|_| Error::NotConnected)?;
            match tokio::time::timeout_at(shared.flush_deadline(), stored).await {
                Ok(stored) => Ok(stored.map_err(|_| Error::NotConnected)??),
                Err(_) => Err(StoreError::timed_out("append timed out").into()),
            }
        })
    }

    fn not_executed(&mut self, error: &Error) -> BoxFuture<'static, Option<Resend>> {
        if !is_lost_unsent(error) {
            return Box::pin(std::future::ready(None));
        }
        // The tracker may no longer wait.
        let _ = self.entered.take().map(|entered| entered.send(()));
        let (shared, client, session) = (Arc::clone(&self.shared), self.client.clone(), self.session.clone());
        let (turn, prompt) = (self.turn_id.clone(), self.prompt.clone());
        let is_stored = self.is_stored.load(Ordering::Acquire);
        let (wish, attempt) = (self.wish.clone(), Arc::clone(&self.attempt));
        Box::pin(async move {
            let client = client.upgrade().ok()?;
            let asked = shared.ask(&client, &session, move |tracker: &mut Tracker| {
                Box::pin(async move { tracker.resend((&turn, is_stored), prompt, &wish).await })
            });
            match asked.await {
                Ok((resend, current)) => {
                    *attempt.lock().unwrap_or_else(PoisonError::into_inner) = current;
                    Some(resend)
                }
                Err(error) => {
                    tracing::debug!(error = %crate::convert::text::OneLine(&error), "a session could not be restored for its prompt");
                    None
                }
            }
        })
    }
}

impl WriteAhead {
    fn append(&self, rpc_id: &str) -> Append {
        let Attempt { fence, at } = *self.attempt.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &self.stored {
            Some(_) => prompt_event(&self.turn_id, self.payload.clone()),
            None => {
                let now = SystemTime::now().into();
                NewEvent::new(unique_id(), now, StoredEventKind::PromptResent, json!({"at": at}))
                    .turn_id(&self.turn_id)
            }
        };
        let event = event.rpc_id(rpc_id_of(rpc_id));
        Append::to(&self.session).fence(fence).action(UserAction::Send).events([event])
    }
}

/// The event of a prompt. Its key is the id of the turn, so that it is stored once.
fn prompt_event(turn_id: &str, payload: Value) -> NewEvent {
    let now = SystemTime::now().into();
    NewEvent::new(turn_id, now, StoredEventKind::Prompt, payload).turn_id(turn_id)
}
