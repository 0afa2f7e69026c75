//! Catching up with the server's stream after a session's position.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::open_requests::settle;
use super::sorting::{closing, sort};
use super::writing::is_suspended;
use super::{ForeignLink, ForeignTurn, OpenTurn, Tracker, Unconfirmed};
use crate::client::SessionClaim;
use crate::sessions::calls::FIRST_WAIT;
use crate::sessions::entry::{Entry, is_of_a_turn, rpc_id_of, text_of_rpc_id};
use crate::sessions::feed::{Moment, Offers};
use crate::sessions::scan::{Scan, Wanted};
use crate::sessions::store::{
    AgentSession, Append, Change, EventQuery, NewEvent, OpenEvents, OpenTurn as StoredTurn, RecordPatch,
    SessionRecord, StoredEventKind, StreamPosition,
};
use crate::stream::{StreamPosition as Position, StreamReader};
use crate::termination::EndReason;
use crate::{Error, SandboxAgentClient, ServerKind};

/// What the server's stream says about the time since the session was stored last.
#[derive(Default)]
pub(super) struct CaughtUp {
    pub(super) events: Vec<NewEvent>,
    /// The changes of the record.
    pub(super) patch: RecordPatch,
    /// The position up to which the stream was read.
    pub(super) end: Option<Position>,
    /// Whether the agent still has the session: the server is the same one, and the session has not ended.
    pub(super) is_there: bool,
    /// Whether the stream was read, and nothing shows that the server is another one.
    pub(super) is_same: bool,
    /// Whether the server is another one than that of the session's position.
    pub(super) is_other: bool,
    /// When it was found that the server has restarted, if it has.
    pub(super) restarted: Option<Moment>,
    /// The turn that is still running, as far as is known.
    pub(super) running: Option<Running>,
    /// The ids of agent requests without a response that the agent waits for.
    pub(super) requests: Vec<String>,
    /// Those of them that are offered again: this connection did not receive them, or received them before the claim.
    pub(super) offers: Vec<String>,
    /// The agent requests that this connection receives are addressed to this client since then.
    pub(super) claim: Option<SessionClaim>,
    pub(super) reader: Option<StreamReader>,
    /// The ids of the prompt of the turn that is still running.
    pub(super) prompts: Vec<String>,
    /// Whether the stream belongs to the endpoint of another process.
    pub(super) is_remote: bool,
}

/// A turn of another process whose response was not found.
pub(super) struct Running {
    pub(super) turn: OpenTurn,
    /// Whether the agent has reported anything of it that no loss follows.
    pub(super) is_heard: bool,
    /// Whether its response is certainly not among lost events.
    pub(super) is_confirmed: bool,
    /// How many of its agent requests wait for a decision.
    pub(super) undecided: usize,
}

impl Running {
    /// The turn as it is followed from now on.
    pub(super) fn followed(
        self,
        prompts: Vec<String>,
        link: ForeignLink,
        offers: Offers,
        silence: Duration,
    ) -> ForeignTurn {
        let Self { turn, is_heard, is_confirmed, undecided } = self;
        let unconfirmed = (!is_confirmed).then(|| Unconfirmed::new(silence, undecided));
        ForeignTurn { turn, prompts, is_heard, unconfirmed, link, _offers: offers }
    }
}

/// The location of the stream of a session's position.
#[derive(Debug, PartialEq)]
enum Source {
    /// It is the stream of the current endpoint.
    Present,
    /// It is that of another process, on a released server that still has its endpoint: its path.
    Other(String),
    /// It was that of another process, and the server has its endpoint no longer.
    Gone,
    /// It is on another server, or its agent is known to have ended.
    Unreadable,
}

impl Source {
    /// Whether the session is restored although its stream could not be read.
    fn may_be_skipped(&self, error: &Error) -> bool {
        match error {
            Error::Unsupported { .. } => true,
            // Only the killed process could have ended a hanging agent.
            Error::Timeout(_) => matches!(self, Self::Other(_)),
            _ => false,
        }
    }
}

