//! Becoming the owner of a session, and catching up with the server's stream.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::{
    Described, ForeignTurn, LateReplay, OpenTurn, Owned, Replay, Tracker, TurnEnd, ended_by, interrupted,
    turn_end_entry,
};
use crate::client::Others;
use crate::client::random::random_below;
use crate::connection::Capabilities;
use crate::sessions::entry::{Entry, rpc_id_of, text_of_rpc_id};
use crate::sessions::failures::is_unknown_session;
use crate::sessions::feed::Moment;
use crate::sessions::restored::{Restored, RestoredBy};
use crate::sessions::scan::{Scan, Wanted};
use crate::sessions::store::{
    Acquire, Acquired, AgentSession, Append, Change, EventQuery, NewEvent, OpenEvents, RecordPatch,
    SessionRecord, StoreError, StoredEventKind, StreamPosition,
};
use crate::sessions::{ResumeSupport, SessionStatus, StatusEvent, UserAction};
use crate::stream::{StreamPosition as Position, StreamReader};
use crate::{Error, Event, NewSession, OpenSession, SandboxAgentClient, ServerKind, Session};

/// How often a session is acquired against others who want it at the same moment.
const RIVALS: u32 = 8;
const RIVAL_WAIT: Duration = Duration::from_millis(5);
/// Marks that the agent is being asked to load the session: what it replays until `restored` is not new.
pub(super) const RESTORING: &str = "restoring";

/// Why a session is acquired, and with what.
#[derive(Debug, Clone)]
pub(in crate::sessions) struct Wish {
    pub(in crate::sessions) action: UserAction,
    /// What the session is opened with, with its tool servers; else what is stored.
    pub(in crate::sessions) new: Option<Box<NewSession>>,
}

/// How an agent can continue sessions, as far as is known.
#[derive(Debug, Clone, Copy)]
struct Ways {
    resume: bool,
    load: bool,
}

/// What the server's stream says about the time since the session was stored last.
#[derive(Default)]
struct CaughtUp {
    events: Vec<NewEvent>,
    /// Up to where it was read.
    end: Option<Position>,
    /// Whether the agent still has the session: the server is the same one, and the session has not ended.
    is_there: bool,
    /// When it was found that the server has restarted, if it has.
    restarted: Option<Moment>,
    /// The turn that is still running, and whether anything was heard of it.
    running: Option<(OpenTurn, bool)>,
    /// The ids of agent requests that are offered again.
    requests: Vec<String>,
    reader: Option<StreamReader>,
}

