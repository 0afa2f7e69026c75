//! Restoring a session in the agent.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::acquire::{Ways, Wish};
use super::catch_up::CaughtUp;
use super::{ForeignLink, Replay, Tracker};
use crate::client::opening::{OpenedBy, Others};
use crate::error::is_unknown_session;
use crate::event::{Restored, RestoredBy};
use crate::sessions::compare::Unknown;
use crate::sessions::entry::Entry;
use crate::sessions::feed::Moment;
use crate::sessions::remote::{Followed, RemoteTurn};
use crate::sessions::store::{
    AgentSession, Append, Change, RecordPatch, SessionRecord, StoreError, StoredEvent, StoredEventKind,
    StreamPosition,
};
use crate::sessions::{ResumeSupport, SessionStatus, StatusEvent};
use crate::{Error, NewSession, OpenSession, SandboxAgentClient, Session};

/// A session that is being restored.
pub(super) struct Restoring<'a> {
    pub(super) record: &'a SessionRecord,
    pub(super) wish: &'a Wish,
    /// How a suspended session is resumed.
    pub(super) support: Option<ResumeSupport>,
    pub(super) ways: Ways,
    pub(super) moment: Moment,
    /// The endpoint of the present connection.
    pub(super) endpoint: &'a str,
}

impl Restoring<'_> {
    /// Whether the session was on another endpoint before.
    fn is_moved(&self) -> bool {
        self.record.endpoint.as_deref() != Some(self.endpoint)
    }

    /// What makes a suspended session active.
    fn status_event(&self) -> Option<StatusEvent> {
        let is_suspended = self.record.status == SessionStatus::Suspended;
        self.support.filter(|_| is_suspended).map(StatusEvent::Resume)
    }
}

/// A session as the agent has opened it.
struct Reopened {
    session: Session,
    by: RestoredBy,
}

impl Tracker {
    /// Stores the scanned events, then restores the session in the agent.
    pub(super) async fn restore(
        &mut self,
        client: &SandboxAgentClient,
        restoring: &Restoring<'_>,
        mut caught_up: CaughtUp,
    ) -> Result<Restored, Error> {
        let (record, ways) = (restoring.record, restoring.ways);
        let attaches = caught_up.running.is_some() || caught_up.is_there;
        let loads = ways.load && !attaches && record.agent_session.is_some();
        if let Some(owned) = &self.owned
            && owned.is_numbered
            && loads
        {
            let marker = Entry::own(StoredEventKind::Restoring, json!({}));
            caught_up.events.push(marker.into_event(owned.incarnation, None));
        }
        if self.store_read(&mut caught_up).await? {
            // The last turn ended with a result after which the session does not continue.
            let (action, status) = (restoring.wish.action, SessionStatus::Error);
            return Err(Error::NotAllowed { action, status });
        }
        if caught_up.is_remote && attaches {
            return self.follow_remote(client, restoring, caught_up).await;
        }
        let mut unended = None;
        let reopened = match (&record.agent_session, attaches) {
            (Some(session), true) => {
                Reopened { session: client.session(&session.id), by: RestoredBy::Attach }
            }
            _ => {
                // A restarted server, another agent process and an ended agent have no running turn.
                let is_same_process = caught_up.restarted.is_none()
                    && !restoring.is_moved()
                    && record.details.termination_info.is_none();
                if is_same_process {
                    unended = self.unended_turn().await?;
                }
                self.reopen(client, restoring, unended.is_some()).await?
            }
        };
        client.inner().connection().await?.barrier().await;
        let restored = self.compare(&reopened).await?;
        self.bind(client, restoring, (&reopened, &restored), unended.as_deref(), caught_up).await?;
        Ok(restored)
    }

    /// The id of the last turn if it may still run: it has no end, or ended for its program before the agent responded.
    async fn unended_turn(&self) -> Result<Option<String>, Error> {
        let kinds = [StoredEventKind::Prompt, StoredEventKind::TurnEnded];
        let last = self.shared.newest(&self.id, kinds).await?;
        let may_run = |last: &StoredEvent| {
            last.turn_end().is_none_or(|end| {
                let is_answered = end.stop_reason.is_some() || end.termination_info.is_some();
                !is_answered && end.error.is_some_and(|error| error.maybe_executed && error.rpc.is_none())
            })
        };
        Ok(last.filter(may_run).map(|last| last.turn_id.unwrap_or_default()))
    }