impl Tracker {
    /// Reads what the stream has after the session's position: the stream of the present endpoint, or that of another
    /// process on a released server.
    pub(super) async fn read_stream(
        &mut self,
        client: &SandboxAgentClient,
        (before, record): (&SessionRecord, &SessionRecord),
        was_followed: bool,
        moment: Moment,
        endpoint: &str,
    ) -> Result<CaughtUp, Error> {
        let shared = self.shared.clone();
        let mut open = shared.in_time(shared.store.open(&self.id)).await?;
        // Their ends are known, and are stored with the events that are read.
        let ended: Vec<_> =
            self.unstored_ends.iter().filter(|end| end.kind == StoredEventKind::TurnEnded).collect();
        open.turns.retain(|turn| !ended.iter().any(|end| end.turn_id == turn.prompt.turn_id));
        let newest = self.newest_turn().await?;
        let is_open =
            |turn: &String| open.turns.iter().any(|open| open.prompt.turn_id.as_ref() == Some(turn));
        if let Some(turn) = self.owned.as_mut().and_then(|owned| owned.turn.take_if(|turn| !is_open(turn))) {
            // Another owner has stored its end. No later event belongs to this turn.
            shared.feed.forget_turn(&turn);
        }
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        let (own_turn, is_numbered) = (owned.turn.clone(), owned.is_numbered);
        let source = self.source(client, record, endpoint).await?;
        let was_seen = before.owner.is_none() || was_followed;
        let bound = record.agent_session.as_ref().zip(record.position).filter(|_| is_numbered);
        let (Some((agent_session, position)), Source::Present | Source::Other(_)) = (bound, &source) else {
            let incarnation = match source {
                Source::Present if is_numbered => {
                    shared.other_incarnation(moment.stream, endpoint, owned.incarnation).await?
                }
                _ => owned.incarnation,
            };
            // What its process had not stored cannot be read any more, unless that saw the end of the agent.
            let mut turns = open.turns.iter().filter(|turn| turn.prompt.turn_id != own_turn);
            // A session that lost its binding to another one had an agent, which may have reported more.
            let had_agent =
                record.agent_session.is_some() || !record.details.earlier_agent_sessions.is_empty();
            let may_miss = had_agent && before.details.termination_info.is_none();
            let is_gap = may_miss && (!was_seen || turns.next().is_some());
            let gap = is_gap.then(|| Entry::gap(record.position.map(|position| position.offset + 1), None));
            return Ok(self.unread(&open, gap, incarnation));
        };
        let mut claimed = None;
        if source == Source::Present && !open.turns.is_empty() {
            // The end of a turn that is running arrives here, unless the scan finds it.
            for id in open.turns.iter().flat_map(|turn| &turn.rpc_ids) {
                shared.feed.expect_response(&text_of_rpc_id(id), &self.inbox);
            }
            let turn = open.turns.last().and_then(|turn| turn.prompt.turn_id.clone());
            let turn = turn.filter(|turn| newest.as_ref() == Some(turn));
            claimed = self.claim(client, &agent_session.id, turn).await?;
        }
        let mut scan = match self.scan(client, &source, &agent_session.id, position, &open).await {
            Ok(scan) => scan,
            Err(error) if !source.may_be_skipped(&error) => return Err(error),
            Err(error) => {
                // A server that allows no second reader, or an agent of another endpoint that does not respond.
                tracing::debug!(error = %crate::convert::text::OneLine(&error), session = self.id, "the stream cannot be read");
                let incarnation = match source {
                    Source::Present => {
                        shared.other_incarnation(moment.stream, endpoint, position.incarnation).await?
                    }
                    _ => position.incarnation,
                };
                let gap = Entry::gap(Some(position.offset + 1), None);
                let unread = self.unread(&open, Some(gap), incarnation);
                return Ok(CaughtUp { is_remote: source != Source::Present, ..unread });
            }
        };
        // The agent's session belongs to an earlier incarnation than the position: another session may have its id now.
        scan.is_other |= agent_session.incarnation < position.incarnation;
        if !scan.is_proven && !scan.is_other {
            // The server has dropped the event at the position. A session that got the same id since shows a restart.
            let since = agent_session.incarnation + 1;
            let read = record.endpoint.as_deref().unwrap_or(endpoint);
            scan.is_other = shared.is_bound_since(agent_session, read, (&self.id, since)).await?;
        }
        let is_present = source == Source::Present;
        // The state of the stream at `moment` describes the server before its restart.
        let restarted = (scan.is_other && is_present).then(|| shared.feed.restart_found(moment));
        let moment = restarted.unwrap_or(moment);
        let incarnation = match (&source, scan.is_other) {
            (Source::Other(_), _) => position.incarnation,
            (_, false) if scan.is_proven => {
                shared.proven_incarnation(moment.stream, endpoint, position.incarnation).await
            }
            _ => shared.other_incarnation(moment.stream, endpoint, position.incarnation).await?,
        };
        self.set_incarnation(incarnation);
        let is_ambiguous = self.is_restoring().await?;
        let was_heard = match &newest {
            Some(turn_id) => self.was_heard(turn_id).await?,
            None => false,
        };
        let has_ended = before.details.termination_info.is_some() && is_present;
        // On the same server everything up to the position is stored, even if no event follows it.
        let stored_to = scan.is_proven.then_some(position.offset);
        let (claim, claimed_at) = claimed.unzip();
        let claimed_at = claimed_at.flatten().map_or(u64::MAX, |position| position.offset);
        let mut caught_up = sort(
            scan,
            (&open, newest.as_deref(), claimed_at),
            position,
            (incarnation, own_turn.as_deref()),
            (is_ambiguous, was_seen, was_heard, has_ended),
            &shared.options.result_rules,
        );
        (caught_up.restarted, caught_up.claim) = (restarted, claim);
        settle(&open, &mut caught_up, incarnation);
        let scanned_to = caught_up.end.map(|end| end.offset).max(stored_to);
        if let (Some(owned), Some(to), true) = (&mut self.owned, scanned_to, is_present) {
            owned.scanned = Some((moment, to));
        }
        caught_up.is_remote = !is_present;
        Ok(caught_up)
    }

