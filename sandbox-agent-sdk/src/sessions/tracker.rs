//! The owner of a stored session's state in this process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::entry::Entry;
use super::holder::Holder;
use super::inbox::{Inbox, Item};
use super::options::Durability;
use super::scan::Response;
use super::shared::{Handle, Shared};
use super::store::{
    Fence, NewEvent, RecordPatch, SessionRecord, StoreError, StoredError, StoredEventKind, TurnEnd,
};
use crate::client::WeakClient;
use crate::client::deadline::deadline_after;
use crate::client::hub::SessionHandle;
use crate::error::{Phase, Timeout};
use crate::session::Timestamp;
use crate::sessions::RetentionPolicy;
use crate::thread::ResultRules;
use crate::{Error, Event, SandboxAgentClient, Turn, TurnOutcome};

mod acquire;
mod catch_up;
mod create;
mod open_requests;
mod owned;
mod reload;
mod reopen;
mod sorting;
mod turns;
mod writing;

pub(super) use acquire::Wish;
use owned::{Described, ForeignLink, ForeignTurn, Owned, Replay, Trailing, Unconfirmed, Unfollowing};
pub(super) use sorting::abandoned;

/// The notifications and commands that a tracker handles.
pub(super) enum Command {
    /// The agent, the server or the connection is gone.
    Gone,
    /// Another stream is read, on which the session is not followed.
    Unfollow,
    /// A turn of this process ended.
    TurnEnded(Box<EndedTurn>),
    /// The response to the prompt with this JSON-RPC id arrived on the stream.
    Responded(String, Response),
    /// The stream on which a turn of another program runs has ended, or is of another incarnation.
    ForeignTurnLost,
    /// A call changed the state of the session.
    Described,
    /// An agent request has a response, which is sent after it is stored.
    Answered {
        answer: Box<Entry>,
        /// Receives whether it is stored, or `false` if the store refuses it. Dropped if this process does not own the
        /// session.
        stored: oneshot::Sender<bool>,
    },
    /// The application waits for the end of a turn, which is before this.
    TurnStored(oneshot::Sender<Result<(), StoreError>>),
    Ask(Ask),
}

/// A turn of this process that has ended.
pub(super) struct EndedTurn {
    pub(super) id: String,
    pub(super) outcome: Result<TurnOutcome, Error>,
    /// The JSON-RPC id of the prompt, if its response has not arrived on the stream yet.
    pub(super) trailing: Option<String>,
    pub(super) holder: Option<Arc<Holder>>,
}

/// A command for a tracker, which runs alone in its session.
pub(super) type Ask = Box<dyn for<'a> FnOnce(&'a mut Tracker) -> BoxFuture<'a, ()> + Send>;

/// The outcome of starting a prompt.
pub(super) enum Begun {
    Turn(Box<Turn>),
    /// A turn of another process is running.
    Busy,
}

/// The state that handles of a session see.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    /// The agent's session, while the agent has it.
    pub(super) agent_session: Option<String>,
    /// The fence of this process.
    pub(super) fence: Option<Fence>,
    /// The incarnation of the server.
    pub(super) incarnation: u64,
    /// The id of the running turn.
    pub(super) turn: Option<String>,
    pub(super) last_active: Option<Timestamp>,
    /// The running turn of another process.
    pub(super) open_turn: Option<OpenTurn>,
}

/// A turn that another process started and whose end is not known yet.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpenTurn {
    /// The id of the turn. Its stored events contain the same id.
    pub turn_id: String,
    /// The prompt, as stored.
    pub prompt: Value,
    /// When the prompt was stored.
    pub since: Timestamp,
}

