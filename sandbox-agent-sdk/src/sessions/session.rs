//! A stored session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::client::StoredClient;
use super::store::{Change, EventPage, EventQuery, RecordPatch, SessionRecord};
use super::tracker::{Begun, OpenTurn, Tracker, Wish};
use crate::client::deadline::deadline_after;
use crate::client::network::check_runtime;
use crate::error::{Phase, Timeout};
use crate::event::Restored;
use crate::session::SessionMetadata;
use crate::sessions::{StatusEvent, UserAction};
use crate::turns::TurnState;
use crate::{Error, Events, NewSession, Prompt, Session, Turn};

/// How often the store is asked whether a turn has ended that another process follows, at first and at last.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A handle to a stored session. It is cheap to clone and keeps its client alive.
///
/// The id never changes, even if the agent, the server or this program restarts. The agent's own id for the session
/// may change; [`Update::session_id`](crate::Update::session_id) and the events of the client contain that id.
#[derive(Clone)]
pub struct StoredSession {
    client: StoredClient,
    id: Arc<str>,
    /// The options with which this process created it, including MCP servers.
    new: Option<Arc<NewSession>>,
}

impl StoredSession {
    pub(super) fn new(client: StoredClient, id: String, new: Option<NewSession>) -> Self {
        Self { client, id: id.into(), new: new.map(Arc::new) }
    }

    /// Returns the id of the stored session.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the client of the session.
    #[must_use]
    pub fn client(&self) -> &StoredClient {
        &self.client
    }

    /// Returns the record of the session.
    ///
    /// # Errors
    /// [`Error::Store`] if the session does not exist or the store fails.
    pub async fn record(&self) -> Result<SessionRecord, Error> {
        self.client.shared.record(&self.id).await
    }