/// A session as the agent has opened it.
struct Reopened {
    session: Session,
    by: RestoredBy,
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
        owned.is_live
    }

    /// Acquires the session, unless this process has it.
    pub(super) async fn acquire_if_needed(&mut self, wish: &Wish) -> Result<Option<Restored>, Error> {
        let record = self.shared.record(&self.id).await?;
        if record.status == SessionStatus::Active && self.is_current(&record) {
            return Ok(None);
        }
        self.acquire(wish).await.map(Some)
    }

    pub(super) async fn acquire(&mut self, wish: &Wish) -> Result<Restored, Error> {
        for attempt in 1.. {
            let acquired = self.acquire_once(wish).await;
            if acquired.is_err() && self.owned.as_ref().is_some_and(|owned| !owned.is_live) {
                // What the server has is not stored yet: nothing behind it may be stored before.
                self.owned = None;
                self.shared.feed.unroute(&self.inbox, None);
            }
            match acquired {
                // Another process wants it at the same moment; one of the two is last, and has it.
                Err(Error::Store(StoreError::OwnershipLost { .. })) if attempt < RIVALS => {
                    tokio::time::sleep(RIVAL_WAIT * attempt * (1 + random_below(8))).await;
                }
                acquired => return acquired,
            }
        }
        Err(Error::NotConnected)
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
        // What happened here is stored under the old epoch.
        self.catch_up().await;
        let moment = self.shared.feed.now();
        let was_live = self.owned.as_ref().is_some_and(|owned| owned.fence.epoch == before.epoch);
        let own_turn = self.owned.as_ref().and_then(|owned| owned.turn.clone());
        let acquired = self.become_owner(&before).await?;
        let record = acquired.record;
        if !was_live {
            self.lose_ownership();
        }
        let agent_session = record.agent_session.as_ref().map(|session| session.id.clone());
        let is_shared = can.server == ServerKind::Shared;
        self.owned = Some(Owned {
            fence: record.fence(),
            agent_session: agent_session.clone(),
            is_live: false,
            incarnation: record.position.map_or(1, |position| position.incarnation),
            scanned: None,
            is_shared,
            turn: own_turn,
            foreign: None,
            replay: if record.details.replay_pending { Replay::Pending } else { Replay::Done },
            late: LateReplay::No,
            requests: BTreeMap::new(),
            described: Described::default(),
        });
        if let Some(agent_session) = &agent_session {
            self.shared.feed.unroute(&self.inbox, Some(agent_session));
            self.shared.feed.route_if_free(agent_session, &self.id, &self.inbox, moment);
        }
        let mut caught_up = self.read_stream(&client, &before, &record, moment, is_shared).await?;
        // An owner that released the session left it with its agent.
        caught_up.is_there &= before.owner.is_none() && before.details.termination_info.is_none();
        let moment = caught_up.restarted.unwrap_or(moment);
        let restored = self.restore(&client, &record, caught_up, (wish, support, ways, moment)).await?;
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

    /// Increments the epoch. If the store does not say in time whether that was done, it is looked up.
    async fn become_owner(&self, before: &SessionRecord) -> Result<Acquired, Error> {
        let shared = &self.shared;
        let acquire = Acquire::by(&shared.owner).if_epoch(before.epoch);
        match shared.in_time(shared.store.acquire(&self.id, acquire)).await {
            Err(error @ StoreError::Unavailable(_)) => {
                let now = shared.record(&self.id).await?;
                let is_ours = now.owner.as_ref() == Some(&shared.owner) && now.epoch == before.epoch + 1;
                match is_ours {
                    true => Ok(Acquired::new(now, before.owner.clone())),
                    false => Err(error.into()),
                }
            }
            acquired => Ok(acquired?),
        }
    }

    /// Reads what the server's stream has behind the session's position.
    async fn read_stream(
        &mut self,
        client: &SandboxAgentClient,
        before: &SessionRecord,
        record: &SessionRecord,
        moment: Moment,
        is_shared: bool,
    ) -> Result<CaughtUp, Error> {
        let shared = self.shared.clone();
        let open = shared.in_time(shared.store.open(&self.id)).await?;
        let own_turn = self.owned.as_ref().and_then(|owned| owned.turn.clone());
        let same_endpoint = record.endpoint.as_ref() == Some(&shared.endpoint);
        let agent_session = record.agent_session.as_ref().filter(|_| is_shared && same_endpoint);
        let (Some(agent_session), Some(position)) = (agent_session, record.position) else {
            let incarnation = if is_shared { shared.incarnation(moment.stream, None).await? } else { 1 };
            self.set_incarnation(incarnation);
            return Ok(CaughtUp {
                events: closing(&open, own_turn.as_deref(), incarnation),
                ..CaughtUp::default()
            });
        };
        // The end of a turn that is running arrives here, unless the scan finds it.
        for id in open.turns.iter().flat_map(|turn| &turn.rpc_ids) {
            shared.feed.expect_response(&text_of_rpc_id(id), &self.inbox);
        }
        let scan = match self.scan(client, &agent_session.id, position, &open).await {
            Ok(scan) => scan,
            Err(error) => {
                // A server that allows no second reader.
                tracing::debug!(%error, session = self.id, "the server's stream cannot be read again");
                let incarnation = shared.incarnation(moment.stream, None).await?;
                self.set_incarnation(incarnation);
                let gap = Entry::gap(Some(position.offset + 1), None);
                let mut events = vec![gap.into_event(incarnation, SystemTime::now().into(), None)];
                events.extend(closing(&open, own_turn.as_deref(), incarnation));
                return Ok(CaughtUp { events, ..CaughtUp::default() });
            }
        };
        let incarnation = match scan.is_other {
            true => shared.raise_incarnation(moment.stream, position.incarnation).await?,
            false => {
                shared.incarnation(moment.stream, scan.is_proven.then_some(position.incarnation)).await?
            }
        };
        self.set_incarnation(incarnation);
        let restarted = scan.is_other.then(|| shared.feed.restart_found(moment));
        let is_ambiguous = self.is_restoring().await?;
        let was_seen = before.owner.is_none() || before.owner.as_ref() == Some(&shared.owner);
        let mut caught_up =
            sort(scan, &open, position, (incarnation, own_turn.as_deref()), (is_ambiguous, was_seen));
        caught_up.restarted = restarted;
        self.settle_requests(&open, &mut caught_up, incarnation);
        if let (Some(owned), Some(end)) = (&mut self.owned, caught_up.end) {
            owned.scanned = Some((moment, end.offset));
        }
        Ok(caught_up)
    }

    fn set_incarnation(&mut self, incarnation: u64) {
        if let Some(owned) = &mut self.owned {
            owned.incarnation = incarnation;
        }
    }

    /// Whether a process ended while the agent loaded the session: nothing tells what it replayed from what is new.
    async fn is_restoring(&self) -> Result<bool, Error> {
        let kinds = [StoredEventKind::Restored, StoredEventKind::from(RESTORING)];
        let query = EventQuery::of(&self.id).newest_first().kinds(kinds).limit(1);
        let page = self.shared.events(&query).await?;
        Ok(page.events.first().is_some_and(|event| event.kind.as_str() == RESTORING))
    }

    async fn scan(
        &self,
        client: &SandboxAgentClient,
        agent_session: &str,
        position: StreamPosition,
        open: &OpenEvents,
    ) -> Result<Scan, Error> {
        let behind = Position::new(0, position.offset, position.fingerprint.0);
        // Open agent requests are received again from the beginning of their turn.
        let begun = open.turns.iter().filter_map(|turn| {
            serde_json::from_value::<Position>(turn.prompt.payload.get("at")?.clone()).ok()
        });
        let begun = begun.min_by_key(|begun| begun.offset).unwrap_or_else(Position::beginning);
        let from = if !open.requests.is_empty() && begun.offset < behind.offset { begun } else { behind };
        let ids = open.turns.iter().flat_map(|turn| &turn.rpc_ids);
        let responses = ids.map(|id| text_of_rpc_id(id)).collect();
        let wanted = Wanted { agent_session: agent_session.to_owned(), behind, from, responses };
        Scan::run(client, &wanted).await
    }

    /// Sends stored answers again, and closes requests that the agent does not wait for any more. What is left is
    /// offered again.
    fn settle_requests(&mut self, open: &OpenEvents, caught_up: &mut CaughtUp, incarnation: u64) {
        let is_running = caught_up.running.is_some();
        for stored in &open.requests {
            let Some(rpc_id) = stored.request.rpc_id.clone() else { continue };
            let id = text_of_rpc_id(&rpc_id);
            let is_asked = is_running && caught_up.requests.contains(&id);
            let reason = match &stored.answer {
                Some(answer) if is_asked => {
                    caught_up.requests.retain(|asked| *asked != id);
                    // The agent takes the first answer, if it got one before.
                    if let (Some(reader), Some(result)) =
                        (&mut caught_up.reader, answer.payload.get("result"))
                    {
                        reader.respond(&id, result);
                    }
                    "delivered"
                }
                None if is_asked => continue,
                Some(_) => "delivered",
                None => "expired",
            };
            let closed = Entry::own(StoredEventKind::RequestClosed, json!({ "reason": reason }));
            let turn = stored.request.turn_id.as_deref();
            let now = SystemTime::now().into();
            caught_up.events.push(closed.about(Some(rpc_id)).into_event(incarnation, now, turn));
        }
        if !is_running {
            caught_up.requests.clear();
        }
        if let Some(owned) = &mut self.owned {
            owned.requests = caught_up.requests.iter().map(|id| (rpc_id_of(id), false)).collect();
        }
    }

    /// Stores what was read, and has the agent continue the session.
    async fn restore(
        &mut self,
        client: &SandboxAgentClient,
        record: &SessionRecord,
        mut caught_up: CaughtUp,
        (wish, support, ways, moment): (&Wish, Option<ResumeSupport>, Ways, Moment),
    ) -> Result<Restored, Error> {
        let attaches = caught_up.running.is_some() || caught_up.is_there;
        let loads = ways.load && !attaches && record.agent_session.is_some();
        if let Some(owned) = &self.owned
            && owned.is_shared
            && loads
        {
            let marker = Entry::own(StoredEventKind::from(RESTORING), json!({}));
            caught_up.events.push(marker.into_event(owned.incarnation, SystemTime::now().into(), None));
        }
        self.store_read(&mut caught_up).await?;
        let mut is_ambiguous = false;
        let reopened = match (&record.agent_session, attaches) {
            (Some(session), true) => {
                Reopened { session: client.session(&session.id), by: RestoredBy::Attach }
            }
            _ => {
                // A server that restarted, and an agent that ended, have no turn.
                let may_run = caught_up.restarted.is_none()
                    && record.details.termination_info.is_none()
                    && self.may_have_a_turn().await?;
                let reopened = self.reopen(client, record, wish, support, ways, may_run).await?;
                is_ambiguous = may_run && reopened.by == RestoredBy::Load;
                reopened
            }
        };
        client.inner().connection().await?.barrier().await;
        let restored = self.compare(&reopened).await?;
        self.bind(client, record, &reopened, &restored, (support, ways, moment, is_ambiguous), caught_up)
            .await?;
        Ok(restored)
    }

    async fn store_read(&mut self, caught_up: &mut CaughtUp) -> Result<(), Error> {
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        let mut append = Append::to(&self.id).fence(owned.fence);
        append.events = std::mem::take(&mut caught_up.events);
        append.patch.caught_up = true;
        append.patch.endpoint = Some(self.shared.endpoint.clone());
        append.position = caught_up.end.map(|place| self.shared.position(owned.incarnation, place));
        self.shared.in_time(self.shared.store.append(append)).await?;
        Ok(())
    }

    /// Whether the last turn may still run: it has no end, or ended for its program before the agent responded.
    async fn may_have_a_turn(&self) -> Result<bool, Error> {
        let kinds = [StoredEventKind::Prompt, StoredEventKind::TurnEnded];
        let query = EventQuery::of(&self.id).newest_first().kinds(kinds).limit(1);
        let page = self.shared.events(&query).await?;
        let Some(last) = page.events.first() else { return Ok(false) };
        Ok(last.turn_end().is_none_or(|end| {
            let is_answered = end.stop_reason.is_some() || end.termination_info.is_some();
            !is_answered && end.error.is_some_and(|error| error.maybe_executed && error.rpc.is_none())
        }))
    }

    /// Has the agent resume or load its session, or create another one.
    async fn reopen(
        &mut self,
        client: &SandboxAgentClient,
        record: &SessionRecord,
        wish: &Wish,
        support: Option<ResumeSupport>,
        ways: Ways,
        may_run: bool,
    ) -> Result<Reopened, Error> {
        let new = wish.new.as_deref().cloned();
        let new = new.unwrap_or_else(|| NewSession::from_kept(&record.details.init));
        let connected = client.capabilities().map(|can| can.agent.clone());
        let new = if connected.as_ref() == Some(&record.agent) { new } else { new.agent(&record.agent) };
        if let Some(session) = &record.agent_session
            && let Some(reopened) = resume_or_load(client, &session.id, &new, ways, may_run).await?
        {
            return Ok(reopened);
        }
        if let Some(support) = support.filter(|_| !self.shared.options.resume_by_replay) {
            // The agent does not have it any more, and transcript replay is not wanted.
            record.status.after(StatusEvent::Resume(ResumeSupport { resume_data: false, ..support }))?;
        }
        let _creating = self.shared.feed.creating();
        let moment = self.shared.feed.now();
        let session = client.new_session(new).await?;
        self.shared.feed.route(session.id(), &self.id, &self.inbox, moment);
        self.shared.feed.claim_early(session.id(), &self.inbox);
        Ok(Reopened { session, by: RestoredBy::Replay })
    }

    /// Says which stored prompts the agent no longer knows, by what it replayed.
    async fn compare(&mut self, reopened: &Reopened) -> Result<Restored, Error> {
        let mut restored = Restored { by: reopened.by, unknown_prompts: None };
        let history = reopened.session.history();
        if matches!(reopened.by, RestoredBy::Load | RestoredBy::Resume) && !history.is_empty() {
            let known = crate::sessions::compare::user_messages(history);
            let unknown = self.shared.unknown_prompts(&self.id, &known).await?;
            restored.unknown_prompts = Some(unknown);
            if unknown > 0 {
                tracing::warn!(
                    session = self.id,
                    unknown,
                    "the agent no longer knows all prompts of the session"
                );
            }
        }
        Ok(restored)
    }

    /// Stores how the session was restored, and follows it from now on.
    #[allow(clippy::too_many_arguments, reason = "each is another part of one step")]
    async fn bind(
        &mut self,
        client: &SandboxAgentClient,
        record: &SessionRecord,
        reopened: &Reopened,
        restored: &Restored,
        (support, ways, moment, is_ambiguous): (Option<ResumeSupport>, Ways, Moment, bool),
        mut caught_up: CaughtUp,
    ) -> Result<(), Error> {
        let agent_session = reopened.session.id().to_owned();
        if let (Some((turn, is_heard)), Some(owned)) = (caught_up.running.take(), &mut self.owned) {
            let claim = client.claim_requests(&agent_session);
            owned.foreign = Some(ForeignTurn { turn, is_heard, _claim: claim, _reader: None });
        }
        // What the agent replayed lies before this place.
        let reached = self.shared.feed.place();
        self.catch_up().await;
        let Some(owned) = &self.owned else {
            return Err(StoreError::OwnershipLost { id: self.id.clone(), epoch: record.epoch }.into());
        };
        let is_suspended = record.status == SessionStatus::Suspended;
        let mut patch = RecordPatch {
            status: support.filter(|_| is_suspended).map(StatusEvent::Resume),
            agent_session: Change::Set(AgentSession {
                id: agent_session.clone(),
                incarnation: owned.incarnation,
            }),
            supports_resume: Some(ways.resume || ways.load),
            replay_pending: (reopened.by == RestoredBy::Replay).then_some(true),
            termination_info: Change::Clear,
            ..RecordPatch::default()
        };
        describe(reopened.session.raw(), &mut patch);
        let mut payload = json!({"by": reopened.by.as_str(), "agentSessionId": agent_session});
        if let Some(unknown) = restored.unknown_prompts {
            payload["unknownPrompts"] = unknown.into();
        }
        let event = Entry::own(StoredEventKind::Restored, payload);
        let mut append = Append::to(&self.id).fence(owned.fence).patch(patch);
        if let (Some(end), Some(reached), true) = (caught_up.end, reached, is_ambiguous)
            && reached.offset > end.offset
        {
            // Nothing tells what a running turn reported meanwhile from what the agent replayed.
            let gap = Entry::gap(Some(end.offset + 1), Some(reached.offset));
            append.events.push(gap.into_event(owned.incarnation, SystemTime::now().into(), None));
        }
        append.events.push(event.into_event(owned.incarnation, SystemTime::now().into(), None));
        append.position =
            reached.filter(|_| owned.is_shared).map(|place| self.shared.position(owned.incarnation, place));
        if let Err(error) = self.shared.in_time(self.shared.store.append(append)).await {
            if reopened.by == RestoredBy::Replay {
                // Nothing holds it, so it should not run on. The caller gets the first error.
                let _ = client.terminate_session(&agent_session).await;
            }
            return Err(error.into());
        }
        self.shared.feed.unroute(&self.inbox, Some(&agent_session));
        let is_live = self.shared.feed.route(&agent_session, &self.id, &self.inbox, moment);
        let from = record.agent_session.as_ref().map(|session| session.id.as_str());
        self.shared.move_followers(&self.id, from, &agent_session);
        if let Some(owned) = &mut self.owned {
            owned.is_live = is_live && reopened.session.termination().is_none();
            if reopened.by == RestoredBy::Replay {
                owned.replay = Replay::Pending;
            }
            let is_silent = reopened.session.history().is_empty() && record.last_index > 0;
            owned.late = match reopened.by == RestoredBy::Load && is_silent {
                true => LateReplay::Possible,
                false => LateReplay::No,
            };
            owned.agent_session = Some(agent_session.clone());
        }
        self.is_active_now();
        self.show();
        if let Some(mut reader) = caught_up.reader {
            for request in &caught_up.requests {
                reader.offer(request).await;
            }
            let owned = self.owned.as_mut();
            if let Some(foreign) = owned.and_then(|owned| owned.foreign.as_mut()) {
                // The requests are answered through it.
                foreign._reader = Some(Mutex::new(reader));
            }
        }
        Ok(())
    }
}