/// One task per session: everything that changes the session in this process goes through its mailbox.
pub(super) struct Tracker {
    shared: Arc<Shared>,
    client: WeakClient,
    id: String,
    pub(super) inbox: Arc<Inbox<Command>>,
    view: watch::Sender<View>,
    owned: Option<Owned>,
    /// Keeps what the client knows about the agent's session.
    agent_session: Option<SessionHandle>,
    /// Events that could not be stored, and are not reported in the store yet.
    lost: u64,
    /// The stream and the offset from which on nothing counts as stored until those events are counted.
    lost_at: Option<(u64, u64)>,
    /// The ends of turns and agent requests that could not be stored. The next append contains them.
    unstored_ends: Vec<NewEvent>,
    /// The responses to agent requests that are not stored yet. The next append contains them.
    unstored_answers: Vec<Answer>,
    /// When to append them again.
    answers_due: Option<Instant>,
    /// Whether the last append failed because the store did not take it in time.
    is_failing: bool,
    /// Why events of the turn could not be stored.
    not_stored: Option<StoreError>,
}

/// A response to an agent request.
struct Answer {
    event: NewEvent,
    /// Receives whether it is stored. `None` if the response was sent before.
    stored: Option<oneshot::Sender<bool>>,
}

impl Answer {
    /// Reports whether it is stored.
    fn settle(self, is_stored: bool) {
        // The handler may have been dropped.
        let _ = self.stored.map(|stored| stored.send(is_stored));
    }
}

impl Tracker {
    /// Creates a tracker of a session that this process does not own yet.
    pub(super) fn new(shared: Arc<Shared>, client: WeakClient, id: &str) -> (Self, Handle) {
        let inbox = Arc::new(Inbox::new(id, shared.options.capacity, shared.options.max_bytes));
        let (view, seen) = watch::channel(View::default());
        let handle = Handle { inbox: Arc::clone(&inbox), view: seen };
        let tracker = Self {
            shared,
            client,
            id: id.to_owned(),
            inbox,
            view,
            owned: None,
            agent_session: None,
            lost: 0,
            lost_at: None,
            is_failing: false,
            unstored_ends: Vec::new(),
            unstored_answers: Vec::new(),
            answers_due: None,
            not_stored: None,
        };
        (tracker, handle)
    }

    pub(super) async fn run(mut self) {
        loop {
            let filled = self.inbox.filled();
            let is_filled = match self.wakes_at() {
                Some(at) => tokio::time::timeout_at(at, filled).await.ok(),
                None => Some(filled.await),
            };
            match is_filled {
                Some(true) => self.handle_next().await,
                Some(false) => break,
                None => {
                    self.retry_answers().await;
                    self.give_up_foreign_turn().await;
                    self.settle_unused().await;
                }
            }
            self.note_absence();
            if self.may_end() && self.inbox.close_if_empty() {
                // The next call starts another tracker.
                break;
            }
        }
        self.shared.forget_tracker(&self.id, &self.inbox);
        self.disown();
        self.show();
    }

    async fn handle_next(&mut self) {
        // An application that waits for the store does not wait for more events.
        let is_awaited = self.shared.options.durability == Durability::BeforeDelivery;
        if !is_awaited && !self.inbox.is_urgent(self.shared.options.batch) {
            self.linger().await;
        }
        let items = self.inbox.take(self.shared.options.batch);
        self.handle_all(items.into()).await;
    }

    /// The time of the next scheduled work.
    fn wakes_at(&self) -> Option<Instant> {
        let owned = self.owned.as_ref()?;
        let options = &self.shared.options;
        let unconfirmed = owned.foreign.as_ref().and_then(|foreign| foreign.unconfirmed.as_ref());
        let wakes_at = unconfirmed
            .and_then(Unconfirmed::wakes_at)
            .or_else(|| Some(owned.gone_since? + options.ended_timeout));
        wakes_at.into_iter().chain(self.answers_due).min()
    }

    /// Whether the tracker may end, because nothing more is stored of the session: this process does not own it, or
    /// the agent has not had it for long enough and the record shows that. In the second case the record still names
    /// this process as the owner.
    fn may_end(&self) -> bool {
        // No event follows the end of an agent.
        let is_accounted =
            |owned: &Owned| owned.ended_at.is_some() || owned.unfollowing == Unfollowing::Stored;
        self.lost == 0
            && match &self.owned {
                Some(owned) => !self.has_unstored() && self.is_unused() && is_accounted(owned),
                None => true,
            }
    }

