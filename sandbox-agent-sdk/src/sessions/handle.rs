//! The sessions of a client that are kept.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::oneshot;

use super::amend::Amendment;
use super::binding::{Owed, TakenUp};
use super::ledger::{Alone, Ledger};
use super::restore::{Restored, Wish};
use super::session::StoredSession;
use super::taking_over::can_reopen;
use crate::client::random::random_id;
use crate::sessions::{
    EventPage, EventQuery, RecordPage, RecordQuery, SessionRecord, SessionStatus, SessionStore, StatusEvent,
    StoreError, UserAction,
};
use crate::{Error, NewSession, SandboxAgentClient, ServerKind};

/// The sessions of a client that are kept, in the store of its options or in memory.
///
/// It is cheap to clone, and counts as a handle of its client.
#[derive(Clone)]
pub struct Sessions {
    client: SandboxAgentClient,
    pub(super) ledger: Arc<Ledger>,
}

impl Sessions {
    pub(crate) fn of(client: SandboxAgentClient) -> Self {
        let inner = client.inner();
        let ledger = inner.ledger.get_or_init(|| {
            let options = &inner.options;
            Ledger::new(options.store.clone(), options.recorder.clone(), options.replay, &inner.hub)
        });
        let ledger = Arc::clone(ledger);
        let sessions = Self { client, ledger };
        sessions.expect_attached();
        sessions
    }

