//! Maintenance: ends idle agents, deletes expired sessions, shuts down.

use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use tokio::time::Instant;

use super::client::StoredClient;
use super::store::{self, MAX_PAGE, RecordQuery, SessionRecord};
use crate::client::network::check_runtime;
use crate::session::Timestamp;
use crate::sessions::{RetentionPolicy, SessionStatus};
use crate::turns::TurnState;
use crate::{Error, ServerKind};

/// The minimum interval of maintenance, regardless of the policy.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);
/// How many idle agents are ended at the same time.
const ENDING: usize = 16;

/// Selects the sessions that a shutdown suspends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// Sessions that this process owns.
    Own,
    /// All active sessions in the store, including those of other processes.
    All,
}

impl StoredClient {
    /// Returns the sessions that have expired under the policy. [`delete_expired`](Self::delete_expired) deletes
    /// them.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails.
    pub async fn expired(
        &self,
        policy: &RetentionPolicy,
        now: Timestamp,
    ) -> Result<Vec<SessionRecord>, Error> {
        let mut expired = Vec::new();
        for status in SessionStatus::ALL.iter().copied() {
            let shortest = [false, true].into_iter().filter_map(|supports_resume| {
                let mut record = SessionRecord::new("any", "any", now);
                record.details.supports_resume = supports_resume;
                policy.period(status, record.resume_support(false))
            });
            let Some(shortest) = shortest.min() else { continue };
            let millis = u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX);
            let before = Timestamp::from_millis(now.as_millis().saturating_sub(millis));
            let query = RecordQuery::all().statuses([status]).inactive_before(before).limit(MAX_PAGE);
            let visit = |record: SessionRecord| {
                expired.extend(Some(record).filter(|record| is_expired(policy, record, now)));
                None::<()>
            };
            self.shared.find_record(query, visit).await?;
        }
        Ok(expired)
    }

    /// Deletes the sessions that have expired under the policy. Returns the deleted sessions.
    ///
    /// # Errors
    /// [`Error::Store`] if the store fails. Some sessions may already be deleted.
    pub async fn delete_expired(
        &self,
        policy: &RetentionPolicy,
        now: Timestamp,
    ) -> Result<Vec<SessionRecord>, Error> {
        let mut deleted = Vec::new();
        for record in self.expired(policy, now).await? {
            // It is not deleted if it has changed since it was found.
            if self.shared.in_time(self.shared.store.delete_unchanged(&record)).await? {
                self.shared.untrack(&record.id);
                self.leave_endpoint_of(&record).await;
                deleted.push(record);
            }
        }
        Ok(deleted)
    }

    /// Returns the ids of the sessions whose agents are idle. [`end_idle`](Self::end_idle) ends these agents.
    #[must_use]
    pub fn idle(&self, policy: &RetentionPolicy, now: Timestamp) -> Vec<String> {
        let is_idle = |(id, handle): (String, super::shared::Handle)| {
            let view = handle.view.borrow().clone();
            let agent_session = view.agent_session.filter(|_| view.open_turn.is_none())?;
            let is_quiet = self.client().session(agent_session).turn_state() == TurnState::Idle;
            let last = view.last_active?;
            (is_quiet && policy.is_agent_idle(SessionStatus::Active, last, now)).then_some(id)
        };
        let mut ids: Vec<String> = self.shared.all_tracked().into_iter().filter_map(is_idle).collect();
        ids.sort_unstable();
        ids
    }

    /// Ends the agents of idle sessions and returns the ids of these sessions. The sessions stay active: the next
    /// prompt restores them.
    ///
    /// If one agent process serves all sessions of the connection, it ends only when all its sessions are idle,
    /// including sessions that are not stored. A turn that starts at the same time either keeps this agent running
    /// or is sent to a new agent.
    ///
    /// # Errors
    /// The first error, if no agent could be ended. Otherwise errors are logged.
    pub async fn end_idle(&self, policy: &RetentionPolicy, now: Timestamp) -> Result<Vec<String>, Error> {
        let idle = self.idle(policy, now);
        if idle.is_empty() {
            return Ok(idle);
        }
        let kind = self.client().capabilities().map(|capabilities| capabilities.server);
        if kind == Some(ServerKind::PerAgent) {
            return self.end_idle_agent(policy, now, idle).await;
        }
        let ending = futures::stream::iter(idle).map(|id| async move {
            let policy = *policy;
            let ended =
                self.shared.ask(self.client(), &id, move |tracker| Box::pin(tracker.end_idle(policy, now)));
            let ended = ended.await;
            (id, ended)
        });
        let results: Vec<_> = ending.buffered(ENDING).collect().await;
        let (mut ended, mut failure) = (Vec::new(), None);
        for (id, result) in results {
            match result {
                Ok(true) => ended.push(id),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %crate::convert::text::OneLine(&error), session = id, "an idle agent could not be ended");
                    failure = failure.or(Some(error));
                }
            }
        }
        match failure {
            Some(error) if ended.is_empty() => Err(error),
            _ => Ok(ended),
        }
    }

    /// Ends the only agent of the connection, if all its sessions are idle.
    async fn end_idle_agent(
        &self,
        policy: &RetentionPolicy,
        now: Timestamp,
        idle: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        let tracked = self.shared.all_tracked();
        let live = tracked.iter().filter(|(_, handle)| handle.view.borrow().agent_session.is_some()).count();
        let last = self.shared.feed.last_active();
        let is_quiet = last.is_none_or(|last| policy.is_agent_idle(SessionStatus::Active, last, now));
        if idle.len() < live || !is_quiet {
            return Ok(Vec::new());
        }
        if self.shared.leave_endpoint_in_use(self.client(), self.shared.deadline()).await {
            // Its agent works for another process.
            return Ok(Vec::new());
        }
        self.shared.feed.set_falling_asleep(true);
        let is_ended = self.client().disconnect_if_idle().await;
        self.shared.feed.set_falling_asleep(false);
        if !is_ended {
            return Ok(Vec::new());
        }
        self.flush().await?;
        Ok(idle)
    }

    /// Runs maintenance until the future is dropped. It ends idle agents every
    /// [`idle_check`](RetentionPolicy::idle_check) (5 minutes by default) and deletes expired sessions every
    /// [`expiry_check`](RetentionPolicy::expiry_check) (daily by default). It returns only if there is no tokio
    /// runtime.
    pub async fn run_maintenance(&self, policy: RetentionPolicy) {
        if let Err(error) = check_runtime() {
            return tracing::error!(error = %crate::convert::text::OneLine(&error), "maintenance does not run");
        }
        let mut deleted: Option<Instant> = None;
        loop {
            let now = SystemTime::now().into();
            if let Err(error) = self.end_idle(&policy, now).await {
                tracing::warn!(error = %crate::convert::text::OneLine(&error), "idle agents could not be ended");
            }
            if deleted.is_none_or(|at| at.elapsed() >= policy.expiry_check) {
                match self.delete_expired(&policy, now).await {
                    Ok(_) => deleted = Some(Instant::now()),
                    Err(error) => {
                        tracing::warn!(error = %crate::convert::text::OneLine(&error), "old sessions could not be deleted")
                    }
                }
            }
            tokio::time::sleep(policy.idle_check.max(SHORTEST_CHECK)).await;
        }
    }

    /// Stores waiting events, suspends sessions, disconnects, and stores the events that arrived meanwhile. Returns
    /// the number of suspended sessions.
    ///
    /// Running turns end or continue as after a [disconnect](Self::disconnect).
    ///
    /// All steps share one deadline of twice [`StoreOptions::retry_for`](super::StoreOptions::retry_for).
    ///
    /// # Errors
    /// [`Error::Store`] or [`Error::EventsLost`] if something was not stored. The client is disconnected in any case.
    pub async fn shut_down(&self, which: Suspend) -> Result<u64, Error> {
        check_runtime()?;
        let deadline = self.shared.flush_deadline();
        // Pending events are stored first. A session that cannot be stored must not use up the time to suspend the
        // others.
        let stored = self.flush_until(self.shared.deadline()).await;
        let which = match which {
            Suspend::Own => store::Suspend::Own(self.shared.owner.clone()),
            Suspend::All => store::Suspend::All,
        };
        let suspending = self.shared.store.suspend(which, SystemTime::now().into());
        let suspended = tokio::time::timeout_at(deadline, suspending).await;
        let suspended = suspended.unwrap_or_else(|_| Err(store::StoreError::timed_out("suspend timed out")));
        let disconnected = self.end_connection(deadline).await;
        let flushed = self.flush_until(deadline).await;
        let count = suspended?;
        stored.and(disconnected).and(flushed).map(|()| count)
    }

    /// Waits for SIGTERM or SIGINT (Ctrl-C on systems other than Unix), then [shuts down](Self::shut_down).
    ///
    /// # Errors
    /// The errors of [`shut_down`](Self::shut_down), and [`Error::Local`] if signals cannot be received.
    pub async fn shut_down_on_signal(&self, which: Suspend) -> Result<u64, Error> {
        check_runtime()?;
        let signal = signalled().await;
        signal.map_err(|source| Error::Local {
            what: "signal".to_owned(),
            source: std::sync::Arc::new(source),
        })?;
        self.shut_down(which).await
    }
}

#[cfg(unix)]
async fn signalled() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn signalled() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}

fn is_expired(policy: &RetentionPolicy, record: &SessionRecord, now: Timestamp) -> bool {
    policy.is_expired(record.status, record.resume_support(false), record.last_active_at, now)
}