    /// Whether ends or responses wait for the next append.
    fn has_unstored(&self) -> bool {
        !(self.unstored_ends.is_empty() && self.unstored_answers.is_empty())
    }

    /// Whether the agent does not have the session any more, for long enough that no details of its end are expected.
    fn is_unused(&self) -> bool {
        let gone_since = self.owned.as_ref().and_then(|owned| owned.gone_since);
        gone_since.is_some_and(|since| since.elapsed() >= self.shared.options.ended_timeout)
    }

    /// Records since when the agent has not had the session and no turn runs.
    fn note_absence(&mut self) {
        if let Some(owned) = &mut self.owned {
            let is_there = owned.is_live || owned.turn.is_some() || owned.foreign.is_some();
            owned.gone_since = (!is_there).then(|| owned.gone_since.unwrap_or_else(Instant::now));
        }
    }

    /// Stores what is left of a session that is not used, so that its tracker can end. A store that fails is tried again
    /// after the same time.
    async fn settle_unused(&mut self) {
        if !self.is_unused() {
            return;
        }
        match self.owned.as_ref().is_some_and(|owned| owned.ended_at.is_some()) {
            true if self.lost > 0 => _ = self.write(Vec::new(), RecordPatch::default(), None).await,
            true => self.store_ends().await,
            false => self.unfollow().await,
        }
        if !self.may_end()
            && let Some(owned) = &mut self.owned
        {
            owned.gone_since = Some(Instant::now());
        }
    }

    /// The response to the prompt of another program was probably missed. The agent may still run its turn, so that it is
    /// cancelled first, and the session is acquired again before it is used.
    async fn give_up_foreign_turn(&mut self) {
        let unconfirmed = self.owned.as_mut().and_then(|owned| owned.foreign.as_mut()?.unconfirmed.as_mut());
        let Some(unconfirmed) =
            unconfirmed.filter(|unconfirmed| unconfirmed.wakes_at().is_some_and(|at| at <= Instant::now()))
        else {
            return;
        };
        if std::mem::replace(&mut unconfirmed.is_cancelled, true) {
            self.foreign_turn_ended(None).await;
            self.owned.iter_mut().for_each(|owned| owned.is_live = false);
            return self.show();
        }
        let Ok(client) = self.client.upgrade() else { return };
        let limit = client.inner().options.timeouts.cancel;
        unconfirmed.until = deadline_after(limit);
        if let Err(error) = self.cancel_foreign(&client).await {
            tracing::debug!(error = %crate::convert::text::OneLine(&error), session = self.id, "the turn could not be cancelled");
        }
    }

    /// Cancels the turn of another process, within the cancel timeout.
    async fn cancel_foreign(&self, client: &SandboxAgentClient) -> Result<(), Error> {
        let limit = client.inner().options.timeouts.cancel;
        let late = || Error::Timeout(Box::new(Timeout::new(Phase::Cancel, "session/cancel", limit)));
        let Some(owned) = &self.owned else { return Ok(()) };
        let cancelling = async {
            match (owned.foreign.as_ref().and_then(ForeignTurn::remote), &owned.agent_session) {
                (Some(remote), _) => remote.cancel().await,
                (None, Some(session)) => client.session(session.clone()).cancel().await,
                (None, None) => Ok(()),
            }
        };
        tokio::time::timeout(limit, cancelling).await.unwrap_or_else(|_| Err(late()))
    }

    /// This process no longer owns the session.
    pub(super) fn disown(&mut self) {
        // The next owner reads what could not be stored from the server, where that is possible.
        if self.owned.take().is_none_or(|owned| owned.is_numbered) {
            self.lost = 0;
        }
        self.unstored_ends.clear();
        self.unstored_answers.clear();
        self.answers_due = None;
        self.shared.feed.unroute(&self.inbox, None);
        self.shared.feed.settle(self.lost_at.take());
    }

