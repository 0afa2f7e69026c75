//! A stored session.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::Instant;

use super::client::StoredClient;
use super::restored::Restored;
use super::store::{Change, EventPage, EventQuery, RecordPatch, SessionRecord};
use super::tracker::{Ask, Begun, OpenTurn};
use crate::session::SessionMetadata;
use crate::sessions::{StatusEvent, UserAction};
use crate::turns::TurnState;
use crate::{Error, Events, NewSession, Prompt, Session, Turn};

/// A stored session. It is cheap to clone, and counts as a handle of its client.
///
/// Its id never changes, whatever happens to the agent, the server and this program. The agent's own id of the session
/// may change, and is what [`Update::session_id`](crate::Update::session_id) and the events of the client name.
#[derive(Clone)]
pub struct StoredSession {
    client: StoredClient,
    id: Arc<str>,
    /// What it was created with in this program, with its tool servers.
    new: Option<Arc<NewSession>>,
}

impl StoredSession {
    pub(super) fn new(client: StoredClient, id: String, new: Option<NewSession>) -> Self {
        Self { client, id: id.into(), new: new.map(Arc::new) }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The client that it belongs to.
    #[must_use]
    pub fn client(&self) -> &StoredClient {
        &self.client
    }

    /// Its record.
    ///
    /// # Errors
    /// [`Error::Store`] if there is no such session.
    pub async fn record(&self) -> Result<SessionRecord, Error> {
        self.client.shared.record(&self.id).await
    }

    /// A page of its stored events, behind this index.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn stored_events(&self, after: u64) -> Result<EventPage, Error> {
        self.client.stored_events(EventQuery::of(&*self.id).after(after)).await
    }

    /// The agent's session, while this process owns the session and the agent has it.
    #[must_use]
    pub fn agent_session(&self) -> Option<Session> {
        let handle = self.client.shared.tracked(&self.id)?;
        let agent_session = handle.view.borrow().agent_session.clone()?;
        Some(self.client.client().session(agent_session))
    }

    /// The turn of another program that is running in it, since this process owns the session.
    #[must_use]
    pub fn open_turn(&self) -> Option<OpenTurn> {
        let handle = self.client.shared.tracked(&self.id)?;
        handle.view.borrow().open_turn.clone()
    }

    /// Waits until no turn of another program is running in it.
    pub async fn open_turn_ended(&self) {
        if let Some(mut handle) = self.client.shared.tracked(&self.id) {
            // A tracker that has ended has no turn.
            let _ = handle.view.wait_for(|view| view.open_turn.is_none()).await;
        }
    }

    /// What happens in it from now on, whatever session of the agent it is.
    pub fn events(&self) -> Events {
        self.client.shared.follow(&self.id)
    }

    /// Acquires it, unless this process owns it and the agent has it: stores what the server has of it and no program
    /// stored, and has the agent resume it, or load it, or continue it with its recent history in a new session. A
    /// suspended session becomes active. Returns how it was restored, if it had to be.
    ///
    /// # Errors
    /// [`Error::Status`] if it is suspended and cannot be resumed, [`Error::NotAllowed`] if it is archived or has
    /// failed, and what else can go wrong.
    pub async fn resume(&self) -> Result<Option<Restored>, Error> {
        let wish = self.client.wish(self.new.as_deref());
        let shared = &self.client.shared;
        shared.ask(self.client.client(), &self.id, |answer| Ask::Acquire { wish, answer }).await
    }

