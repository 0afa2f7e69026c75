//! Becoming the one that has a session, and stores what happens in it.

use serde_json::{Value, json};

use super::amend::Amendment;
use super::binding::{Moment, Owed, TakenUp};
use super::handle::Sessions;
use super::ledger::{Hold, is_unknown_session};
use super::recent::Recent;
use super::restore::{Restored, Wish};
use super::strangers::Stored;
use crate::client::Others;
use crate::connection::Capabilities;
use crate::sessions::{EventQuery, ResumeSupport, SessionRecord, SessionStatus, StatusEvent, StoreError};
use crate::store::number_of;
use crate::{Error, NewSession, ServerKind, Session};

/// How many events a server keeps for those who come late, so that nobody can be further behind.
const RING: u64 = 1024;

/// A session that this program stores what happens in, before the agent was asked for it.
struct Claim {
    owner: SessionRecord,
    /// What was the session's session of the agent until now, of which everything is held back.
    old_session: Option<String>,
    hold: Option<Hold>,
    /// Whether others see the same stream.
    is_shared: bool,
    asked: Moment,
    recent: Recent,
    /// Why it could not be found out what others have stored.
    unread: Option<Error>,
    stored_to: Option<u64>,
    others: Others,
}

/// A session as the agent has it.
struct Reopened {
    session: Session,
    how: Restored,
    kept: SessionRecord,
    /// What comes for it is held back, if it is new.
    hold: Option<Hold>,
}

impl Sessions {
    /// Waits until everything that has arrived was given out.
    async fn catch_up(&self) {
        if let Some(connection) = self.client().inner().present() {
            connection.between_events(|| {}).await;
        }
    }

    /// Takes a session up.
    ///
    /// First this program becomes the one that stores what happens in the session, so that nobody else takes the history
    /// for news that an agent tells when it loads. Whatever the agent then does, what happens is stored from here.
    pub(super) async fn take_over(
        &self,
        wish: &Wish,
        can: &Capabilities,
        record: &SessionRecord,
    ) -> Result<Restored, Error> {
        let claim = self.claim(wish, can, record).await?;
        let reopened = self.reopen(wish, can, &claim).await;
        if let Err(error @ Error::Store(StoreError::TakenOver { .. })) = reopened {
            return Err(error);
        }
        self.catch_up().await;
        let restored = self.settle(claim, can, reopened)?;
        tracing::debug!(session = record.id, by = restored.as_str(), "a session was taken up again");
        Ok(restored)
    }

