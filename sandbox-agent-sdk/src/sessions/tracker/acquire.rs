//! Becoming the owner of a session, and catching up with the server's stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::reopen::Restoring;
use super::{Owned, Tracker};
use crate::connection::Capabilities;
use crate::event::Restored;
use crate::sessions::store::{Acquire, SessionRecord, StoreError};
use crate::sessions::unique::unique_bytes;
use crate::sessions::{ResumeSupport, SessionStatus, StatusEvent, UserAction};
use crate::{Error, Event, NewSession, ServerKind};

/// How long to wait before a session is acquired again that another process has acquired at the same time, at first.
const RIVAL_WAIT: Duration = Duration::from_millis(5);

/// Why a session is acquired, and with which options.
#[derive(Debug, Clone)]
pub(in crate::sessions) struct Wish {
    pub(in crate::sessions) action: UserAction,
    /// The options to open the session with, including MCP servers; otherwise the stored ones.
    pub(in crate::sessions) new: Option<Arc<NewSession>>,
}

/// How an agent can continue sessions, as far as is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    pub(super) resume: bool,
    pub(super) load: bool,
}

impl Tracker {
    /// Whether this process owns the session as the record says, and the agent has it.
    pub(super) fn is_current(&mut self, record: &SessionRecord) -> bool {
        let Some(owned) = &self.owned else { return false };
        if owned.fence.epoch != record.epoch {
            if record.owner.as_ref() != Some(&self.shared.owner) {
                self.lose_ownership();
            }
            return false;
        }
        owned.is_live || owned.is_remote()
    }

    /// Acquires the session, unless this process owns it.
    pub(in crate::sessions) async fn acquire_if_needed(
        &mut self,
        wish: Wish,
    ) -> Result<Option<Restored>, Error> {
        let record = self.shared.record(&self.id).await?;
        if record.status == SessionStatus::Active && self.is_current(&record) {
            return Ok(None);
        }
        self.acquire(&wish).await.map(Some)
    }

    pub(super) async fn acquire(&mut self, wish: &Wish) -> Result<Restored, Error> {
        let (started, deadline) = (Instant::now(), self.shared.deadline());
        let mut wait = RIVAL_WAIT;
        loop {
            let epoch = self.owned.as_ref().map(|owned| owned.fence.epoch);
            let acquired = self.acquire_once(wish).await;
            let is_unread = |owned: &Owned| !owned.is_live && Some(owned.fence.epoch) != epoch;
            if acquired.is_err() && self.owned.as_ref().is_some_and(is_unread) {
                self.leave_unread().await;
            }
            match acquired {
                // Another process acquires it at the same time; the last one becomes the owner.
                Err(Error::Store(StoreError::OwnershipLost { .. })) if Instant::now() < deadline => {
                    let [random] = unique_bytes();
                    tokio::time::sleep(wait * (1 + u32::from(random % 8))).await;
                    wait = (wait * 2).min(RIVAL_WAIT * 16);
                    self.let_rival_restore(started + (deadline - started) / 2).await;
                }
                acquired => return acquired,
            }
        }
    }

    /// Waits until the process that acquired the session has restored it: to acquire it back before would have both load
    /// it for nothing. The wait is bounded, because that process may have been killed.
    async fn let_rival_restore(&self, until: Instant) {
        let is_restoring = |record: &SessionRecord| {
            !record.caught_up && record.owner.as_ref().is_some_and(|owner| *owner != self.shared.owner)
        };
        while Instant::now() < until
            && self.shared.record(&self.id).await.is_ok_and(|record| is_restoring(&record))
        {
            tokio::time::sleep(RIVAL_WAIT * 4).await;
        }
    }

    /// This process is the owner, but has not stored the server's earlier events. No later event may be stored first.
    async fn leave_unread(&mut self) {
        self.store_ends().await;
        if self.owned.as_ref().is_some_and(|owned| owned.turn.is_some()) {
            // The end of the turn is stored by this process, which alone knows whether its prompt was sent.
            self.shared.feed.unroute(&self.inbox, None);
            self.shared.feed.discard(self.inbox.take_events());
        } else {
            self.disown();
        }
    }