/// Has the agent resume or load its session; `None` if it can do neither, or does not have it.
async fn resume_or_load(
    client: &SandboxAgentClient,
    agent_session: &str,
    new: &NewSession,
    ways: Ways,
    may_run: bool,
) -> Result<Option<Reopened>, Error> {
    let is_refusal = |error: &Error| matches!(error, Error::Unsupported { .. }) || is_unknown_session(error);
    let others = if may_run { Others::MayHaveATurn } else { Others::HaveNoTurn };
    if ways.resume {
        match client.resume_in(agent_session.to_owned(), new.clone(), others).await {
            // Where the agent cannot resume, the session was loaded, or it replayed its history all the same.
            Ok(session) if !session.history().is_empty() => {
                return Ok(Some(Reopened { session, by: RestoredBy::Load }));
            }
            Ok(session) => return Ok(Some(Reopened { session, by: RestoredBy::Resume })),
            Err(error) if is_refusal(&error) => tracing::debug!(%error, "the session cannot be resumed"),
            Err(error) => return Err(error),
        }
    }
    if ways.load {
        match client.load_session(agent_session, OpenSession::like(new.clone())).await {
            Ok(session) => return Ok(Some(Reopened { session, by: RestoredBy::Load })),
            Err(error) if is_refusal(&error) => tracing::debug!(%error, "the session cannot be loaded"),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Sorts what was read: what is stored, which turns ended and which one runs.
fn sort(
    scan: Scan,
    open: &OpenEvents,
    position: StreamPosition,
    (incarnation, own_turn): (u64, Option<&str>),
    (is_ambiguous, was_seen): (bool, bool),
) -> CaughtUp {
    let now = SystemTime::now().into();
    let Scan { is_proven, is_other, entries, responses, has_gaps, end, requests, reader } = scan;
    let is_same = !is_other;
    let entries = if is_same { entries } else { Vec::new() };
    let has_ended = entries.iter().any(|entry| entry.kind == StoredEventKind::Ended);
    let is_heard = entries.iter().any(|entry| entry.kind == StoredEventKind::Update);
    // The turn whose reports these are.
    let mut turns = open.turns.iter().filter(|turn| turn.prompt.turn_id.as_deref() != own_turn);
    let turn = turns.next_back();
    let turn_id = turn.and_then(|turn| turn.prompt.turn_id.clone());
    let ids: Vec<String> = turn.iter().flat_map(|turn| &turn.rpc_ids).map(|id| text_of_rpc_id(id)).collect();
    let response = ids.iter().rev().find_map(|id| responses.get(id)).filter(|_| is_same);
    let mut events = Vec::new();
    if !is_same && (turn.is_some() || !was_seen) {
        events.push(Entry::gap(Some(position.offset + 1), None).into_event(
            incarnation,
            now,
            turn_id.as_deref(),
        ));
    }
    if is_ambiguous && is_same && is_heard {
        let to = end.map(|end| end.offset);
        events.push(Entry::gap(Some(position.offset + 1), to).into_event(
            incarnation,
            now,
            turn_id.as_deref(),
        ));
    }
    let cut = response.map_or(usize::MAX, |(before, _)| *before);
    let mut end_of_turn = response.map(|(_, response)| ended_by(response));
    for (n, entry) in entries.into_iter().enumerate() {
        if n == cut {
            events.extend(end_event(&turn_id, end_of_turn.take(), incarnation));
        }
        if is_ambiguous && entry.kind == StoredEventKind::Update {
            continue;
        }
        let turn = turn_id.as_deref().filter(|_| n < cut);
        events.push(entry.into_event(incarnation, now, turn));
    }
    events.extend(end_event(&turn_id, end_of_turn, incarnation));
    let running = match (turn, response) {
        (None, _) | (_, Some(_)) => None,
        (Some(turn), None) if is_same && !has_gaps && !has_ended => {
            let open = OpenTurn {
                turn_id: turn_id.clone().unwrap_or_default(),
                prompt: turn.prompt.payload["prompt"].clone(),
                since: turn.prompt.recorded_at,
            };
            Some((open, is_heard))
        }
        (Some(_), None) => {
            events.extend(end_event(&turn_id, Some(interrupted()), incarnation));
            None
        }
    };
    // Earlier turns that have no end never will have one.
    for turn in turns {
        events.extend(end_event(&turn.prompt.turn_id, Some(interrupted()), incarnation));
    }
    let is_there = is_same && is_proven && !has_ended;
    CaughtUp { events, end, is_there, restarted: None, running, requests, reader: Some(reader) }
}

fn end_event(turn_id: &Option<String>, end: Option<TurnEnd>, incarnation: u64) -> Option<NewEvent> {
    let entry = turn_end_entry(&end?);
    Some(entry.into_event(incarnation, SystemTime::now().into(), turn_id.as_deref()))
}

/// Ends what is open of a session whose agent is gone.
fn closing(open: &OpenEvents, own_turn: Option<&str>, incarnation: u64) -> Vec<NewEvent> {
    let now = SystemTime::now().into();
    let turns = open.turns.iter().filter(|turn| turn.prompt.turn_id.as_deref() != own_turn);
    let ends = turns.filter_map(|turn| end_event(&turn.prompt.turn_id, Some(interrupted()), incarnation));
    let requests = open.requests.iter().map(|stored| {
        let closed = Entry::own(StoredEventKind::RequestClosed, json!({"reason": "expired"}));
        closed.about(stored.request.rpc_id.clone()).into_event(
            incarnation,
            now,
            stored.request.turn_id.as_deref(),
        )
    });
    requests.chain(ends).collect()
}

/// What a response that opened a session says about it.
pub(super) fn describe(response: &Value, patch: &mut RecordPatch) {
    let member = |name: &str| response.get(name).filter(|value| !value.is_null()).cloned();
    patch.config_options = member("configOptions");
    patch.modes = member("modes");
    patch.models = member("models");
}

/// A server reports what the agent of the connection can do; what another one can do shows when it is tried.
fn ways(can: &Capabilities, agent: &str) -> Ways {
    let is_unknown = can.agent != agent;
    Ways { resume: can.resume_session || is_unknown, load: can.load_session || is_unknown }
}

/// Whether an agent may be able to continue sessions.
pub(super) fn can_reopen(can: &Capabilities, agent: &str) -> bool {
    let Ways { resume, load } = ways(can, agent);
    resume || load
}