    /// Returns a page of the stored events after this index.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn stored_events(&self, after: u64) -> Result<EventPage, Error> {
        self.client.stored_events(EventQuery::of(&*self.id).after(after)).await
    }

    /// Returns the agent's session, if this process owns the session and the agent has it.
    #[must_use]
    pub fn agent_session(&self) -> Option<Session> {
        let handle = self.client.shared.tracked(&self.id)?;
        let agent_session = handle.view.borrow().agent_session.clone()?;
        Some(self.client.client().session(agent_session))
    }

    /// Returns the running turn that another process started, if this process owns the session.
    #[must_use]
    pub fn open_turn(&self) -> Option<OpenTurn> {
        let handle = self.client.shared.tracked(&self.id)?;
        handle.view.borrow().open_turn.clone()
    }

    /// Waits until no turn of another process is running in the session.
    ///
    /// This method has no timeout: a process that was killed before it sent its prompt leaves a turn that looks
    /// running. Use your own timeout, and then call [`cancel`](Self::cancel).
    pub async fn open_turn_ended(&self) {
        if let Some(mut handle) = self.client.shared.tracked(&self.id) {
            // A tracker that has ended has no turn.
            let _ = handle.view.wait_for(|view| view.open_turn.is_none()).await;
        }
    }

    /// Subscribes to all later events of the session, even if the agent's session changes.
    ///
    /// Subscribe before [`resume`](Self::resume) and use [`deciding`](Events::deciding) to decide the permission requests
    /// of a turn that another process started.
    pub fn events(&self) -> Events {
        self.client.shared.follow(&self.id)
    }

    /// Acquires the session and restores it in the agent. Returns how it was restored, or `None` if that was not
    /// necessary.
    ///
    /// First stores the events that the server has and the store lacks. Then the agent resumes the session, or loads
    /// it, or continues it in a new session by transcript replay. A suspended session becomes active. Does nothing if
    /// this process owns the session and the agent has it.
    ///
    /// # Errors
    /// [`Error::Status`] if the session is suspended and cannot be resumed, [`Error::NotAllowed`] if it is archived
    /// or failed, and the errors of the store and the agent.
    pub async fn resume(&self) -> Result<Option<Restored>, Error> {
        let wish = Wish { action: UserAction::Resume, new: self.new.clone() };
        self.ask(|tracker| Box::pin(tracker.acquire_if_needed(wish))).await
    }

    /// Sends a prompt, which starts a turn.
    ///
    /// Acquires the session first if necessary; see [`resume`](Self::resume). The prompt is stored before it is sent.
    /// If the server or the agent has ended and the prompt certainly did not run, the session is restored and the
    /// prompt is sent once more. If a turn of another process is running, the prompt waits for it, and cancels it
    /// after [`StoreOptions::open_turn_timeout`](super::StoreOptions::open_turn_timeout).
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if the status of the session does not accept input, [`Error::TurnInProgress`] if a turn
    /// is running, and the errors of [`resume`](Self::resume). Errors after the start are reported by the turn.
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> BoxFuture<'static, Result<Turn, Error>> {
        let (session, prompt) = (self.clone(), prompt.into());
        Box::pin(async move {
            prompt.check()?;
            check_runtime()?;
            session.refuse_second_turn().await?;
            let deadline = deadline_after(session.client.shared.options.open_turn_timeout);
            let mut is_cancelled = false;
            loop {
                let (text, new) = (prompt.clone(), session.new.clone());
                match session.ask(|tracker| Box::pin(tracker.prompt(text, new))).await? {
                    Begun::Turn(turn) => return Ok(*turn),
                    Begun::Busy => session.wait_for_open_turn(deadline, &mut is_cancelled).await?,
                }
            }
        })
    }

    /// Waits for a turn of another process, and cancels it when the timeout expires.
    async fn wait_for_open_turn(&self, deadline: Instant, is_cancelled: &mut bool) -> Result<(), Error> {
        if tokio::time::timeout_at(deadline, self.turn_ended_anywhere()).await.is_ok() {
            return Ok(());
        }
        let Some(turn) = self.open_turn() else { return Ok(()) };
        let in_progress = || Error::TurnInProgress { session_id: self.id.to_string() };
        if std::mem::replace(is_cancelled, true) {
            return Err(in_progress());
        }
        match self.cancel_open_turn(turn).await {
            Err(Error::Timeout(_)) => Err(in_progress()),
            cancelled => cancelled,
        }
    }

    /// Waits until the turn of another program has ended. If another process acquires the session meanwhile, that one
    /// follows the turn and stores its end: to acquire the session back would only interrupt it.
    async fn turn_ended_anywhere(&self) {
        self.open_turn_ended().await;
        let shared = &self.client.shared;
        let is_owned = || shared.tracked(&self.id).is_some_and(|handle| handle.view.borrow().fence.is_some());
        let mut wait = FIRST_LOOK;
        while !is_owned() {
            match shared.in_time(shared.store.open(&self.id)).await {
                Ok(open) if !open.turns.is_empty() => {}
                _ => return,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LAST_LOOK);
        }
    }

    /// Cancels a turn of another program. One that does not stop, and of which the agent reported nothing, was probably
    /// never sent: it is interrupted.
    async fn cancel_open_turn(&self, turn: OpenTurn) -> Result<(), Error> {
        let inner = self.client.client().inner();
        let limit = inner.options.timeouts.cancel;
        let cancelled = async {
            let cancelled = match self.agent_session() {
                Some(agent_session) => agent_session.cancel().await,
                // It runs on the endpoint of another process.
                None => self.ask(|tracker| Box::pin(tracker.cancel_remote())).await,
            };
            self.open_turn_ended().await;
            cancelled
        };
        if let Ok(cancelled) = tokio::time::timeout(limit, cancelled).await {
            return cancelled;
        }
        match self.ask(|tracker| Box::pin(tracker.interrupt(turn.turn_id))).await? {
            true => Ok(()),
            false => Err(Error::Timeout(Box::new(Timeout::new(Phase::Cancel, "session/cancel", limit)))),
        }
    }

    /// Refuses a second turn. Waits for a turn that is being cancelled, within a timeout.
    async fn refuse_second_turn(&self) -> Result<(), Error> {
        let Some(session) = self.agent_session() else { return Ok(()) };
        let inner = session.client().inner();
        let mut state = inner.hub.watch_turn(session.id());
        let stopped = state.wait_for(|state| *state != TurnState::Cancelling);
        // If it does not stop in time, it is still running.
        let _ = tokio::time::timeout(inner.options.timeouts.cancel, stopped).await;
        match session.turn_state() {
            TurnState::Idle => Ok(()),
            _ => Err(Error::TurnInProgress { session_id: self.id.to_string() }),
        }
    }

    /// Cancels the running turn, even if another process started it. Acquires the session if it has an open turn and
    /// this process does not own it.
    ///
    /// A turn of another process that does not stop, and of which the agent has reported nothing, was probably never sent:
    /// it is stored as interrupted, with [`TurnEnd::unheard`](super::store::TurnEnd::unheard).
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if the session is not active, [`Error::Timeout`] if the turn does not stop in time, and the
    /// errors of [`resume`](Self::resume).
    pub async fn cancel(&self) -> Result<(), Error> {
        let status = self.record().await?.status;
        if !status.allows(UserAction::Cancel) {
            return Err(Error::NotAllowed { action: UserAction::Cancel, status });
        }
        if self.agent_session().is_none() && self.open_turn().is_none() {
            let shared = &self.client.shared;
            if shared.in_time(shared.store.open(&self.id)).await?.turns.is_empty() {
                return Ok(());
            }
            // It runs in a process that has ended, or in another one.
            self.resume().await?;
        }
        match (self.open_turn(), self.agent_session()) {
            (Some(turn), _) => self.cancel_open_turn(turn).await,
            (None, Some(session)) => session.cancel().await,
            (None, None) => Ok(()),
        }
    }

    /// Cancels the running turn and archives the session, for a user's action "cancel session".
    ///
    /// The session is archived even if its turn cannot be cancelled.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if the session is not active, and the errors of [`StoredClient::archive`]: then the session
    /// is not archived. The errors of [`cancel`](Self::cancel), for example [`Error::Timeout`] if the turn does not stop:
    /// then the session is archived, and its turn may still be running.
    pub async fn cancel_session(&self) -> Result<SessionRecord, Error> {
        let cancelled = self.cancel().await;
        if let Err(error @ Error::NotAllowed { .. }) = cancelled {
            return Err(error);
        }
        let archived = self.client.transition(&self.id, StatusEvent::Cancel).await?;
        cancelled.map(|()| archived)
    }

    /// Releases the session for another process. On a shared endpoint the agent continues, including a running turn. Its
    /// open permission requests and questions are left to the next owner.
    ///
    /// # Errors
    /// [`Error::Store`] if the events so far cannot be stored. This process then still owns the session.
    pub async fn release(&self) -> Result<SessionRecord, Error> {
        self.ask(|tracker| Box::pin(tracker.leave())).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        act: impl for<'a> FnOnce(&'a mut Tracker) -> BoxFuture<'a, Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.client.shared.ask(self.client.client(), &self.id, act).await
    }

    /// Returns the title of the session.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn title(&self) -> Result<Option<String>, Error> {
        Ok(self.record().await?.details.title)
    }

    /// Sets the title of the session in the store.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn set_title(&self, title: impl Into<String>) -> Result<(), Error> {
        let patch = RecordPatch { title: Change::Set(title.into()), ..RecordPatch::default() };
        self.client.patch(&self.id, patch).await.map(drop)
    }

    /// Returns the metadata that the application stored with the session.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn metadata(&self) -> Result<serde_json::Map<String, Value>, Error> {
        Ok(self.record().await?.details.metadata)
    }

    /// Stores metadata with the session, key by key. A `null` value removes the key.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn set_metadata(&self, metadata: serde_json::Map<String, Value>) -> Result<(), Error> {
        let patch = RecordPatch { metadata, ..RecordPatch::default() };
        self.client.patch(&self.id, patch).await.map(drop)
    }

    /// Returns the mode that the agent last reported.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn mode(&self) -> Result<Option<String>, Error> {
        let modes = self.record().await?.details.modes;
        Ok(modes.and_then(|modes| modes["currentModeId"].as_str().map(str::to_owned)))
    }

    /// Returns the model that the agent last reported.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn model(&self) -> Result<Option<String>, Error> {
        let details = self.record().await?.details;
        let options = details.config_options.as_ref().and_then(Value::as_array);
        let option = options.into_iter().flatten().find(|option| option["category"] == "model");
        let by_option = option.and_then(|option| option["currentValue"].as_str());
        let by_list = details.models.as_ref().and_then(|models| models["currentModelId"].as_str());
        Ok(by_list.or(by_option).map(str::to_owned))
    }

    /// Sets the mode. Acquires the session first if necessary.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume) and [`Session::set_mode`].
    pub async fn set_mode(&self, mode: impl Into<String>) -> Result<(), Error> {
        self.opened().await?.set_mode(mode).await
    }

    /// Sets the model. Acquires the session first if necessary.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume) and [`Session::set_model`].
    pub async fn set_model(&self, model: impl Into<String>) -> Result<(), Error> {
        self.opened().await?.set_model(model).await
    }

    /// Changes the server's metadata of the agent's session. Acquires the session first if necessary.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume) and [`Session::set_metadata`].
    pub async fn set_server_metadata(&self, metadata: SessionMetadata) -> Result<(), Error> {
        self.opened().await?.set_metadata(metadata).await
    }

    /// Loads the agent's session again, to compare its history with what is stored. Acquires the session first if
    /// necessary.
    ///
    /// [`Session::history`] of the returned session is the agent's own history. It is not added to the store, because
    /// agents may replay less than they reported, and may split it differently.
    ///
    /// # Errors
    /// [`Error::TurnInProgress`] if a turn is running, [`Error::Unsupported`] if the agent cannot load sessions, and the
    /// errors of [`resume`](Self::resume).
    pub async fn reload(&self) -> Result<Session, Error> {
        let wish = Wish { action: UserAction::Resume, new: self.new.clone() };
        self.ask(|tracker| Box::pin(tracker.reload(wish))).await
    }

    async fn opened(&self) -> Result<Session, Error> {
        self.resume().await?;
        self.agent_session().ok_or(Error::NotConnected)
    }

    /// Archives the session. See [`StoredClient::archive`].
    ///
    /// # Errors
    /// [`Error::Status`] if the session is not active.
    pub async fn archive(&self) -> Result<SessionRecord, Error> {
        self.client.archive(&self.id).await
    }

    /// Deletes the session with its events. See [`StoredClient::delete`].
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn delete(&self) -> Result<bool, Error> {
        self.client.delete(&self.id).await
    }
}

impl fmt::Debug for StoredSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSession").field("id", &self.id).finish_non_exhaustive()
    }
}