    /// Has this program be the one that stores what happens in a session, and finds out what others have stored.
    async fn claim(&self, wish: &Wish, can: &Capabilities, record: &SessionRecord) -> Result<Claim, Error> {
        let ledger = &self.ledger;
        let old_session = record.agent_session_id.clone();
        let is_shared = can.server == ServerKind::Shared;
        self.catch_up().await;
        let (hold, place) = old_session.as_deref().map(|session| ledger.hold(session)).unzip();
        let place = place.filter(|_| is_shared);
        let asked = ledger.now();
        // Where the session was made, if nobody has taken it up since.
        let mut made_at = None;
        let owner = ledger.raise(&record.id, |record| {
            wish.check(record)?;
            if record.agent_session_id != old_session {
                // It has moved since it was read, and nothing is held back of where it is now.
                return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch }.into());
            }
            made_at = record.taken_at.take().filter(|_| record.epoch == 1);
            record.taken_at.clone_from(&place);
            Ok(())
        });
        let owner = owner.await?;
        ledger.recorder().know(&owner);
        // Nobody else stores what happens any more, so that it is stored from here even if it cannot be found out what
        // others have stored.
        let (recent, unread) = match self.recent(&owner, can.server, made_at.as_deref()).await {
            Ok(recent) => (recent, None),
            Err(error) => (Recent::default(), Some(error)),
        };
        let stored_to = recent.stored_to(|place| ledger.has_read(place));
        // Whoever has it may be slow to store what goes on.
        let goes_on = old_session.as_deref().is_some_and(|session| ledger.has_behind(session, stored_to));
        let others = match recent.has_open_turn || goes_on || unread.is_some() {
            true => Others::MayHaveATurn,
            false => Others::HaveNoTurn,
        };
        Ok(Claim { owner, old_session, hold, is_shared, asked, recent, unread, stored_to, others })
    }

    /// Binds a session as the agent has taken it up, or has not.
    fn settle(
        &self,
        claim: Claim,
        can: &Capabilities,
        reopened: Result<Reopened, Error>,
    ) -> Result<Restored, Error> {
        let Claim { owner, old_session, hold, is_shared, asked, recent, unread, stored_to, others } = claim;
        let ledger = &self.ledger;
        let is_ordered = matches!(reopened, Ok(_) | Err(Error::Rpc { .. }));
        let read = owner.taken_at.as_deref().and_then(number_of);
        let ahead = ledger.ahead(&recent.ids, read, is_ordered);
        let (reached, places) = (ledger.last_place(), recent.places());
        let stored = Stored {
            is_accounted: recent.is_accounted(owner.epoch.saturating_sub(1)),
            to: stored_to,
            last: recent.last.as_deref().and_then(number_of),
            places: &places,
            has_open_turn: recent.has_open_turn,
            is_ended: recent.is_ended,
        };
        let mut taken = TakenUp {
            id: &owner.id,
            agent_session: "",
            made_at: owner.created_at,
            epoch: owner.epoch,
            since: owner.last_index,
            owed: Owed::Nothing,
            live: unread.is_none(),
            asked,
            stored: (is_shared && unread.is_none()).then_some(stored),
            restored: None,
        };
        let payload = |how: &str, session: &str, loads: bool| {
            // What is behind this place is news. What an agent tells while it loads is not.
            let at = if loads { reached.as_deref() } else { owner.taken_at.as_deref() };
            unread.is_none().then(|| restored_payload(how, session, at.filter(|_| is_shared)))
        };
        let Reopened { session, how, kept, hold: new_hold } = match reopened {
            Ok(reopened) => reopened,
            Err(error) => {
                if let Some(session) = old_session.as_deref() {
                    (taken.agent_session, taken.live) = (session, false);
                    taken.restored = payload("none", session, ways(can, &owner.agent).load);
                    ledger.bind_held(&taken, ahead);
                }
                return Err(error);
            }
        };
        taken.agent_session = session.id();
        taken.owed = if kept.replay_pending { Owed::History } else { Owed::Nothing };
        taken.restored = payload(how.as_str(), session.id(), how == Restored::Loaded);
        match how {
            Restored::Replayed => ledger.bind_new(&taken, old_session.as_deref().map(|old| (old, ahead))),
            _ => ledger.bind_held(&taken, ahead),
        }
        drop((hold, new_hold));
        if let Some(termination) = session.termination() {
            // The agent has ended since it answered.
            ledger.ended(&owner.id, owner.epoch, termination);
        }
        if let Some(error) = unread {
            return Err(error);
        }
        // What an agent tells of a turn while it loads cannot be told from the history; and one that was to tell nothing
        // may have told something that was not known.
        let is_doubtful =
            others == Others::MayHaveATurn || (can.resume_session && !recent.explains(session.history()));
        if how == Restored::Loaded && is_shared && is_doubtful {
            let from = read.and_then(|read| read.checked_add(1));
            ledger.record_gap(&owner.id, from, reached.as_deref().and_then(number_of));
        }
        Ok(how)
    }

    /// Has the agent open a session again, and writes down how.
    async fn reopen(&self, wish: &Wish, can: &Capabilities, claim: &Claim) -> Result<Reopened, Error> {
        let (owner, others) = (&claim.owner, claim.others);
        let new = wish.new.clone().unwrap_or_else(|| NewSession::from_kept(&owner.init));
        let new = if can.agent == owner.agent { new } else { new.agent(&owner.agent) };
        let mut restored = None;
        if let Some(agent_session) = &owner.agent_session_id {
            let can = ways(can, &owner.agent);
            restored = self.take_up(can, agent_session, &new, others).await?;
        }
        if let (None, Some(support)) = (&restored, wish.support)
            && owner.status == SessionStatus::Suspended
            && !self.ledger.replay.resumes
        {
            // The agent does not have it any more, and that it is told its history is not wanted.
            owner.status.after(StatusEvent::Resume(ResumeSupport { resume_data: false, ..support }))?;
        }
        let (session, how, hold) = match restored {
            Some((session, how)) => (session, how, None),
            None => {
                let session = self.client().new_session(new).await?;
                let (hold, _) = self.ledger.hold(session.id());
                (session, Restored::Replayed, Some(hold))
            }
        };
        let kept = self.ledger.change(&owner.id, |record| {
            if record.epoch != owner.epoch {
                return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch }.into());
            }
            wish.check(record)?;
            if let (SessionStatus::Suspended, Some(support)) = (record.status, wish.support) {
                record.status = record.status.after(StatusEvent::Resume(support))?;
            }
            record.agent_session_id = Some(session.id().to_owned());
            record.resumable = can_reopen(can, &owner.agent);
            record.replay_pending |= how == Restored::Replayed;
            record.termination = None;
            Amendment::of_answer(session.raw()).apply(record);
            Ok(())
        });
        match kept.await {
            Ok(kept) => Ok(Reopened { session, how, kept, hold }),
            Err(error) => {
                if how == Restored::Replayed {
                    // Nobody will hold it, so it should not go on. What becomes of that does not matter to the caller.
                    let _ = self.client().terminate_session(session.id()).await;
                }
                Err(error)
            }
        }
    }

    /// What was stored last of a session that others may have had, where they see the same stream. Nobody else can write
    /// any more, so that this is all there is.
    async fn recent(
        &self,
        owner: &SessionRecord,
        kind: ServerKind,
        made_at: Option<&str>,
    ) -> Result<Recent, Error> {
        if kind != ServerKind::Shared {
            return Ok(Recent::default());
        }
        let start = owner.last_index.saturating_sub(RING);
        let mut recent = Recent::behind(start, made_at);
        let mut query = EventQuery::of(&owner.id).after(start).limit(crate::sessions::MAX_PAGE);
        loop {
            let page = self.ledger.events(&query).await?;
            for event in page.events.into_iter().filter(|event| event.index <= owner.last_index) {
                recent.take_in(event);
            }
            match page.next.filter(|next| *next < owner.last_index) {
                Some(next) => query = query.after(next),
                None => return Ok(recent),
            }
        }
    }

    /// Has the agent resume or load its session; `None` if it can do neither, or does not have it.
    async fn take_up(
        &self,
        can: Ways,
        agent_session: &str,
        new: &NewSession,
        others: Others,
    ) -> Result<Option<(Session, Restored)>, Error> {
        let client = self.client();
        if can.resume {
            match client.resume_in(agent_session.to_owned(), new.clone(), others).await {
                // Where the agent cannot do what it says, the session was loaded, or it told its history all the same.
                Ok(session) if !session.history().is_empty() => return Ok(Some((session, Restored::Loaded))),
                Ok(session) => return Ok(Some((session, Restored::Resumed))),
                Err(error) if refuses(&error) => tracing::debug!(%error, "a session cannot be resumed"),
                Err(error) => return Err(error),
            }
        }
        if can.load {
            match client.load_session(agent_session, new.clone()).await {
                Ok(session) => return Ok(Some((session, Restored::Loaded))),
                Err(error) if refuses(&error) => tracing::debug!(%error, "a session cannot be loaded"),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// How a session may be taken up.
#[derive(Debug, Clone, Copy)]
struct Ways {
    resume: bool,
    load: bool,
}

/// How an agent can take sessions up, as far as is known. A server has told that of the agent of the connection; what
/// others can do shows when it is tried.
fn ways(can: &Capabilities, agent: &str) -> Ways {
    let is_unknown = can.agent != agent;
    Ways { resume: can.resume_session || is_unknown, load: can.load_session || is_unknown }
}

/// Whether an agent may be able to take sessions up.
pub(super) fn can_reopen(can: &Capabilities, agent: &str) -> bool {
    let Ways { resume, load } = ways(can, agent);
    resume || load
}

/// What is stored of a session that was taken up.
pub(super) fn restored_payload(by: &str, agent_session: &str, at: Option<&str>) -> Value {
    let mut payload = json!({"by": by, "agentSessionId": agent_session});
    if let Some(place) = at {
        payload["at"] = place.into();
    }
    payload
}

/// Whether an agent, or its server, says that it cannot take up this session, so that another way may be tried.
fn refuses(error: &Error) -> bool {
    match error {
        Error::Unsupported { .. } => true,
        // The agent is gone, or the connection: no other way would fare better.
        Error::AgentEnded(_) | Error::ConnectionEnded { .. } | Error::NotConnected => false,
        Error::ServerRestarted { .. } => false,
        Error::Rpc { .. } => !error.is_login_required(),
        error => is_unknown_session(error),
    }
}