    async fn acquire_once(&mut self, wish: &Wish) -> Result<Restored, Error> {
        let client = self.client.upgrade()?;
        let before = self.shared.record(&self.id).await?;
        let can = self.shared.connected(&client, &before.agent).await?;
        let ways = ways(&can, &before.agent);
        let support = self.check(wish, &before, ways)?;
        if can.server == ServerKind::PerAgent && can.agent != before.agent {
            let what = format!(
                "session belongs to agent `{}`; this client is connected to `{}`",
                before.agent, can.agent
            );
            return Err(Error::config(what));
        }
        let connection = client.inner().connection().await?;
        connection.barrier().await;
        // Events of this process are stored under the old epoch.
        self.catch_up().await;
        self.store_ends().await;
        let moment = self.shared.feed.now();
        let was_live = self.owned.as_ref().is_some_and(|owned| owned.fence.epoch == before.epoch);
        let was_followed = self.owned.as_ref().filter(|_| was_live).is_some_and(|owned| owned.is_followed)
            || before.owner.as_ref() == Some(&self.shared.owner) && before.caught_up;
        let own_turn = self.owned.as_ref().and_then(|owned| owned.turn.clone());
        let endpoint = self.shared.endpoint(&client).await?;
        let record = self.become_owner(&before).await?;
        if !was_live {
            self.lose_ownership();
        }
        // A response that is still not stored will never be: the epoch has changed. Its request is decided again.
        self.unstored_answers.retain(|answer| answer.stored.is_none());
        let is_numbered = can.server != ServerKind::ConnectionId;
        let is_here = record.endpoint.as_ref() == Some(&endpoint);
        let mut owned = Owned::new(&record, record.endpoint.clone().unwrap_or_default(), is_numbered);
        owned.turn = own_turn;
        let agent_session = owned.agent_session.clone().filter(|_| is_here);
        self.owned = Some(owned);
        self.show();
        self.shared.feed.unroute(&self.inbox, agent_session.as_deref());
        if let Some(agent_session) = &agent_session {
            self.shared.feed.propose(agent_session, &self.inbox);
        }
        let mut caught_up =
            self.read_stream(&client, (&before, &record), was_followed, moment, &endpoint).await?;
        if let Some(agent_session) = &agent_session {
            // After a restart the agent may have given the id to another session.
            let since = (!caught_up.is_other).then_some(moment);
            self.shared.feed.decide(agent_session, &self.inbox, since);
        }
        if caught_up.running.is_none() {
            self.shared.feed.end_claim(&self.inbox);
            // This process does not store requests of the session before it is restored.
            caught_up.claim = None;
        }
        // An owner that released the session left it with its agent.
        caught_up.is_there &= is_here && before.owner.is_none() && before.details.termination_info.is_none();
        let (moment, was_remote) = (caught_up.restarted.unwrap_or(moment), caught_up.is_remote);
        let restoring = Restoring { record: &record, wish, support, ways, moment, endpoint: &endpoint };
        let restored = self.restore(&client, &restoring, caught_up).await;
        let is_final = matches!(&restored, Err(Error::NotAllowed { status, .. }) if status.is_terminal());
        let has_moved = restored.is_ok() && self.owned.as_ref().is_some_and(|owned| !owned.is_remote());
        let left = before.endpoint.as_ref().filter(|_| was_remote && before.owner.is_some());
        if let Some(left) = left.filter(|_| is_final || has_moved) {
            self.shared.end_left_endpoint(&client, &self.id, left).await;
        }
        let restored = restored?;
        tracing::debug!(session = self.id, by = %restored.by, "session restored");
        self.shared.hub.publish(&Event::Restored { session_id: self.id.clone(), restored: restored.clone() });
        Ok(restored)
    }

    /// Whether the status allows it. Returns what a suspended session is resumed by.
    fn check(&self, wish: &Wish, record: &SessionRecord, ways: Ways) -> Result<Option<ResumeSupport>, Error> {
        match record.status {
            SessionStatus::Active => Ok(None),
            SessionStatus::Suspended if wish.action == UserAction::Resume => {
                let by_replay = self.shared.options.resume_by_replay;
                let mut support = record.resume_support(ways.resume || ways.load || by_replay);
                support.supports_resume |= by_replay;
                record.status.after(StatusEvent::Resume(support))?;
                Ok(Some(support))
            }
            status => Err(Error::NotAllowed { action: wish.action, status }),
        }
    }

    /// Increments the epoch.
    async fn become_owner(&self, before: &SessionRecord) -> Result<SessionRecord, StoreError> {
        let shared = &self.shared;
        let acquire = Acquire::by(&shared.owner).if_epoch(before.epoch);
        let is_done =
            |now: &SessionRecord| now.owner.as_ref() == Some(&shared.owner) && now.epoch == before.epoch + 1;
        shared.confirmed(&self.id, shared.store.acquire(&self.id, acquire), is_done).await
    }
}

/// A server reports what the agent of the connection can do; what another one can do shows when it is tried.
pub(super) fn ways(can: &Capabilities, agent: &str) -> Ways {
    let is_unknown = can.agent != agent;
    Ways { resume: can.resume_session || is_unknown, load: can.load_session || is_unknown }
}

/// Whether an agent may be able to continue sessions.
pub(super) fn can_reopen(can: &Capabilities, agent: &str) -> bool {
    let Ways { resume, load } = ways(can, agent);
    resume || load
}