    /// The client they belong to.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// The store they are kept in.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn SessionStore> {
        &self.ledger.store
    }

    /// Makes a session and keeps it from now on, under an id that nobody else has.
    ///
    /// # Errors
    /// As [`SandboxAgentClient::new_session`], and [`Error::Store`].
    pub async fn create(&self, new: NewSession) -> Result<StoredSession, Error> {
        self.create_as(format!("ses_{}", random_id()), new).await
    }

    /// Makes a session and keeps it under this id.
    ///
    /// # Errors
    /// As [`create`](Self::create); [`StoreError::Exists`] if there is one of this id.
    pub async fn create_as(&self, id: impl Into<String>, new: NewSession) -> Result<StoredSession, Error> {
        let id = id.into();
        let alone = self.ledger.gate(&id).lock_owned().await;
        let (created, _alone) = self.create_alone(id, new, alone).await?;
        created
    }

    /// Does something to its end, whether somebody waits for that or not: in between, nobody would store what happens,
    /// or a session of the agent would be left behind. The gate is given back with what became of it.
    pub(super) async fn see_through<T: Send + 'static>(
        &self,
        alone: Alone,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<(T, Alone), Error> {
        let (done, outcome) = oneshot::channel();
        let started = self.client.inner().spawn(async move {
            // A caller that went away needs no answer.
            let _ = done.send((task.await, alone));
        });
        if !started {
            return Err(Error::NotConnected);
        }
        outcome.await.map_err(|_| Error::NotConnected)
    }

    async fn create_alone(
        &self,
        id: String,
        new: NewSession,
        alone: Alone,
    ) -> Result<(Result<StoredSession, Error>, Alone), Error> {
        let sessions = self.clone();
        self.see_through(alone, async move { sessions.create_through(id, new).await }).await
    }

    async fn create_through(&self, id: String, new: NewSession) -> Result<StoredSession, Error> {
        let mut record = SessionRecord::new(&id, "unknown", SystemTime::now().into());
        if self.ledger.in_time(self.ledger.store.get(&id)).await?.is_some() {
            return Err(StoreError::Exists { id }.into());
        }
        let can = self.connected_for(&new).await?;
        let (asked, place) = (self.ledger.now(), self.ledger.place());
        let session = self.client.new_session(new.clone()).await?;
        let (_hold, _) = self.ledger.hold(session.id());
        record.agent = new.agent_wanted().unwrap_or(&can.agent).to_owned();
        record.agent_session_id = Some(session.id().to_owned());
        record.resumable = can_reopen(&can, &record.agent);
        record.title = new.given().title().map(str::to_owned);
        record.init = new.to_kept();
        record.epoch = 1;
        record.taken_at = (can.server == ServerKind::Shared).then_some(place);
        record.taken_by = Some(self.ledger.own_name());
        Amendment::of_answer(session.raw()).apply(&mut record);
        let record = match self.put_new(record).await {
            Ok(record) => record,
            Err(error) => {
                // Nobody will hold it, so it should not go on. What becomes of that does not matter to the caller.
                let _ = self.client.terminate_session(session.id()).await;
                return Err(error.into());
            }
        };
        self.ledger.recorder().know(&record);
        let taken = TakenUp {
            id: &id,
            agent_session: session.id(),
            made_at: record.created_at,
            epoch: record.epoch,
            since: 0,
            owed: Owed::Nothing,
            live: true,
            asked,
            stored: None,
            restored: None,
        };
        self.ledger.bind_new(&taken, None);
        if let Some(termination) = session.termination() {
            self.ledger.ended(&id, record.epoch, termination);
        }
        Ok(StoredSession::new(self.clone(), id, Some(new)))
    }

    /// Writes the record of a new session. If the store does not say in time whether it was done, that is looked up.
    async fn put_new(&self, record: SessionRecord) -> Result<SessionRecord, StoreError> {
        let ledger = &self.ledger;
        let (id, name) = (record.id.clone(), record.taken_by.clone());
        match ledger.in_time(ledger.store.put(record)).await {
            Err(error @ StoreError::Unavailable(_)) => match ledger.in_time(ledger.store.get(&id)).await {
                Ok(Some(record)) if record.taken_by == name => Ok(record),
                _ => Err(error),
            },
            put => put,
        }
    }

    async fn connected_for(&self, new: &NewSession) -> Result<Arc<crate::connection::Capabilities>, Error> {
        let agent = new.agent_wanted().or(self.client.inner().options.agent.as_deref()).unwrap_or_default();
        self.connected(agent).await
    }

    /// A page of sessions, the newest first. By default archived and failed ones are left out; a
    /// [`RecordQuery`] can ask for them.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(&self, query: RecordQuery) -> Result<RecordPage, Error> {
        Ok(self.ledger.store.list(&query).await?)
    }

    /// How many sessions a badge shows: those that are active or suspended.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn badge_count(&self) -> Result<u64, Error> {
        Ok(self.ledger.store.count(&RecordQuery::counted()).await?)
    }

    /// What is kept of a session, if there is one of this id.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn get(&self, id: &str) -> Result<Option<SessionRecord>, Error> {
        Ok(self.ledger.store.get(id).await?)
    }

    /// A page of what happened in a session.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn events(&self, query: EventQuery) -> Result<EventPage, Error> {
        Ok(self.ledger.store.events(&query).await?)
    }

    /// A handle of a session by its id. Nothing is looked up, and the session need not exist.
    #[must_use]
    pub fn session(&self, id: impl Into<String>) -> StoredSession {
        StoredSession::new(self.clone(), id.into(), None)
    }

    /// Takes a session up again, as [`StoredSession::resume`] does.
    ///
    /// # Errors
    /// As [`StoredSession::resume`].
    pub async fn resume(&self, id: impl Into<String>) -> Result<StoredSession, Error> {
        let session = self.session(id);
        session.resume().await?;
        Ok(session)
    }

    /// Takes up the session of this id again, or makes it if there is none.
    ///
    /// What is given is used to make it, and to take it up: tool servers are not kept, so that they come from here.
    ///
    /// # Errors
    /// As [`create`](Self::create) and [`StoredSession::resume`].
    pub async fn resume_or_create(
        &self,
        id: impl Into<String>,
        new: NewSession,
    ) -> Result<StoredSession, Error> {
        let id = id.into();
        let mut alone = self.ledger.gate(&id).lock_owned().await;
        if self.ledger.in_time(self.ledger.store.get(&id)).await?.is_none() {
            let (created, gate) = self.create_alone(id.clone(), new.clone(), alone).await?;
            match created {
                // Another program was quicker.
                Err(Error::Store(StoreError::Exists { .. })) => alone = gate,
                created => return created,
            }
        }
        self.resume_alone(&id, Some(&new), alone).await?;
        Ok(StoredSession::new(self.clone(), id, Some(new)))
    }

    /// Takes a session up again, unless this program has it.
    pub(super) async fn resume_alone(
        &self,
        id: &str,
        new: Option<&NewSession>,
        alone: Alone,
    ) -> Result<Option<Restored>, Error> {
        let record = self.ledger.record(id).await?;
        let mut wish =
            Wish { id: id.to_owned(), new: new.cloned(), action: UserAction::Resume, support: None };
        match record.status {
            SessionStatus::Active if self.ledger.current(&record).is_some() => return Ok(None),
            SessionStatus::Active => {}
            SessionStatus::Suspended => {
                let can = self.connected(&record.agent).await?;
                let by_agent = can_reopen(&can, &record.agent);
                let replay = self.ledger.replay.resumes;
                let mut support = record.resume_support(by_agent || replay);
                support.supports_resume |= replay;
                record.status.after(StatusEvent::Resume(support))?;
                wish.support = Some(support);
            }
            status => return Err(Error::NotAllowed { action: UserAction::Resume, status }),
        }
        let sessions = self.clone();
        let (restored, _alone) = self.see_through(alone, async move { sessions.restore(wish).await }).await?;
        restored.map(Some)
    }

    /// Puts a session away. Nothing else ever does, and there is no way back.
    ///
    /// # Errors
    /// [`Error::Status`] if it is not active.
    pub async fn archive(&self, id: &str) -> Result<SessionRecord, Error> {
        self.transition(id, StatusEvent::Archive).await
    }

    /// Marks a session as one that cannot go on. An agent's end is no reason for that. For how long it is kept then is
    /// counted from now on.
    ///
    /// # Errors
    /// [`Error::Status`] if it is not active.
    pub async fn fail(&self, id: &str) -> Result<SessionRecord, Error> {
        self.transition(id, StatusEvent::FatalError).await
    }

    pub(super) async fn transition(&self, id: &str, event: StatusEvent) -> Result<SessionRecord, Error> {
        let changed = self.ledger.change(id, |record| {
            record.status = record.status.after(event)?;
            if event == StatusEvent::FatalError {
                record.last_active = record.last_active.max(SystemTime::now().into());
            }
            Ok(())
        });
        changed.await
    }

    /// Deletes a session with everything that happened in it, and tells whether there was one. The agent is not told.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn delete(&self, id: &str) -> Result<bool, Error> {
        let deleted = self.ledger.delete(id, self.ledger.store.delete(id)).await?;
        // Also if somebody else was quicker.
        self.ledger.forget(id);
        Ok(deleted)
    }

    /// Waits until everything that happened so far is in the store.
    ///
    /// # Errors
    /// [`Error::Store`] if something could not be stored since the last time.
    pub async fn flush(&self) -> Result<(), Error> {
        self.ledger.flush().await
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("store", &self.ledger.store).finish_non_exhaustive()
    }
}