    /// Addresses the agent requests of the session that this connection receives from now on to this client, as requests of
    /// this turn. Returns the position of its stream at that moment.
    async fn claim(
        &self,
        client: &SandboxAgentClient,
        agent_session: &str,
        turn: Option<String>,
    ) -> Result<Option<(SessionClaim, Option<Position>)>, Error> {
        let connection = client.inner().connection().await?;
        let (client, session) = (client.clone(), agent_session.to_owned());
        let (feed, inbox) = (Arc::clone(&self.shared.feed), Arc::clone(&self.inbox));
        let claim = move || {
            if let Some(turn) = &turn {
                feed.claim(&session, turn, &inbox);
            }
            (client.claim_requests(&session), feed.position())
        };
        Ok(connection.in_order(claim).await)
    }

    /// Nothing was read: open turns and requests end, after a gap if there is one.
    fn unread(&mut self, open: &OpenEvents, gap: Option<Entry>, incarnation: u64) -> CaughtUp {
        self.set_incarnation(incarnation);
        let own_turn = self.owned.as_ref().and_then(|owned| owned.turn.as_deref());
        let gap = gap.map(|gap| gap.into_event(incarnation, None));
        let events = gap.into_iter().chain(closing(open, own_turn, incarnation)).collect();
        CaughtUp { events, ..CaughtUp::default() }
    }

    /// Locates the stream of the session's position.
    async fn source(
        &self,
        client: &SandboxAgentClient,
        record: &SessionRecord,
        endpoint: &str,
    ) -> Result<Source, Error> {
        let Some(stored) = record.endpoint.as_deref() else { return Ok(Source::Unreadable) };
        let termination = record.details.termination_info.as_ref();
        match self.shared.path_of(stored) {
            _ if stored == endpoint => Ok(Source::Present),
            // The process saw the end of the agent; no event followed it.
            Some(_) if termination.is_some_and(|info| info.reason != EndReason::Unknown) => {
                Ok(Source::Unreadable)
            }
            Some(path) if self.shared.path_of(endpoint).is_some() => match client.has_endpoint(path).await? {
                true => Ok(Source::Other(path.to_owned())),
                false => Ok(Source::Gone),
            },
            _ => Ok(Source::Unreadable),
        }
    }

    fn set_incarnation(&mut self, incarnation: u64) {
        if let Some(owned) = &mut self.owned {
            owned.incarnation = incarnation;
        }
    }

    /// Whether a process ended while the agent loaded the session: replayed history cannot be distinguished from new
    /// events.
    async fn is_restoring(&self) -> Result<bool, Error> {
        let kinds = [StoredEventKind::Restored, StoredEventKind::Restoring];
        let newest = self.shared.newest(&self.id, kinds).await?;
        Ok(newest.is_some_and(|event| event.kind == StoredEventKind::Restoring))
    }

    /// The id of the last turn that began. An earlier one does not run any more, although its end may not be stored.
    async fn newest_turn(&self) -> Result<Option<String>, Error> {
        let newest = self.shared.newest(&self.id, [StoredEventKind::Prompt]).await?;
        Ok(newest.and_then(|prompt| prompt.turn_id))
    }

