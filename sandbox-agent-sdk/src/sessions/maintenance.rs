//! Idle agents, old sessions, shutting down.

use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use tokio::time::Instant;

use super::client::StoredClient;
use super::store::{self, InactiveQuery, MAX_PAGE, SessionRecord};
use super::tracker::Ask;
use crate::session::Timestamp;
use crate::sessions::{RetentionPolicy, SessionStatus};
use crate::turns::TurnState;
use crate::{Error, ServerKind};

/// Maintenance runs no more often than this, whatever the policy says.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);
/// How many idle agents are ended at the same time.
const ENDING: usize = 16;

/// Which sessions a shutdown suspends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// Those that this process owns.
    Own,
    /// All active sessions of the store, also those of other programs.
    All,
}

impl StoredClient {
    /// The sessions that are older than the policy keeps them: what [`delete_expired`](Self::delete_expired) deletes.
    ///
    /// # Errors
    /// [`Error::Store`].
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
            let mut query = InactiveQuery::new(status, before).limit(MAX_PAGE);
            loop {
                let page = self.shared.in_time(self.shared.store.inactive(&query)).await?;
                expired.extend(page.records.into_iter().filter(|record| is_expired(policy, record, now)));
                match page.next {
                    Some(next) => query = query.after(next),
                    None => break,
                }
            }
        }
        Ok(expired)
    }

    /// Deletes the sessions that are older than the policy keeps them, and returns them.
    ///
    /// # Errors
    /// [`Error::Store`]; some may have been deleted then.
    pub async fn delete_expired(
        &self,
        policy: &RetentionPolicy,
        now: Timestamp,
    ) -> Result<Vec<SessionRecord>, Error> {
        let mut deleted = Vec::new();
        for record in self.expired(policy, now).await? {
            // It may have changed since it was found, and is not deleted then.
            if self.shared.in_time(self.shared.store.delete_unchanged(&record)).await? {
                self.shared.untrack(&record.id);
                deleted.push(record);
            }
        }
        Ok(deleted)
    }

    /// The sessions whose agents are idle: what [`end_idle`](Self::end_idle) ends.
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

    /// Ends the agents of sessions without activity, and returns which. The sessions stay active: the next prompt
    /// restores them.
    ///
    /// Where all sessions share one agent process with the connection, it is ended once all of them are idle, stored or
    /// not. A turn that begins meanwhile keeps the agent, or is sent to the next one.
    ///
    /// # Errors
    /// The first failure, if no agent could be ended; else it is logged.
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
                self.shared.ask(self.client(), &id, |answer| Ask::EndIdle { policy, now, answer }).await;
            (id, ended)
        });
        let results: Vec<_> = ending.buffered(ENDING).collect().await;
        let (mut ended, mut failure) = (Vec::new(), None);
        for (id, result) in results {
            match result {
                Ok(true) => ended.push(id),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, session = id, "an idle agent could not be ended");
                    failure = failure.or(Some(error));
                }
            }
        }
        match failure {
            Some(error) if ended.is_empty() => Err(error),
            _ => Ok(ended),
        }
    }

    /// Ends the one agent of the connection, if everything in it is idle.
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

    /// Ends idle agents and deletes old sessions, again and again, until the future is dropped: every
    /// [`idle_check`](RetentionPolicy::idle_check) (5 minutes), and every
    /// [`expiry_check`](RetentionPolicy::expiry_check) (daily).
    pub async fn run_maintenance(&self, policy: RetentionPolicy) {
        let mut deleted: Option<Instant> = None;
        loop {
            let now = SystemTime::now().into();
            if let Err(error) = self.end_idle(&policy, now).await {
                tracing::warn!(%error, "idle agents could not be ended");
            }
            if deleted.is_none_or(|at| at.elapsed() >= policy.expiry_check) {
                match self.delete_expired(&policy, now).await {
                    Ok(_) => deleted = Some(Instant::now()),
                    Err(error) => tracing::warn!(%error, "old sessions could not be deleted"),
                }
            }
            tokio::time::sleep(policy.idle_check.max(SHORTEST_CHECK)).await;
        }
    }

    /// Shuts down within one deadline (twice [`StoreOptions::retry_for`](super::StoreOptions::retry_for)): stores what waits,
    /// suspends sessions, disconnects, and stores what came meanwhile. Returns how many were suspended.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::EventsLost`]; the client is disconnected all the same.
    pub async fn shut_down(&self, which: Suspend) -> Result<u64, Error> {
        let deadline = self.shared.flush_deadline();
        // What happened comes first: a session that is not suspended can be acquired all the same.
        let stored = self.flush_until(deadline).await;
        let which = match which {
            Suspend::Own => store::Suspend::Own(self.shared.owner.clone()),
            Suspend::All => store::Suspend::All,
        };
        let suspending = self.shared.store.suspend(which, SystemTime::now().into());
        let suspended = tokio::time::timeout_at(deadline, suspending).await;
        let suspended = suspended.unwrap_or_else(|_| Err(store::StoreError::timed_out("suspend")));
        self.shared.leave_endpoint_in_use(self.client(), deadline).await;
        let disconnected = self.client().disconnect().await;
        let flushed = self.flush_until(deadline).await;
        let count = suspended?;
        stored.and(disconnected).and(flushed).map(|()| count)
    }

    /// Waits for SIGTERM or SIGINT (Ctrl-C elsewhere), then [shuts down](Self::shut_down).
    ///
    /// # Errors
    /// As [`shut_down`](Self::shut_down), and [`Error::Local`] if signals cannot be received.
    pub async fn shut_down_on_signal(&self, which: Suspend) -> Result<u64, Error> {
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
