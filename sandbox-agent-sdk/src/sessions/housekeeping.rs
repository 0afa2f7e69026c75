//! Idle agents, old sessions, shutting down.

use std::time::SystemTime;

use super::handle::Sessions;
use crate::{
    Error, InactiveQuery, RecordQuery, RetentionPolicy, ServerKind, SessionRecord, SessionStatus,
    StatusEvent, Timestamp, TurnState,
};

/// Which sessions are suspended when a program shuts down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Suspend {
    /// All active sessions of the store.
    #[default]
    All,
    /// Those that this client has used: for a store that other programs go on using.
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
        for status in SessionStatus::ALL {
            let shortest = [false, true].into_iter().filter_map(|resumable| {
                let mut record = SessionRecord::new("any", "any", now);
                record.resumable = resumable;
                policy.period(status, record.resume_support(false))
            });
            let Some(shortest) = shortest.min() else { continue };
            let millis = u64::try_from(shortest.as_millis()).unwrap_or(u64::MAX);
            let before = Timestamp::from_millis(now.as_millis().saturating_sub(millis));
            let mut query = InactiveQuery::new(status, before).limit(crate::MAX_PAGE);
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
            // It may have been taken up since it was found.
            let present = self.ledger.store.get(&record.id).await?;
            if present.is_some_and(|present| is_expired(policy, &present, now))
                && self.delete(&record.id).await?
            {
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
    /// Where all sessions share one agent process with the connection, it is ended once all of them are idle.
    ///
    /// # Errors
    /// The first that ending one of them came with.
    pub async fn end_idle(&self, policy: &RetentionPolicy, now: Timestamp) -> Result<Vec<String>, Error> {
        let idle = self.idle(policy, now);
        if idle.is_empty() {
            return Ok(idle);
        }
        let kind = self.client().capabilities().map(|capabilities| capabilities.server);
        if kind == Some(ServerKind::PerAgent) {
            let live = self.ledger.bound().into_iter().filter(|(_, binding)| binding.live).count();
            if idle.len() < live {
                return Ok(Vec::new());
            }
            self.ledger.fall_asleep();
            self.client().disconnect().await?;
            return Ok(idle);
        }
        let mut ended = Vec::new();
        for id in idle {
            let gate = self.ledger.gate(&id);
            let _alone = gate.lock().await;
            // A turn may have begun while the others were ended.
            let Some(binding) = self.ledger.binding(&id) else { continue };
            if !self.idle(policy, now).contains(&id) {
                continue;
            }
            match self.client().terminate_session(&binding.agent_session).await {
                Ok(_) => {}
                // The server ends its agents by itself, or never.
                Err(Error::Unsupported { .. }) => continue,
                Err(error) => return Err(error),
            }
            self.ledger.lose(&id);
            ended.push(id);
        }
        Ok(ended)
    }

    /// Keeps house for as long as this is awaited: ends idle agents and deletes what has outlived its time, again and
    /// again. Run it on a task of your own, and end that to end it.
    pub async fn keep_house(&self, policy: RetentionPolicy) {
        let mut ticks = tokio::time::interval(policy.idle_check);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = SystemTime::now().into();
            if let Err(error) = self.end_idle(&policy, now).await {
                tracing::warn!(%error, "idle agents could not be ended");
            }
            if let Err(error) = self.delete_expired(&policy, now).await {
                tracing::warn!(%error, "old sessions could not be deleted");
            }
        }
    }

    /// Shuts down in good order: suspends active sessions, waits until everything is stored, and disconnects. Tells how
    /// many were suspended.
    ///
    /// # Errors
    /// [`Error::Store`]; the client is disconnected all the same.
    pub async fn shut_down(&self, which: Suspend) -> Result<usize, Error> {
        let suspended = self.suspend(which).await;
        let disconnected = self.client().disconnect().await;
        let flushed = self.flush().await;
        let count = suspended?;
        disconnected.and(flushed).map(|()| count)
    }

    async fn suspend(&self, which: Suspend) -> Result<usize, Error> {
        let mut ids = Vec::new();
        match which {
            Suspend::Own => ids.extend(self.ledger.bound().into_iter().map(|(id, _)| id)),
            Suspend::All => {
                let mut query = RecordQuery::all().statuses([SessionStatus::Active]).limit(crate::MAX_PAGE);
                loop {
                    let page = self.ledger.store.list(&query).await?;
                    ids.extend(page.records.into_iter().map(|record| record.id));
                    match page.next {
                        Some(next) => query = query.after(next),
                        None => break,
                    }
                }
            }
        }
        let mut suspended = 0;
        for id in ids {
            let mut was_active = false;
            let changed = self.ledger.change(&id, |record| {
                was_active = record.status == SessionStatus::Active;
                record.status = record.status.after(StatusEvent::Shutdown)?;
                record.last_active = record.last_active.max(SystemTime::now().into());
                Ok(())
            });
            match changed.await {
                Ok(_) => suspended += usize::from(was_active),
                // It was deleted meanwhile.
                Err(Error::Store(crate::StoreError::NotFound { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(suspended)
    }
}

fn is_expired(policy: &RetentionPolicy, record: &SessionRecord, now: Timestamp) -> bool {
    policy.is_expired(record.status, record.resume_support(false), record.last_active, now)
}
