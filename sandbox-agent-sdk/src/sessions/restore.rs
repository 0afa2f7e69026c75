//! Taking a session up again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::amend::Amendment;
use super::binding::{Owed, TakenUp};
use super::handle::Sessions;
use super::ledger::{Hold, is_unknown_session};
use super::recent::Recent;
use super::replay::{history, tells};
use super::strangers::Stored;
use crate::client::Others;
use crate::random::random_below;
use crate::store::number_of;
use crate::{
    Capabilities, ConnectionState, Error, EventQuery, NewSession, ResumeSupport, ServerKind, Session,
    SessionRecord, SessionStatus, StatusEvent, StoreError, UserAction,
};

/// How many events a server keeps for those who come late, so that nobody can be further behind.
const RING: u64 = 1024;
/// How often a session is tried to be taken up that others take up at the same moment, and how long to wait in between,
/// about.
const RIVALS: u32 = 6;
const RIVAL_WAIT: Duration = Duration::from_millis(5);
/// How many pages of events are looked through for those that tell an agent anything.
const SPANS: usize = 64;

/// How a session was taken up again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Restored {
    /// The agent resumed it.
    Resumed,
    /// The agent loaded it. The history that came with it is no news and is not stored again.
    Loaded,
    /// A new session of the agent takes its place, which is told the recent history with the next prompt.
    Replayed,
}

impl Restored {
    fn as_str(self) -> &'static str {
        match self {
            Self::Resumed => "resume",
            Self::Loaded => "load",
            Self::Replayed => "replay",
        }
    }
}

/// Which session is to be taken up, and for what.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    pub(super) id: String,
    /// What it was made of in this program, with its tool servers.
    pub(super) new: Option<NewSession>,
    pub(super) action: UserAction,
    /// What is there to resume it, if it is suspended.
    pub(super) support: Option<ResumeSupport>,
}

impl Wish {
    /// Whether its status allows it, which others may change at any time.
    fn check(&self, record: &SessionRecord) -> Result<(), Error> {
        match record.status {
            SessionStatus::Active => Ok(()),
            SessionStatus::Suspended if self.support.is_some() => Ok(()),
            status => Err(Error::NotAllowed { action: self.action, status }),
        }
    }
}

impl Sessions {
    /// A connection to the agent: the one there is, or a new one where that has ended by itself.
    pub(super) async fn connected(&self, agent: &str) -> Result<Arc<Capabilities>, Error> {
        let client = self.client();
        let connecting = match client.state() {
            ConnectionState::AgentEnded(_) => client.restart_agent(),
            ConnectionState::Lost(_) => client.connect_with(agent),
            ConnectionState::Disconnected if self.ledger.is_asleep() || client.inner().has_failed() => {
                client.connect_with(agent)
            }
            _ => return self.capabilities().await,
        };
        match connecting.await {
            Ok(capabilities) => Ok(capabilities),
            // Somebody else had the same thought.
            Err(Error::AlreadyConnected) => self.capabilities().await,
            // The program gave the connection up while it was made.
            Err(error @ Error::Disconnected { .. }) => Err(error),
            Err(error) => {
                // Nobody gave the connection up: whoever wants a session next tries again.
                self.ledger.set_asleep(true);
                Err(error)
            }
        }
    }

    async fn capabilities(&self) -> Result<Arc<Capabilities>, Error> {
        let connection = self.client().inner().connection().await?;
        connection.capabilities().ok_or(Error::NotConnected)
    }

