//! A client whose sessions are stored.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;

use super::options::StoreOptions;
use super::session::StoredSession;
use super::shared::Shared;
use super::store::{
    Append, EventPage, EventQuery, RecordPage, RecordPatch, RecordQuery, SessionRecord, SessionStore,
    StoreError,
};
use super::tracker::{View, abandoned};
use crate::client::network::check_runtime;
use crate::client::random::random_id;
use crate::sessions::StatusEvent;
use crate::turns::TurnState;
use crate::{Error, Events, NewSession, SandboxAgentClient, ServerKind};

impl SandboxAgentClient {
    /// Creates a client that stores its sessions in this store. The original client still stores nothing.
    ///
    /// Call it once and clone the result: the store stays attached until the original client is dropped.
    #[must_use]
    pub fn with_store(&self, store: impl SessionStore) -> StoredClient {
        self.with_store_options(Arc::new(store), StoreOptions::default())
    }

    /// Creates a client that stores its sessions in a shared store, with options.
    #[must_use]
    pub fn with_store_options(&self, store: Arc<dyn SessionStore>, options: StoreOptions) -> StoredClient {
        StoredClient { shared: Shared::new(self, store, options), client: self.clone() }
    }
}

/// A client that stores all its sessions. Created by [`SandboxAgentClient::with_store`].
///
/// It is cheap to clone and keeps the underlying client alive.
#[derive(Clone)]
pub struct StoredClient {
    client: SandboxAgentClient,
    pub(super) shared: Arc<Shared>,
}