    /// Has the agent resume or load its session, or create another one.
    async fn reopen(
        &mut self,
        client: &SandboxAgentClient,
        restoring: &Restoring<'_>,
        may_run: bool,
    ) -> Result<Reopened, Error> {
        let Restoring { record, wish, support, ways, moment, .. } = *restoring;
        let new = wish.new.as_deref().cloned();
        let new = new.unwrap_or_else(|| NewSession::from_stored(&record.details.init));
        let connected = client.capabilities().map(|can| can.agent.clone());
        let new = if connected.as_ref() == Some(&record.agent) { new } else { new.agent(&record.agent) };
        // A restarted server may have given the id to another session.
        let bound = record.agent_session.as_ref();
        let bound = bound.filter(|session| !self.shared.feed.is_of_another(&session.id, &self.inbox));
        let bound = match bound {
            Some(session) if self.is_taken(session, restoring.endpoint).await? => None,
            bound => bound,
        };
        if let Some(session) = bound {
            self.shared.feed.route_if_free(&session.id, &self.inbox, moment);
        }
        if let Some(session) = bound
            && let Some(reopened) = resume_or_load(client, &session.id, &new, ways, may_run).await?
        {
            return Ok(reopened);
        }
        if let Some(support) = support.filter(|_| !self.shared.options.resume_by_replay) {
            // The agent no longer has it, and transcript replay is off.
            record.status.after(StatusEvent::Resume(ResumeSupport { resume_data: false, ..support }))?;
        }
        let _creating = self.shared.feed.creating();
        let moment = self.shared.feed.now();
        let session = client.new_session(new).await?;
        self.shared.feed.route(session.id(), &self.inbox, moment);
        self.shared.feed.claim_early(session.id(), &self.inbox);
        Ok(Reopened { session, by: RestoredBy::Replay })
    }

    /// Whether another stored session is bound to the agent's session since the server restarted.
    async fn is_taken(&self, session: &AgentSession, endpoint: &str) -> Result<bool, Error> {
        let now = self.owned.as_ref().map_or(0, |owned| owned.incarnation);
        let is_restarted = now > session.incarnation;
        Ok(is_restarted && self.shared.is_bound_since(session, endpoint, (&self.id, now)).await?)
    }

    /// Determines which stored prompts and answers the agent has forgotten, from the history that it replayed.
    async fn compare(&mut self, reopened: &Reopened) -> Result<Restored, Error> {
        let mut restored = Restored { by: reopened.by, unknown_prompts: None, unknown_answers: None };
        let history = reopened.session.history();
        let replayed = crate::sessions::compare::turns(history);
        // An agent that loads a session replays all of it. One that has other parts of it, and no prompts, does not
        // replay prompts.
        let is_comparable = match reopened.by {
            RestoredBy::Load => history.is_empty() || !replayed.is_empty(),
            RestoredBy::Resume => !replayed.is_empty(),
            RestoredBy::Attach | RestoredBy::Replay => false,
        };
        if is_comparable {
            let Unknown { prompts, answers } = self.shared.unknown(&self.id, &replayed).await?;
            (restored.unknown_prompts, restored.unknown_answers) = (Some(prompts), answers);
            if prompts > 0 || answers > Some(0) {
                tracing::warn!(
                    session = self.id,
                    prompts,
                    answers,
                    "the agent no longer knows all prompts and answers of the session"
                );
            }
        }
        Ok(restored)
    }