    /// Has the agent take a session up again: it resumes it, or else loads it, or else gets a new one that is told what
    /// went before. Whoever calls this holds the gate of the session.
    pub(super) async fn restore(&self, wish: Wish) -> Result<Restored, Error> {
        let ledger = &self.ledger;
        for attempt in 1..=RIVALS {
            // What happened here has to be there, to be told and to be told apart from what others have stored.
            ledger.settle_in_time().await?;
            let record = ledger.record(&wish.id).await?;
            wish.check(&record)?;
            let can = self.connected(&record.agent).await?;
            if can.server == ServerKind::PerAgent && can.agent != record.agent {
                let (wanted, present) = (&record.agent, &can.agent);
                let what = format!(
                    "the session belongs to the agent `{wanted}`, and this client talks to `{present}`"
                );
                return Err(Error::config(what));
            }
            match self.take_over(&wish, &can, &record).await {
                // Somebody else wants it at the same moment; one of the two is last, and has it.
                Err(Error::Store(StoreError::TakenOver { .. })) if attempt < RIVALS => {
                    let wait = RIVAL_WAIT * (1 + random_below(8));
                    tokio::time::sleep(wait * attempt).await;
                }
                taken => return taken,
            }
        }
        // The last attempt returned.
        Err(Error::NotConnected)
    }

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
    async fn take_over(
        &self,
        wish: &Wish,
        can: &Capabilities,
        record: &SessionRecord,
    ) -> Result<Restored, Error> {
        let ledger = &self.ledger;
        let old_session = record.agent_session_id.as_deref();
        self.catch_up().await;
        let (hold, place) = old_session.map(|session| ledger.hold(session)).unzip();
        let place = place.filter(|_| can.server == ServerKind::Shared);
        let asked = ledger.now();
        // Where the session was made, if nobody has taken it up since.
        let mut made_at_place = None;
        let owner = ledger.raise(&record.id, |record| {
            wish.check(record)?;
            if record.agent_session_id.as_deref() != old_session {
                // It has moved since it was read, and nothing is held back of where it is now.
                return Err(StoreError::TakenOver { id: record.id.clone(), epoch: record.epoch }.into());
            }
            made_at_place = record.taken_at.take().filter(|_| record.epoch == 1);
            record.taken_at.clone_from(&place);
            Ok(())
        });
        let owner = owner.await?;
        ledger.recorder().know(&owner);
        // Nobody else stores what happens any more, so that it is stored from here even if it cannot be found out what
        // others have stored.
        let (recent, unread) = match self.recent(&owner, can.server, made_at_place.as_deref()).await {
            Ok(recent) => (recent, None),
            Err(error) => (Recent::default(), Some(error)),
        };
        let stored_to = recent.stored_to(|place| ledger.has_read(place));
        let places = recent.places();
        // Whoever has it may be slow to store what goes on.
        let goes_on = old_session.is_some_and(|session| ledger.has_behind(session, stored_to));
        let others = match recent.has_open_turn || goes_on || unread.is_some() {
            true => Others::MayHaveATurn,
            false => Others::HaveNoTurn,
        };
        let restored = self.reopen(wish, can, &owner, others).await;
        if let Err(error @ Error::Store(StoreError::TakenOver { .. })) = restored {
            return Err(error);
        }
        self.catch_up().await;
        let is_ordered = matches!(restored, Ok(_) | Err(Error::Rpc { .. }));
        let read = owner.taken_at.as_deref().and_then(number_of);
        let stored = ledger.ahead(&recent.ids, read, is_ordered);
        let reached = ledger.last_place();
        let mut taken = TakenUp {
            id: &record.id,
            agent_session: "",
            made_at: owner.created_at,
            epoch: owner.epoch,
            since: owner.last_index,
            owed: Owed::Nothing,
            live: unread.is_none(),
            asked,
            stored: None,
            restored: None,
        };
        if can.server == ServerKind::Shared && unread.is_none() {
            let (is_accounted, to) = (recent.is_accounted(owner.epoch.saturating_sub(1)), stored_to);
            let has_open_turn = recent.has_open_turn;
            taken.stored = Some(Stored { is_accounted, to, places: &places, has_open_turn });
        }
        let at = |how: &str, session: &str, loads: bool| {
            // What is behind this place is news. What an agent tells while it loads is not.
            let at = if loads { reached.as_deref() } else { owner.taken_at.as_deref() };
            let at = at.filter(|_| can.server == ServerKind::Shared);
            unread.is_none().then(|| restored_payload(how, session, at))
        };
        let (session, how, kept, new_hold) = match restored {
            Ok(restored) => restored,
            Err(error) => {
                if let Some(session) = old_session {
                    (taken.agent_session, taken.live) = (session, false);
                    taken.restored = at("none", session, ways(can, &owner.agent).load);
                    ledger.bind_held(&taken, stored);
                }
                return Err(error);
            }
        };
        taken.agent_session = session.id();
        taken.owed = if kept.replay_pending { Owed::History } else { Owed::Nothing };
        taken.restored = at(how.as_str(), session.id(), how == Restored::Loaded);
        match how {
            Restored::Replayed => ledger.bind_new(&taken, old_session.map(|session| (session, stored))),
            _ => ledger.bind_held(&taken, stored),
        }
        drop((hold, new_hold));
        if let Some(termination) = session.termination() {
            // The agent has ended since it answered.
            ledger.ended(&record.id, owner.epoch, termination);
        }
        if let Some(error) = unread {
            return Err(error);
        }
        // What an agent tells of a turn while it loads cannot be told from the history; and one that was to tell nothing
        // may have told something that was not known.
        let is_doubtful =
            others == Others::MayHaveATurn || (can.resume_session && !recent.explains(session.history()));
        if how == Restored::Loaded && can.server == ServerKind::Shared && is_doubtful {
            let from = read.and_then(|read| read.checked_add(1));
            ledger.record_gap(&record.id, from, reached.as_deref().and_then(number_of));
        }
        tracing::debug!(session = record.id, by = how.as_str(), "a session was taken up again");
        Ok(how)
    }

    /// Has the agent open a session again, and writes down how.
    async fn reopen(
        &self,
        wish: &Wish,
        can: &Capabilities,
        owner: &SessionRecord,
        others: Others,
    ) -> Result<(Session, Restored, SessionRecord, Option<Hold>), Error> {
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
            Ok(kept) => Ok((session, how, kept, hold)),
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
        let mut query = EventQuery::of(&owner.id).after(start).limit(crate::MAX_PAGE);
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

    /// The recent history as a text for the agent.
    pub(super) async fn history(&self, id: &str) -> Result<Option<String>, Error> {
        let limits = self.ledger.replay;
        let mut end = self.ledger.record(id).await?.last_index;
        let mut telling = VecDeque::new();
        // Not every event tells anything, so that more are read than are told, though not all of a long life.
        for _ in 0..SPANS {
            let start = end.saturating_sub(crate::MAX_PAGE as u64);
            let query = EventQuery::of(id).after(start).limit(crate::MAX_PAGE);
            let page = self.ledger.events(&query).await?;
            let of_span = page.events.into_iter().filter(|event| event.index <= end && tells(event));
            of_span.rev().for_each(|event| telling.push_front(event));
            if start == 0 || telling.len() >= limits.max_events {
                break;
            }
            end = start;
        }
        Ok(history(telling.make_contiguous(), limits))
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