impl StoredClient {
    /// Returns the underlying client, which stores nothing.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn SessionStore> {
        &self.shared.store
    }

    /// Returns the owner name of this process in the store.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// Subscribes to all later events of the connection and of all sessions, stored or not.
    pub fn events(&self) -> Events {
        self.client.events()
    }

    /// Creates a session with a generated id.
    ///
    /// # Errors
    /// The errors of [`SandboxAgentClient::new_session`], and [`Error::Store`] if the store fails.
    pub async fn new_session(&self, new: NewSession) -> Result<StoredSession, Error> {
        let id = random_id().map_err(Error::randomness)?;
        self.new_session_as(format!("ses_{id}"), new).await
    }

    /// Creates a session with this id.
    ///
    /// # Errors
    /// The errors of [`new_session`](Self::new_session). [`StoreError::Exists`] if the id is already in use.
    pub async fn new_session_as(
        &self,
        id: impl Into<String>,
        new: NewSession,
    ) -> Result<StoredSession, Error> {
        new.check()?;
        let id = id.into();
        let given = new.clone();
        self.shared.ask(&self.client, &id, |tracker| Box::pin(tracker.create(given))).await?;
        Ok(StoredSession::new(self.clone(), id, Some(new)))
    }

    /// Creates a handle to a session by its id. Does not check whether the session exists.
    #[must_use]
    pub fn session(&self, id: impl Into<String>) -> StoredSession {
        StoredSession::new(self.clone(), id.into(), None)
    }

    /// Acquires a session and returns a handle to it. See [`StoredSession::resume`].
    ///
    /// # Errors
    /// The errors of [`StoredSession::resume`].
    pub async fn resume(&self, id: impl Into<String>) -> Result<StoredSession, Error> {
        let session = self.session(id);
        session.resume().await?;
        Ok(session)
    }

    /// Acquires the session with this id, or creates it.
    ///
    /// MCP servers are not stored, because they may contain secrets. They are taken from `new` when the session is
    /// restored.
    ///
    /// # Errors
    /// The errors of [`new_session`](Self::new_session) and [`StoredSession::resume`].
    pub async fn resume_or_create(
        &self,
        id: impl Into<String>,
        new: NewSession,
    ) -> Result<StoredSession, Error> {
        new.check()?;
        let id = id.into();
        let is_there = self.shared.in_time(self.shared.store.get(&id)).await?.is_some();
        if !is_there {
            match self.new_session_as(&id, new.clone()).await {
                // Another call, or another process, was first.
                Err(Error::Store(StoreError::Exists { .. } | StoreError::OwnershipLost { .. })) => {}
                created => return created,
            }
        }
        let session = StoredSession::new(self.clone(), id, Some(new));
        session.resume().await?;
        Ok(session)
    }

    /// Returns a page of sessions, newest first. The default query omits archived and failed sessions.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn list(&self, query: RecordQuery) -> Result<RecordPage, Error> {
        Ok(self.shared.in_time(self.shared.store.list(&query)).await?)
    }

    /// Returns the number of sessions to show on a badge: active and suspended sessions.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn badge_count(&self) -> Result<u64, Error> {
        Ok(self.shared.in_time(self.shared.store.count(&RecordQuery::counted())).await?)
    }

    /// Returns the record of a session, or `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn get(&self, id: &str) -> Result<Option<SessionRecord>, Error> {
        Ok(self.shared.in_time(self.shared.store.get(id)).await?)
    }

    /// Returns a page of the stored events of a session.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn stored_events(&self, query: EventQuery) -> Result<EventPage, Error> {
        self.shared.events(&query).await
    }

    /// Archives a session. This is final.
    ///
    /// The client never archives a session automatically. A running turn is stored as interrupted. If this process
    /// owns the session, the agent's session is ended, or if the server does not support that, its turn is cancelled.
    /// Further agent requests of the turn are not executed: the agent receives an error.
    ///
    /// # Errors
    /// [`Error::Status`] if the session is not active.
    pub async fn archive(&self, id: &str) -> Result<SessionRecord, Error> {
        self.transition(id, StatusEvent::Archive).await
    }

    /// Marks a session as failed, so that it cannot continue. This is final.
    ///
    /// Do not call this only because an agent ended: the next prompt restores the session.
    ///
    /// # Errors
    /// [`Error::Status`] if the session is not active.
    pub async fn fail(&self, id: &str) -> Result<SessionRecord, Error> {
        self.transition(id, StatusEvent::FatalError).await
    }

    pub(super) async fn transition(&self, id: &str, event: StatusEvent) -> Result<SessionRecord, Error> {
        let mut patch = RecordPatch::status(event);
        patch.last_active_at = (event == StatusEvent::FatalError).then(|| SystemTime::now().into());
        self.flush_session(id).await;
        let shared = &self.shared;
        let before = shared.record(id).await?;
        let record = match self.appended(Append::to(id).patch(patch)).await {
            Ok(record) => record,
            Err(error @ Error::Status(_)) if before.status.is_terminal() => {
                // The process that stored the status may have been killed before it closed what was open.
                self.close_open(&before).await?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        let view = shared.tracked(id).map(|handle| handle.view.borrow().clone()).unwrap_or_default();
        shared.untrack(id);
        let closed = self.close_open(&record).await;
        if let Some(agent_session) = view.agent_session {
            // Some servers cannot end one session of an agent. Then its turn is cancelled; the session is final even if the
            // turn does not stop.
            let ended = self.client.terminate_session(&agent_session).await;
            let runs_on = ended.is_err() && view.turn.is_some();
            if runs_on && let Err(error) = self.client.cancel(agent_session).await {
                tracing::warn!(error = %crate::convert::text::OneLine(&error), session = id, "the turn of a final session does not stop");
            }
        }
        self.leave_endpoint_of(&before).await;
        closed.map(|()| record)
    }

    /// Ends the open turns and requests of a session with a final status. The store accepts no prompt and no event of an
    /// owner since that status, so that nothing else ends or begins meanwhile.
    async fn close_open(&self, record: &SessionRecord) -> Result<(), Error> {
        let shared = &self.shared;
        let open = shared.in_time(shared.store.open(&record.id)).await?;
        if open.is_empty() {
            return Ok(());
        }
        let closing = Append::to(&record.id).events(abandoned(&open, record.position));
        Ok(shared.append_until(closing, shared.deadline()).await?)
    }

    /// Ends the endpoint of a session that does not continue, if it is that of another process and no session needs it.
    pub(super) async fn leave_endpoint_of(&self, record: &SessionRecord) {
        if let (Some(endpoint), Some(_)) = (&record.endpoint, &record.owner) {
            self.shared.end_left_endpoint(&self.client, &record.id, endpoint).await;
        }
    }

    /// Changes the record of a session.
    pub(super) async fn patch(&self, id: &str, patch: RecordPatch) -> Result<SessionRecord, Error> {
        self.appended(Append::to(id).patch(patch)).await
    }

    async fn appended(&self, append: Append) -> Result<SessionRecord, Error> {
        let id = append.session_id.clone();
        let appended = match self.shared.append(append).await {
            Err(StoreError::Status(error)) => return Err(error.into()),
            appended => appended?,
        };
        match appended.record {
            Some(record) => Ok(record),
            None => self.shared.record(&id).await,
        }
    }

    /// Deletes a session with its events. Returns whether it existed. The agent of this process is not stopped. On a
    /// released server, the endpoint of another process that owned the session is closed if no other stored session is on
    /// it.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn delete(&self, id: &str) -> Result<bool, Error> {
        // An unreadable record can still be deleted.
        let record = self.shared.in_time(self.shared.store.get(id)).await.ok().flatten();
        let handle = self.shared.tracked(id);
        let set_deleting = |is| handle.iter().for_each(|handle| handle.inbox.set_deleting(is));
        set_deleting(true);
        let deleted = self.shared.in_time(self.shared.store.delete(id)).await;
        // If the session is still there, its events are stored as before.
        set_deleting(deleted.is_ok());
        let is_deleted = deleted?;
        self.shared.untrack(id);
        if let Some(record) = record.filter(|_| is_deleted) {
            self.leave_endpoint_of(&record).await;
        }
        Ok(is_deleted)
    }

    /// Waits until all events so far are stored or reported as lost.
    ///
    /// Waits at most twice [`StoreOptions::retry_for`].
    ///
    /// # Errors
    /// [`Error::EventsLost`] or [`Error::Store`] if events or record changes since the last call were not stored.
    pub async fn flush(&self) -> Result<(), Error> {
        self.flush_until(self.shared.flush_deadline()).await
    }

    pub(super) async fn flush_until(&self, deadline: tokio::time::Instant) -> Result<(), Error> {
        check_runtime()?;
        let waits =
            self.shared.all_tracked().into_iter().map(|(_, handle)| async move { handle.flush().await });
        let all = futures::future::join_all(waits);
        if tokio::time::timeout_at(deadline, all).await.is_err() {
            self.shared.take_losses()?;
            return Err(StoreError::timed_out("flush timed out").into());
        }
        self.shared.take_losses()
    }

    /// Waits until all events so far of a session are stored or reported as lost.
    pub(super) async fn flush_session(&self, id: &str) {
        if let Some(handle) = self.shared.tracked(id) {
            let _ = tokio::time::timeout_at(self.shared.deadline(), handle.flush()).await;
        }
    }

    /// Closes the connection and stores the events that arrived until then.
    ///
    /// On a shared endpoint running turns continue. They stay open in the store, and the next owner follows them.
    ///
    /// Storing the events has the same timeout as [`flush`](Self::flush).
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush). The client is disconnected in any case.
    pub fn disconnect(&self) -> BoxFuture<'static, Result<(), Error>> {
        let client = self.clone();
        Box::pin(async move {
            check_runtime()?;
            let deadline = client.shared.flush_deadline();
            client.shared.feed.set_asleep(false);
            client.end_connection(deadline).await?;
            client.flush_until(deadline).await
        })
    }
}