    /// Stores how the session was restored, and follows it from now on.
    async fn bind(
        &mut self,
        client: &SandboxAgentClient,
        restoring: &Restoring<'_>,
        (reopened, restored): (&Reopened, &Restored),
        unended: Option<&str>,
        mut caught_up: CaughtUp,
    ) -> Result<(), Error> {
        let Restoring { record, ways, moment, endpoint, .. } = *restoring;
        let silence = self.shared.options.unconfirmed_timeout;
        if restoring.is_moved() {
            self.move_to(endpoint, record, moment).await?;
        }
        let agent_session = reopened.session.id().to_owned();
        if let (Some(running), Some(owned)) = (caught_up.running.take(), &mut self.owned) {
            let claim = caught_up.claim.take().unwrap_or_else(|| client.claim_requests(&agent_session));
            let link = ForeignLink::Here { _claim: claim, _reader: None };
            let prompts = std::mem::take(&mut caught_up.prompts);
            let offers = self.shared.feed.offers(&self.inbox);
            owned.foreign = Some(running.followed(prompts, link, offers, silence));
        }
        // The replayed history precedes this position.
        let reached = self.shared.feed.position();
        self.catch_up().await;
        let Some(owned) = &self.owned else {
            return Err(StoreError::OwnershipLost { id: self.id.clone(), epoch: record.epoch }.into());
        };
        let mut patch = RecordPatch {
            status: restoring.status_event(),
            agent_session: Change::Set(AgentSession {
                id: agent_session.clone(),
                incarnation: owned.incarnation,
            }),
            supports_resume: Some(ways.resume || ways.load),
            replay_pending: (reopened.by == RestoredBy::Replay).then_some(true),
            termination_info: Change::Clear,
            endpoint: Some(endpoint.to_owned()),
            // From here on this process follows the session. If anything failed before, what it reads for other sessions
            // says nothing about this one.
            caught_up: Some(true),
            ..RecordPatch::default()
        };
        describe(reopened.session.raw(), &mut patch);
        let mut payload = json!({"by": reopened.by.as_str(), "agentSessionId": agent_session});
        if let Some(unknown) = restored.unknown_prompts {
            payload["unknownPrompts"] = unknown.into();
        }
        if let Some(unknown) = restored.unknown_answers {
            payload["unknownAnswers"] = unknown.into();
        }
        let event = Entry::own(StoredEventKind::Restored, payload);
        let (is_numbered, incarnation) = (owned.is_numbered, owned.incarnation);
        let mut append = Append::to(&self.id).fence(owned.fence).patch(patch);
        let gap = match (reopened.by, caught_up.end, reached) {
            // Reports of a running turn cannot be distinguished from the replayed history.
            (RestoredBy::Load, Some(end), Some(reached)) if reached.offset > end.offset => {
                Some(Entry::gap(Some(end.offset + 1), Some(reached.offset)))
            }
            // Reports of the running turn in the replaced session are no longer observed.
            (RestoredBy::Replay, Some(end), _) => Some(Entry::gap(Some(end.offset + 1), None)),
            _ => None,
        };
        if let (Some(gap), Some(_)) = (gap, unended) {
            append.events.push(gap.into_event(owned.incarnation, unended));
        }
        append.events.push(event.into_event(owned.incarnation, None));
        append.position = match reached {
            _ if !is_numbered => None,
            Some(reached) => Some(self.shared.position(incarnation, reached)),
            // The position on the previous endpoint has no meaning in the stream of this one.
            None => restoring.is_moved().then(|| StreamPosition::beginning(incarnation)),
        };
        if let Err(error) = self.shared.append(append).await {
            if reopened.by == RestoredBy::Replay {
                // No session refers to it, so it should not keep running. The caller receives the first error.
                let _ = client.terminate_session(&agent_session).await;
            }
            return Err(error.into());
        }
        self.shared.feed.set_accounted(&self.inbox);
        self.shared.feed.unroute(&self.inbox, Some(&agent_session));
        let is_live = self.shared.feed.route(&agent_session, &self.inbox, moment);
        let from = record.agent_session.as_ref().map(|session| session.id.as_str());
        self.shared.move_followers(&self.id, from, &agent_session);
        if let Some(owned) = &mut self.owned {
            owned.is_live = is_live && reopened.session.termination().is_none();
            if reopened.by == RestoredBy::Replay {
                owned.replay = Replay::Pending;
            }
            owned.agent_session = Some(agent_session.clone());
            owned.is_followed = true;
        }
        self.is_active_now();
        self.show();
        self.shared.feed.end_claim(&self.inbox);
        let foreign = self.owned.as_mut().and_then(|owned| owned.foreign.as_mut());
        // The turn may have ended meanwhile.
        if let (Some(foreign), Some(mut reader)) = (foreign, caught_up.reader) {
            for request in &caught_up.offers {
                self.shared.feed.offer(&agent_session, request, &foreign.turn.turn_id, &self.inbox);
                reader.offer(request).await;
            }
            if let ForeignLink::Here { _reader, .. } = &mut foreign.link {
                // Responses to the requests are sent through it.
                *_reader = Some(Mutex::new(reader));
            }
        }
        Ok(())
    }