    /// Whether the newest turn has a stored gap, and no later event proves that the turn still ran.
    async fn may_miss_response(&self) -> Result<bool, Error> {
        let proofs = [StoredEventKind::Prompt, StoredEventKind::Permission, StoredEventKind::Question];
        let [prompt, permission, question] = proofs;
        let kinds = [prompt, permission, question, StoredEventKind::Gap];
        let newest = self.shared.newest(&self.id, kinds).await?;
        Ok(newest.is_some_and(|event| event.kind == StoredEventKind::Gap))
    }

    /// Whether a stored event proves that the newest turn ran, and no gap follows it.
    async fn was_heard(&self, turn_id: &str) -> Result<bool, Error> {
        let kinds = [StoredEventKind::Prompt, StoredEventKind::Update, StoredEventKind::Permission];
        let kinds = kinds.into_iter().chain([StoredEventKind::Question, StoredEventKind::Gap]);
        let query = EventQuery::of(&self.id).newest_first().kinds(kinds);
        let heard = self.shared.find_event(query, |event| match event.kind {
            _ if event.turn_id.as_deref() != Some(turn_id) => Some(false),
            StoredEventKind::Prompt | StoredEventKind::Gap => Some(false),
            _ => is_of_a_turn(&event.kind, &event.payload).then_some(true),
        });
        Ok(heard.await?.unwrap_or_default())
    }