    /// Begins a turn.
    ///
    /// The session is acquired first if need be, as by [`resume`](Self::resume). The prompt is stored before it is
    /// sent. If it certainly did not run because the server or the agent was gone, the session is restored and the
    /// prompt is sent once more. A turn that another program began is waited for, and cancelled after
    /// [`StoreOptions::open_turn_timeout`](super::StoreOptions::open_turn_timeout).
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if its status takes no input, [`Error::TurnInProgress`] while a turn is running, and what
    /// else can go wrong before the turn starts; the turn reports what goes wrong in it.
    pub fn prompt(&self, prompt: impl Into<Prompt>) -> BoxFuture<'static, Result<Turn, Error>> {
        let (session, prompt) = (self.clone(), prompt.into());
        Box::pin(async move {
            session.refuse_second_turn().await?;
            let deadline = Instant::now() + session.client.shared.options.open_turn_timeout;
            let mut is_cancelled = false;
            loop {
                let (text, new) = (prompt.clone(), session.new.as_deref().cloned().map(Box::new));
                let asking = session.client.shared.ask(session.client.client(), &session.id, |answer| {
                    Ask::Prompt { prompt: text, new, answer }
                });
                match asking.await? {
                    Begun::Turn(turn) => return Ok(*turn),
                    Begun::Busy => session.wait_for_open_turn(deadline, &mut is_cancelled).await?,
                }
            }
        })
    }

    /// Waits for a turn of another program, and cancels it when the time is up.
    async fn wait_for_open_turn(&self, deadline: Instant, is_cancelled: &mut bool) -> Result<(), Error> {
        if tokio::time::timeout_at(deadline, self.open_turn_ended()).await.is_ok() {
            return Ok(());
        }
        let Some(turn) = self.open_turn() else { return Ok(()) };
        let in_progress = || Error::TurnInProgress { session_id: self.id.to_string() };
        if std::mem::replace(is_cancelled, true) {
            return Err(in_progress());
        }
        self.cancel_open_turn().await?;
        if self.open_turn().is_some() {
            let turn = turn.turn_id;
            let shared = &self.client.shared;
            let asked = shared.ask(self.client.client(), &self.id, |answer| Ask::Interrupt { turn, answer });
            if !asked.await? {
                return Err(in_progress());
            }
        }
        Ok(())
    }

    async fn cancel_open_turn(&self) -> Result<(), Error> {
        let inner = self.client.client().inner();
        let limit = inner.options.timeouts.cancel;
        let cancelled = async {
            let shared = &self.client.shared;
            let cancelled = match self.agent_session() {
                Some(agent_session) => agent_session.cancel().await,
                // It runs on the endpoint of another process.
                None => {
                    let asked =
                        shared.ask(self.client.client(), &self.id, |answer| Ask::CancelRemote { answer });
                    asked.await
                }
            };
            self.open_turn_ended().await;
            cancelled
        };
        // A turn that does not stop is still open.
        tokio::time::timeout(limit, cancelled).await.unwrap_or(Ok(()))
    }

    /// Refuses a second turn. One that is being cancelled is waited for, within a bound.
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

    /// Cancels the running turn, whichever program began it.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if its status has nothing to cancel, [`Error::Timeout`] if the turn does not stop in time.
    pub async fn cancel(&self) -> Result<(), Error> {
        let status = self.record().await?.status;
        if !status.allows(UserAction::Cancel) {
            return Err(Error::NotAllowed { action: UserAction::Cancel, status });
        }
        match self.agent_session() {
            _ if self.open_turn().is_some() => self.cancel_open_turn().await,
            Some(session) => session.cancel().await,
            None => Ok(()),
        }
    }

    /// Cancels the running turn, and archives the session: the action "cancel session" of a user.
    ///
    /// # Errors
    /// [`Error::Status`] if it is not active, [`Error::Timeout`] if the turn does not stop in time.
    pub async fn cancel_session(&self) -> Result<SessionRecord, Error> {
        self.cancel().await?;
        self.client.transition(&self.id, StatusEvent::Cancel).await
    }

    /// Releases it for another process. On a shared endpoint its agent continues, also with a turn that is running.
    ///
    /// # Errors
    /// [`Error::Store`] if what happened so far cannot be stored; this process owns the session then.
    pub async fn release(&self) -> Result<SessionRecord, Error> {
        let shared = &self.client.shared;
        shared.ask(self.client.client(), &self.id, |answer| Ask::Release { answer }).await
    }

    /// Its title.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn title(&self) -> Result<Option<String>, Error> {
        Ok(self.record().await?.details.title)
    }

    /// Sets its title in the store.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn set_title(&self, title: impl Into<String>) -> Result<(), Error> {
        let patch = RecordPatch { title: Change::Set(title.into()), ..RecordPatch::default() };
        self.client.patch(&self.id, patch).await.map(drop)
    }

    /// What the application stored with it.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn metadata(&self) -> Result<serde_json::Map<String, Value>, Error> {
        Ok(self.record().await?.details.metadata)
    }

    /// Stores metadata with it: members are set, or removed by `null`.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn set_metadata(&self, metadata: serde_json::Map<String, Value>) -> Result<(), Error> {
        let patch = RecordPatch { metadata, ..RecordPatch::default() };
        self.client.patch(&self.id, patch).await.map(drop)
    }

    /// Its mode, as the agent reported it last.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn mode(&self) -> Result<Option<String>, Error> {
        let modes = self.record().await?.details.modes;
        Ok(modes.and_then(|modes| modes["currentModeId"].as_str().map(str::to_owned)))
    }

    /// Its model, as the agent reported it last.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn model(&self) -> Result<Option<String>, Error> {
        let details = self.record().await?.details;
        let options = details.config_options.as_ref().and_then(Value::as_array);
        let option = options.into_iter().flatten().find(|option| option["category"] == "model");
        let by_option = option.and_then(|option| option["currentValue"].as_str());
        let by_list = details.models.as_ref().and_then(|models| models["currentModelId"].as_str());
        Ok(by_list.or(by_option).map(str::to_owned))
    }

    /// Sets its mode. The session is acquired first if need be.
    ///
    /// # Errors
    /// As [`resume`](Self::resume) and [`Session::set_mode`].
    pub async fn set_mode(&self, mode: impl Into<String>) -> Result<(), Error> {
        self.opened().await?.set_mode(mode).await
    }

    /// Sets its model. The session is acquired first if need be.
    ///
    /// # Errors
    /// As [`resume`](Self::resume) and [`Session::set_model`].
    pub async fn set_model(&self, model: impl Into<String>) -> Result<(), Error> {
        self.opened().await?.set_model(model).await
    }

    /// Changes the metadata that the server has of the agent's session. The session is acquired first if need be.
    ///
    /// # Errors
    /// As [`resume`](Self::resume) and [`Session::set_metadata`].
    pub async fn set_server_metadata(&self, metadata: SessionMetadata) -> Result<(), Error> {
        self.opened().await?.set_metadata(metadata).await
    }

    async fn opened(&self) -> Result<Session, Error> {
        self.resume().await?;
        self.agent_session().ok_or(Error::NotConnected)
    }

    /// Archives it: [`StoredClient::archive`].
    ///
    /// # Errors
    /// [`Error::Status`] if it is not active.
    pub async fn archive(&self) -> Result<SessionRecord, Error> {
        self.client.archive(&self.id).await
    }

    /// Deletes it with its events: [`StoredClient::delete`].
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn delete(&self) -> Result<bool, Error> {
        self.client.delete(&self.id).await
    }
}

impl fmt::Debug for StoredSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredSession").field("id", &self.id).finish_non_exhaustive()
    }
}