    /// The session is on the endpoint of the present connection from now on: its stream is another incarnation.
    async fn move_to(&mut self, endpoint: &str, record: &SessionRecord, moment: Moment) -> Result<(), Error> {
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        let mut incarnation = 1;
        if owned.is_numbered {
            let after = record.position.map_or(1, |position| position.incarnation + 1);
            // Two processes may have received the same number at the same time. This session needs a different one.
            incarnation = self.shared.assumed_incarnation(moment.stream, endpoint).await?.max(after);
        }
        if let Some(owned) = &mut self.owned {
            (owned.endpoint, owned.incarnation) = (endpoint.to_owned(), incarnation);
        }
        Ok(())
    }

    /// Follows a turn that is running on the endpoint of another process. The session moves to the endpoint of this
    /// process when it has ended.
    async fn follow_remote(
        &mut self,
        client: &SandboxAgentClient,
        restoring: &Restoring<'_>,
        mut caught_up: CaughtUp,
    ) -> Result<Restored, Error> {
        let record = restoring.record;
        let restored = Restored { by: RestoredBy::Attach, unknown_prompts: None, unknown_answers: None };
        let (Some(session), Some(running), Some(reader), Some(owned)) =
            (&record.agent_session, caught_up.running.take(), caught_up.reader.take(), &mut self.owned)
        else {
            return Err(Error::NotConnected);
        };
        let payload = json!({"by": restored.by.as_str(), "agentSessionId": session.id});
        let event = Entry::own(StoredEventKind::Restored, payload);
        let event = event.into_event(owned.incarnation, None);
        let mut append = Append::to(&self.id).fence(owned.fence).events([event]);
        (append.patch.status, append.patch.caught_up) = (restoring.status_event(), Some(true));
        self.shared.append(append).await?;
        self.shared.feed.set_accounted(&self.inbox);
        // Agent requests of the turn are offered under its id.
        self.shared.move_followers(&self.id, None, &session.id);
        let followed = Followed {
            id: self.id.clone(),
            agent_session: session.id.clone(),
            turn: running.turn.turn_id.clone(),
            prompts: caught_up.prompts.clone(),
            requests: caught_up.requests,
            inbox: Arc::clone(&self.inbox),
            reader,
        };
        let link = ForeignLink::Remote(RemoteTurn::follow(client, &self.shared, followed));
        let offers = self.shared.feed.offers(&self.inbox);
        owned.is_followed = true;
        let silence = self.shared.options.unconfirmed_timeout;
        owned.foreign = Some(running.followed(caught_up.prompts, link, offers, silence));
        self.is_active_now();
        self.show();
        Ok(restored)
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
            // Some agents replay the history even on a resume.
            Ok((session, by)) if by == OpenedBy::Load || !session.history().is_empty() => {
                return Ok(Some(Reopened { session, by: RestoredBy::Load }));
            }
            Ok((session, _)) => return Ok(Some(Reopened { session, by: RestoredBy::Resume })),
            Err(error) if is_refusal(&error) => {
                tracing::debug!(error = %crate::convert::text::OneLine(&error), "the session cannot be resumed")
            }
            Err(error) => return Err(error),
        }
    }
    if ways.load {
        match client.load_session(agent_session, OpenSession::like(new.clone())).await {
            Ok(session) => return Ok(Some(Reopened { session, by: RestoredBy::Load })),
            Err(error) if is_refusal(&error) => {
                tracing::debug!(error = %crate::convert::text::OneLine(&error), "the session cannot be loaded")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The settings in a response that opened a session.
pub(super) fn describe(response: &Value, patch: &mut RecordPatch) {
    let member = |name: &str| response.get(name).filter(|value| !value.is_null()).cloned();
    patch.config_options = member("configOptions");
    patch.modes = member("modes");
    patch.models = member("models");
}