    async fn scan(
        &self,
        client: &SandboxAgentClient,
        source: &Source,
        agent_session: &str,
        position: StreamPosition,
        open: &OpenEvents,
    ) -> Result<Scan, Error> {
        let behind = Position::new(0, position.offset, position.fingerprint.0);
        // Agent requests without a response are received again from the beginning of their turn.
        let begun: Vec<Option<Position>> = open.turns.iter().map(begun_at).collect();
        let from = if open.is_empty() { behind } else { beginning_of(&begun, position) };
        let begun = begun.last().copied().flatten();
        let ids = open.turns.iter().flat_map(|turn| &turn.rpc_ids);
        let responses = ids.map(|id| text_of_rpc_id(id)).collect();
        let agent_session = agent_session.to_owned();
        let is_echoing = client.capabilities().is_some_and(|can| can.server == ServerKind::Shared);
        let may_miss_response = !open.turns.is_empty() && self.may_miss_response().await?;
        let wanted = Wanted { agent_session, behind, from, begun, responses, may_miss_response, is_echoing };
        let deadline = self.shared.deadline();
        let mut wait = FIRST_WAIT;
        loop {
            let reader = match source {
                Source::Other(path) => client.read_endpoint(path, from),
                _ => client.read(from, None),
            };
            match Scan::run(reader, &wanted).await {
                // The stream broke: it is read again.
                Err(Error::ConnectionLost { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                scan => {
                    let mut scan = scan?;
                    let is_numbered_alike = |begun: &Position| begun.incarnation == position.incarnation;
                    let has_begun = scan.has_begun;
                    let begun = begun.filter(|begun| has_begun || is_numbered_alike(begun));
                    self.leave_open(&mut scan, begun, behind, open).await?;
                    return Ok(scan);
                }
            }
        }
    }

    /// Retains only the agent requests whose response the agent may wait for. A request before the position of the
    /// session is stored, or no process has started it. In the latter case it belongs to the latest turn if it comes
    /// after `begun`, the beginning of that turn.
    async fn leave_open(
        &self,
        scan: &mut Scan,
        begun: Option<Position>,
        behind: Position,
        open: &OpenEvents,
    ) -> Result<(), Error> {
        // Events before the latest turn belong to an earlier one, even if no event after the position is stored.
        let is_new = |at: &Option<u64>| {
            at.is_none_or(|at| at > behind.offset && begun.is_none_or(|begun| at > begun.offset))
        };
        let is_open = |id: &str| {
            let rpc_id = Some(rpc_id_of(id));
            open.requests.iter().any(|stored| stored.request.rpc_id == rpc_id)
        };
        let mut stored = None;
        if scan.requests.iter().any(|(id, at)| !is_new(at) && !is_open(id)) && begun.is_some() {
            stored = Some(self.stored_requests(open).await?);
        }
        scan.requests.retain(|(id, at)| {
            let is_of_latest = at.zip(begun).is_some_and(|(at, begun)| at > begun.offset);
            let is_unstored = || stored.as_ref().is_some_and(|stored| !stored.contains(&rpc_id_of(id)));
            is_new(at) || is_open(id) || is_of_latest && is_unstored()
        });
        Ok(())
    }

    /// The JSON-RPC ids of the stored agent requests of the latest turn.
    async fn stored_requests(&self, open: &OpenEvents) -> Result<HashSet<String>, Error> {
        let Some(turn) = open.turns.last().map(|turn| &turn.prompt) else { return Ok(HashSet::new()) };
        let kinds = [StoredEventKind::AgentRequest, StoredEventKind::Permission, StoredEventKind::Question];
        let query = EventQuery::of(&self.id).newest_first().kinds(kinds);
        let mut ids = HashSet::new();
        let visited = self.shared.find_event(query, |event| {
            if event.index < turn.index {
                return Some(());
            }
            ids.extend(event.rpc_id);
            None
        });
        visited.await?;
        Ok(ids)
    }

    /// Stores what was read. Returns whether the session has ended with it.
    pub(super) async fn store_read(&mut self, caught_up: &mut CaughtUp) -> Result<bool, Error> {
        let Some(owned) = &self.owned else { return Err(Error::NotConnected) };
        let mut append = Append::to(&self.id).fence(owned.fence);
        append.events = std::mem::take(&mut caught_up.events);
        append.events.extend(self.unstored());
        append.patch = std::mem::take(&mut caught_up.patch);
        if !owned.is_numbered {
            append.events.extend(self.lost_mark());
        }
        if let (Some(id), true) = (&owned.agent_session, caught_up.is_same) {
            // As far as is known, it is on the same stream, which may have another number in this process.
            let bound = AgentSession { id: id.clone(), incarnation: owned.incarnation };
            append.patch.agent_session = Change::Set(bound);
        }
        append.position = caught_up.end.map(|end| self.shared.position(owned.incarnation, end));
        let mut appended = self.shared.append(append.clone()).await;
        if is_suspended(&appended, &mut append) {
            appended = self.shared.append(append.clone()).await;
        }
        appended?;
        self.lost = 0;
        self.stored_all(&[]);
        self.shared.feed.settle(self.lost_at.take());
        Ok(append.patch.status.is_some())
    }
}

/// The position of the stream when the prompt of a turn was about to be sent, as its process numbered it.
pub(super) fn begun_at(turn: &StoredTurn) -> Option<Position> {
    let prompt = turn.resent.as_ref().unwrap_or(&turn.prompt);
    serde_json::from_value(prompt.payload.get("at")?.clone()).ok()
}

/// The position from which the stream has all of these turns, which began at these positions, and what is not stored. A
/// turn that was sent again after a restart began on another incarnation.
fn beginning_of(begun: &[Option<Position>], stored: StreamPosition) -> Position {
    let is_same = |begun: &Position| begun.incarnation == stored.incarnation;
    let begun: Option<Vec<_>> = begun.iter().map(|begun| begun.filter(is_same)).collect();
    let Some(first) = begun.into_iter().flatten().min_by_key(|begun| begun.offset) else {
        return Position::beginning();
    };
    match first.offset < stored.offset {
        true => Position::new(0, first.offset, first.fingerprint),
        false => Position::new(0, stored.offset, stored.fingerprint.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{Position, StreamPosition, beginning_of};
    use crate::sessions::store::Fingerprint;

    #[test]
    fn turns_are_read_from_their_beginning_or_from_that_of_the_stream() {
        let stored = StreamPosition { incarnation: 5, offset: 113, fingerprint: Fingerprint(0) };
        let at = |incarnation, offset| Some(Position::new(incarnation, offset, 7));
        let from = |begun: &[Option<Position>]| beginning_of(begun, stored).offset;
        assert_eq!(from(&[at(5, 90), at(5, 100)]), 90);
        assert_eq!(from(&[at(5, 113)]), 113);
        assert_eq!(from(&[at(4, 50)]), 0, "the prompt was sent again after a restart");
        assert_eq!(from(&[at(5, 90), at(4, 100)]), 0);
        assert_eq!(from(&[at(5, 90), at(5, 200)]), 90);
        assert_eq!(from(&[at(5, 200)]), 113, "nothing of the turn is stored yet");
        assert_eq!(from(&[None]), 0);
        assert_eq!(from(&[]), 0);
    }
}