    async fn linger(&self) {
        let gathering = async {
            while !self.inbox.is_urgent(self.shared.options.batch) {
                self.inbox.more().await;
            }
        };
        let _ = tokio::time::timeout(self.shared.options.linger, gathering).await;
    }

    /// Handles everything that has arrived except commands.
    pub(super) fn catch_up(&mut self) -> BoxFuture<'_, ()> {
        let items = self.inbox.take_all_but(|command| matches!(command, Command::Ask(_)));
        Box::pin(self.handle_all(items.into()))
    }

    async fn handle_all(&mut self, mut items: VecDeque<Item<Command>>) {
        let mut entries = Vec::new();
        loop {
            match items.pop_front() {
                Some(Item::Event(entry)) => entries.push(entry),
                Some(Item::Lost(first, count)) => {
                    // The mark stands in the position of the first one, and has no key of the stream.
                    if let Some(at) = first.held_at() {
                        self.hold_lost(at);
                    }
                    let mark = Entry::own(StoredEventKind::Lost, json!({ "count": count }));
                    entries.push(Entry { stream: first.stream, turn_id: first.turn_id, ..mark });
                }
                next => {
                    if !entries.is_empty() {
                        self.store_entries(std::mem::take(&mut entries)).await;
                    }
                    match next {
                        Some(Item::Command(command)) => self.command(command).await,
                        _ => return,
                    }
                }
            }
        }
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Gone => self.gone(),
            Command::Unfollow => self.unfollow().await,
            Command::TurnEnded(ended) => self.turn_ended(*ended).await,
            Command::Responded(request, response) => {
                let left = self.owned.as_ref().filter(|owned| owned.is_remote());
                let left = left.map(|owned| owned.endpoint.clone());
                self.responded(&request, &response).await;
                if let Some(left) = left.filter(|_| self.owned.is_none()) {
                    self.end_endpoint_if_final(&left).await;
                }
            }
            Command::ForeignTurnLost => self.foreign_turn_ended(None).await,
            Command::Described => self.describe().await,
            Command::Answered { answer, stored } => self.answered(*answer, stored).await,
            Command::TurnStored(answer) => {
                // The turn may have been dropped.
                let _ = answer.send(self.not_stored.take().map_or(Ok(()), Err));
            }
            Command::Ask(ask) => ask(self).await,
        }
        self.show();
    }

    /// Ends the ownership of the session. It leaves the endpoint of another process, unless a turn is running there.
    pub(in crate::sessions) async fn leave(&mut self) -> Result<SessionRecord, Error> {
        let left = self.owned.as_ref().filter(|owned| !owned.is_remote());
        let left = left.map(|owned| owned.endpoint.clone());
        let released = self.release().await?;
        if let (Some(left), Ok(client)) = (left, self.client.upgrade()) {
            self.shared.end_left_endpoint(&client, &self.id, &left).await;
        }
        Ok(released)
    }

    /// The last turn ended with a result after which the session does not continue, unless another process owns it.
    async fn end_endpoint_if_final(&self, endpoint: &str) {
        let record = self.shared.record(&self.id).await;
        if record.is_ok_and(|record| record.status.is_terminal())
            && let Ok(client) = self.client.upgrade()
        {
            self.shared.end_left_endpoint(&client, &self.id, endpoint).await;
        }
    }

    /// The agent no longer has the session. How a turn of another program ended is determined when the session is
    /// acquired again.
    fn gone(&mut self) {
        if let Some(owned) = &mut self.owned {
            (owned.is_live, owned.foreign) = (false, None);
        }
    }

    /// Stores that this process does not follow the session any more, so that how far it reads the stream says nothing
    /// about the session.
    async fn unfollow(&mut self) {
        if self.owned.as_ref().is_none_or(|owned| owned.is_live) {
            return;
        }
        let patch = RecordPatch { caught_up: Some(false), ..RecordPatch::default() };
        let is_stored = self.write(Vec::new(), patch, None).await;
        if is_stored {
            self.shared.feed.set_accounted(&self.inbox);
        }
        if let Some(owned) = &mut self.owned {
            owned.unfollowing = if is_stored { Unfollowing::Stored } else { Unfollowing::Pending };
        }
    }

    /// Retries events that could not be stored before.
    pub(super) async fn store_pending(&mut self) {
        if self.owned.as_ref().is_some_and(|owned| owned.unfollowing == Unfollowing::Pending) {
            self.unfollow().await;
        }
        self.store_ends().await;
    }

    /// Another process acquired the session.
    pub(super) fn lose_ownership(&mut self) {
        if let Some(owned) = &self.owned {
            self.not_stored =
                Some(StoreError::OwnershipLost { id: self.id.clone(), epoch: owned.fence.epoch });
            tracing::debug!(session = self.id, "another process acquired the session");
            self.disown();
            self.show();
            self.shared.hub.publish(&Event::OwnershipLost { session_id: self.id.clone() });
        }
    }

    /// Shows the state to the handles of the session.
    pub(super) fn show(&mut self) {
        let owned = self.owned.as_ref();
        let agent_session = owned.filter(|owned| owned.is_live).and_then(|owned| owned.agent_session.clone());
        if self.view.borrow().agent_session != agent_session {
            self.agent_session = agent_session.as_deref().map(|id| self.shared.hub.name(id));
        }
        let view = View {
            agent_session,
            fence: owned.map(|owned| owned.fence),
            incarnation: owned.map_or(0, |owned| owned.incarnation),
            turn: owned.and_then(Owned::running),
            last_active: self.view.borrow().last_active,
            open_turn: owned.and_then(|owned| owned.foreign.as_ref()).map(|foreign| foreign.turn.clone()),
        };
        self.view.send_if_modified(|shown| {
            let is_new = *shown != view;
            *shown = view;
            is_new
        });
    }

    pub(super) fn is_active_now(&self) {
        self.view.send_modify(|view| view.last_active = Some(SystemTime::now().into()));
    }

    /// Ends the agent of the session if it is idle. Returns `false` if it is not idle or has already ended.
    pub(super) async fn end_idle(&mut self, policy: RetentionPolicy, now: Timestamp) -> Result<bool, Error> {
        let client = self.client.upgrade()?;
        let Some(owned) = self.owned.as_ref().filter(|owned| owned.is_live && owned.foreign.is_none()) else {
            return Ok(false);
        };
        let Some(agent_session) = owned.agent_session.clone() else { return Ok(false) };
        let is_idle = self
            .view
            .borrow()
            .last_active
            .is_none_or(|last| policy.is_agent_idle(crate::sessions::SessionStatus::Active, last, now));
        if !is_idle || client.session(&agent_session).turn_state() != crate::turns::TurnState::Idle {
            return Ok(false);
        }
        let record = self.shared.record(&self.id).await?;
        if !self.is_current(&record) {
            return Ok(false);
        }
        let result = match client.terminate_session(&agent_session).await {
            // The server ends its agents by itself, or never.
            Err(Error::Unsupported { .. }) => return Ok(false),
            result => result?,
        };
        if (result.terminated || result.already_ended)
            && let Some(owned) = &mut self.owned
        {
            owned.is_live = false;
        }
        Ok(result.terminated)
    }
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Command")
    }
}

/// The end of a turn that was interrupted: the agent is gone, or the turn did not end within the known limits.
pub(super) fn interrupted() -> TurnEnd {
    let mut end = TurnEnd::default();
    let mut error = StoredError::default();
    "the turn was interrupted: the agent has ended, or the end of the turn was not received"
        .clone_into(&mut error.message);
    error.maybe_executed = true;
    (end.error, end.executed) = (Some(error), true);
    end
}

/// How a turn ended by the response to its prompt.
pub(super) fn ended_by(response: &Response, rules: &ResultRules) -> TurnEnd {
    let outcome = match response.clone() {
        Err(error) => Err(Error::Rpc { error, status: None, executed: true }),
        Ok(result) => Ok(TurnOutcome::read(result, Vec::new())),
    };
    TurnEnd::of(&outcome, rules)
}
