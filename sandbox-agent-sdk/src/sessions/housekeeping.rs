//! Idle agents, old sessions, shutting down.

use std::time::{Duration, SystemTime};

use super::handle::Sessions;
use crate::session::Timestamp;
use crate::sessions::{
    InactiveQuery, RetentionPolicy, SessionRecord, SessionStatus, StatusEvent, StoreError,
};
use crate::turns::TurnState;
use crate::{Error, ServerKind};

/// Nobody keeps house more often than this, whatever the policy says.
const SHORTEST_CHECK: Duration = Duration::from_millis(10);

/// Which sessions are suspended when a program shuts down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// All active sessions of the store.
    #[default]
    All,
    /// Those that this client has used and nobody else has taken up since: for a store that other programs go on using.
    Own,
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
        let idle = self.ledger.bound().into_iter().filter(|(_, binding)| {
            let turn = self.client().session(&binding.agent_session).turn_state();
            binding.live
                && turn == TurnState::Idle
                && policy.is_agent_idle(SessionStatus::Active, binding.last_active, now)
        });
        let mut ids: Vec<String> = idle.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
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
        if !self.idle(policy, now).iter().any(|idle| idle == id) {
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

    /// Keeps house for as long as this is awaited: ends idle agents and deletes what has outlived its time, again and
    /// again. Run it on a task of your own, and end that to end it.
    pub async fn keep_house(&self, policy: RetentionPolicy) {
        loop {
            let now = SystemTime::now().into();
            if let Err(error) = self.end_idle(&policy, now).await {
                tracing::warn!(%error, "idle agents could not be ended");
            }
            if let Err(error) = self.delete_expired(&policy, now).await {
                tracing::warn!(%error, "old sessions could not be deleted");
            }
            tokio::time::sleep(policy.idle_check.max(SHORTEST_CHECK)).await;
        }
    }

    /// Shuts down in good order: stores what waits, suspends active sessions, disconnects, and stores what came
    /// meanwhile. Tells how many were suspended.
    ///
    /// # Errors
    /// [`Error::Store`]; the client is disconnected all the same.
    pub async fn shut_down(&self, which: Suspend) -> Result<usize, Error> {
        // What happened comes first: there may not be much time, and a session that is not suspended can be taken up all
        // the same.
        let stored = self.flush().await;
        let suspended = match which {
            Suspend::All => self.suspend_all().await,
            Suspend::Own => self.suspend_own().await,
        };
        let disconnected = self.client().disconnect().await;
        let flushed = self.flush().await;
        let count = suspended?;
        stored.and(disconnected).and(flushed).map(|()| count)
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

fn is_expired(policy: &RetentionPolicy, record: &SessionRecord, now: Timestamp) -> bool {
    policy.is_expired(record.status, record.resume_support(false), record.last_active, now)
}
