//! Idle agents, old sessions, shutting down.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::binding::Binding;
use super::handle::Sessions;
use crate::session::Timestamp;
use crate::sessions::{
    InactiveQuery, RetentionPolicy, SessionRecord, SessionStatus, StatusEvent, StoreError,
};
use crate::turns::TurnState;
use crate::{Error, ServerKind};

/// Maintenance runs no more often than this, whatever the policy says.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);
/// How often old sessions are deleted: daily.
const DELETE_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// The variable with the minutes after which an agent is idle.
const IDLE_MINUTES: &str = "AGENT_SESSION_IDLE_TIMEOUT";

/// Which sessions are suspended when a program shuts down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// Those that this client owns.
    Own,
    /// All active sessions of the store, also those of other programs.
    All,
}

impl Sessions {
    /// The sessions that have outlived their time: what [`delete_expired`](Self::delete_expired) would delete.
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
            let shortest = [false, true].into_iter().filter_map(|resumable| {
                let mut record = SessionRecord::new("any", "any", now);
                record.resumable = resumable;
                policy.period(status, record.resume_support(false))
            });
            let Some(shortest) = shortest.min() else { continue };
            let millis = u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX);
            let before = Timestamp::from_millis(now.as_millis().saturating_sub(millis));
            let mut query = InactiveQuery::new(status, before).limit(crate::sessions::MAX_PAGE);
            loop {
                let page = self.ledger.store.inactive(&query).await?;
                let old = page.records.into_iter().filter(|record| is_expired(policy, record, now));
                expired.extend(old);
                match page.next {
                    Some(next) => query = query.after(next),
                    None => break,
                }
            }
        }
        Ok(expired)
    }

    /// Deletes the sessions that have outlived their time, and tells which.
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
            // It may have been taken up since it was found, and is not deleted then.
            if self.ledger.delete(&record.id, self.ledger.store.delete_unchanged(&record)).await? {
                deleted.push(record);
            }
        }
        Ok(deleted)
    }

    /// The sessions whose agents have been idle for too long: what [`end_idle`](Self::end_idle) would end.
    #[must_use]
    pub fn idle(&self, policy: &RetentionPolicy, now: Timestamp) -> Vec<String> {
        let bound = self.ledger.bound().into_iter();
        let idle = bound.filter(|(_, binding)| self.is_idle(binding, policy, now));
        let mut ids: Vec<String> = idle.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    fn is_idle(&self, binding: &Binding, policy: &RetentionPolicy, now: Timestamp) -> bool {
        binding.live
            && self.client().session(&binding.agent_session).turn_state() == TurnState::Idle
            && policy.is_agent_idle(SessionStatus::Active, binding.last_active, now)
    }

    /// Ends the agents of sessions in which nothing has happened for too long, and tells of which. The sessions stay
    /// active: the next prompt has the agent take them up again.
    ///
    /// Where all sessions share one agent process with the connection, it is ended once nothing has happened in any of
    /// them for as long, be they kept or not. A turn that begins meanwhile either keeps the agent alive or is not sent.
    ///
    /// One that cannot be ended does not keep the others from it, and is tried again the next time.
    ///
    /// # Errors
    /// The first that ending one of them came with, if none could be ended; else there is a warning in the log.
    pub async fn end_idle(&self, policy: &RetentionPolicy, now: Timestamp) -> Result<Vec<String>, Error> {
        let idle = self.idle(policy, now);
        if idle.is_empty() {
            return Ok(idle);
        }
        let kind = self.client().capabilities().map(|capabilities| capabilities.server);
        if kind == Some(ServerKind::PerAgent) {
            return self.end_idle_agent(policy, now, idle).await;
        }
        let (mut ended, mut failure) = (Vec::new(), None);
        for id in idle {
            match self.end_idle_one(policy, now, &id).await {
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

    /// Ends the agent of one session if it is idle, and tells whether this ended it.
    async fn end_idle_one(&self, policy: &RetentionPolicy, now: Timestamp, id: &str) -> Result<bool, Error> {
        let gate = self.ledger.gate(id);
        let _alone = gate.lock().await;
        // A turn may have begun while the others were ended, or another program has taken the session up.
        let Some(record) = self.ledger.store.get(id).await? else { return Ok(false) };
        let Some(binding) = self.ledger.current(&record) else { return Ok(false) };
        if !self.is_idle(&binding, policy, now) {
            return Ok(false);
        }
        let result = match self.client().terminate_session(&binding.agent_session).await {
            // The server ends its agents by itself, or never.
            Err(Error::Unsupported { .. }) => return Ok(false),
            result => result?,
        };
        if result.terminated || result.already_ended {
            self.ledger.lose(id);
        }
        Ok(result.terminated)
    }

    /// Ends the one agent of the connection, if everything in it is idle.
    async fn end_idle_agent(
        &self,
        policy: &RetentionPolicy,
        now: Timestamp,
        idle: Vec<String>,
    ) -> Result<Vec<String>, Error> {
        // Whoever has one of these is about to begin something.
        let gates: Vec<_> = idle.iter().map(|id| self.ledger.gate(id)).collect();
        let mut alone = Vec::new();
        for gate in &gates {
            match gate.try_lock() {
                Ok(locked) => alone.push(locked),
                Err(_) => return Ok(Vec::new()),
            }
        }
        let live = self.ledger.bound().into_iter().filter(|(_, binding)| binding.live).count();
        let last = self.ledger.last_active();
        let quiet = last.is_none_or(|last| policy.is_agent_idle(SessionStatus::Active, last, now));
        if idle.len() < live || !quiet {
            return Ok(Vec::new());
        }
        self.ledger.set_asleep(true);
        if !self.client().inner().disconnect_if_quiet().await {
            self.ledger.set_asleep(false);
            return Ok(Vec::new());
        }
        drop(alone);
        self.ledger.flush().await?;
        Ok(idle)
    }

    /// Ends idle agents, every [`idle_check`](RetentionPolicy::idle_check) (5 minutes), and deletes old sessions, daily,
    /// until the future is dropped.
    pub async fn run_maintenance(&self, policy: RetentionPolicy) {
        let mut deleted: Option<Instant> = None;
        loop {
            let now = SystemTime::now().into();
            if let Err(error) = self.end_idle(&policy, now).await {
                tracing::warn!(%error, "idle agents could not be ended");
            }
            if deleted.is_none_or(|at| at.elapsed() >= DELETE_INTERVAL) {
                match self.delete_expired(&policy, now).await {
                    Ok(_) => deleted = Some(Instant::now()),
                    Err(error) => tracing::warn!(%error, "old sessions could not be deleted"),
                }
            }
            tokio::time::sleep(policy.idle_check.max(SHORTEST_CHECK)).await;
        }
    }

    /// Waits for SIGTERM or SIGINT (Ctrl-C elsewhere), then [shuts down](Self::shut_down).
    ///
    /// # Errors
    /// As [`shut_down`](Self::shut_down), and [`Error::Local`] if signals cannot be received.
    pub async fn shut_down_on_signal(&self, which: Suspend) -> Result<usize, Error> {
        let signal = signalled().await;
        signal.map_err(|source| Error::Local { what: "signal".to_owned(), source: Arc::new(source) })?;
        self.shut_down(which).await
    }

    /// Shuts down: stores what waits, suspends active sessions, disconnects, and stores what came meanwhile. Returns how
    /// many were suspended. The store has one deadline for all of it, twice the patience of
    /// [`RecorderOptions`](crate::sessions::RecorderOptions).
    ///
    /// # Errors
    /// [`Error::Store`]; the client is disconnected all the same.
    pub async fn shut_down(&self, which: Suspend) -> Result<usize, Error> {
        // What happened comes first: there may not be much time, and a session that is not suspended can be taken up all
        // the same.
        let deadline = self.ledger.deadline();
        let stored = self.ledger.flush_until(deadline).await;
        let suspending = async {
            match which {
                Suspend::Own => self.suspend_own().await,
                Suspend::All => self.suspend_all().await,
            }
        };
        let suspended = tokio::time::timeout_at(deadline, suspending).await;
        let suspended =
            suspended.unwrap_or_else(|_| Err(StoreError::late("the store does not answer").into()));
        self.client().inner().disconnect().await;
        let flushed = self.ledger.flush_until(deadline).await;
        let count = suspended?;
        stored.and(flushed).map(|()| count)
    }

    /// Suspends all active sessions of the store.
    async fn suspend_all(&self) -> Result<usize, Error> {
        let suspended = self.ledger.store.suspend_active(SystemTime::now().into()).await?;
        Ok(usize::try_from(suspended).unwrap_or(usize::MAX))
    }

    /// Suspends the sessions that this program has. One that cannot be suspended does not keep the others from it.
    async fn suspend_own(&self) -> Result<usize, Error> {
        let (mut suspended, mut failure) = (0, None);
        for (id, binding) in self.ledger.bound() {
            match self.suspend_one(&id, binding.epoch).await {
                Ok(was_active) => suspended += usize::from(was_active),
                // It was deleted meanwhile.
                Err(Error::Store(StoreError::NotFound { .. })) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(suspended), Err)
    }

    /// Suspends a session if it is active and nobody has taken it up since this epoch, and tells whether it did.
    /// Otherwise it stays as it is.
    async fn suspend_one(&self, id: &str, epoch: u64) -> Result<bool, Error> {
        loop {
            let mut record = self.ledger.record(id).await?;
            if record.status != SessionStatus::Active || record.epoch != epoch {
                return Ok(false);
            }
            record.status = record.status.after(StatusEvent::Shutdown)?;
            record.last_active = record.last_active.max(SystemTime::now().into());
            match self.ledger.store.put(record).await {
                Ok(_) => return Ok(true),
                // Whoever was quicker got something done, so that this comes to an end.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl RetentionPolicy {
    /// The defaults, with the idle time of the variable `AGENT_SESSION_IDLE_TIMEOUT`, in minutes, if it is set.
    #[must_use]
    pub fn from_env() -> Self {
        let minutes = std::env::var(IDLE_MINUTES).ok();
        Self::default().with_idle_minutes(minutes.as_deref())
    }

    fn with_idle_minutes(mut self, minutes: Option<&str>) -> Self {
        if let Some(minutes) = minutes.and_then(|minutes| minutes.trim().parse::<u64>().ok()) {
            self.idle = Duration::from_secs(minutes.saturating_mul(60));
        }
        self
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
    policy.is_expired(record.status, record.resume_support(false), record.last_active, now)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::sessions::RetentionPolicy;

    #[test]
    fn the_idle_time_of_the_environment_is_in_minutes_and_nonsense_is_ignored() {
        let default = RetentionPolicy::default().idle;
        let table = [
            (None, default),
            (Some("5"), Duration::from_secs(300)),
            (Some(" 45 "), Duration::from_secs(2700)),
            (Some("0"), Duration::ZERO),
            (Some("-1"), default),
            (Some("soon"), default),
            (Some(""), default),
        ];
        for (minutes, idle) in table {
            assert_eq!(RetentionPolicy::default().with_idle_minutes(minutes).idle, idle, "{minutes:?}");
        }
    }
}