impl StoredClient {
    /// Disconnects. Sessions of a stream that only this connection can read are released: nothing of them is missed, and
    /// the next owner need not know that this process has not been killed.
    pub(super) async fn end_connection(&self, deadline: tokio::time::Instant) -> Result<(), Error> {
        self.shared.leave_endpoint_in_use(&self.client, deadline).await;
        let can = self.client.capabilities();
        let mut idle = Vec::new();
        if can.is_some_and(|can| can.server == ServerKind::ConnectionId) {
            // A turn that has ended may not be stored yet.
            let is_idle = |view: &View| {
                let agent_session = view.agent_session.clone().filter(|_| view.open_turn.is_none());
                agent_session.is_some_and(|id| self.client.session(id).turn_state() == TurnState::Idle)
            };
            idle = self.shared.all_tracked();
            idle.retain(|(_, handle)| is_idle(&handle.view.borrow()));
        }
        let disconnected = self.client.disconnect().await;
        let releases = idle.iter().map(|(id, _)| async move {
            if let Err(error) = self.session(id).release().await {
                // The next owner stores a gap that covers no events.
                tracing::debug!(error = %crate::convert::text::OneLine(&error), session = id, "a session could not be released");
            }
        });
        // A store that does not respond cannot exceed the deadline.
        let _ = tokio::time::timeout_at(deadline, futures::future::join_all(releases)).await;
        disconnected
    }
}

impl fmt::Debug for StoredClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredClient").field("store", &self.shared.store).finish_non_exhaustive()
    }
}
