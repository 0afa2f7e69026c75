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
use super::store::{Fence, NewEvent, RecordPatch, StoreError, StoredError, StoredEventKind, TurnEnd};
use crate::client::WeakClient;
use crate::session::Timestamp;
use crate::sessions::RetentionPolicy;
use crate::thread::ResultRules;
use crate::{Error, Event, Turn, TurnOutcome};

mod acquire;
mod catch_up;
mod create;
mod owned;
mod reopen;
mod sorting;
mod turns;
mod writing;

pub(super) use acquire::Wish;
use owned::{Described, ForeignLink, ForeignTurn, Owned, Replay, Trailing};
pub(super) use sorting::abandoned;

/// What a tracker notices, and what is asked of it.
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
    /// An agent request is answered. The response is sent when it is stored.
    Answered {
        answer: Box<Entry>,
        /// Gets whether this process owns the session.
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

/// What a tracker is asked to do, while nothing else happens in its session.
pub(super) type Ask = Box<dyn for<'a> FnOnce(&'a mut Tracker) -> BoxFuture<'a, ()> + Send>;

/// What became of a prompt.
pub(super) enum Begun {
    Turn(Box<Turn>),
    /// A turn of another program is running.
    Busy,
}

/// What handles of a session see of its state.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct View {
    /// The agent's session, while the agent has it.
    pub(super) agent_session: Option<String>,
    /// What the process proves its ownership with.
    pub(super) fence: Option<Fence>,
    /// The incarnation of the server.
    pub(super) incarnation: u64,
    /// The id of the running turn.
    pub(super) turn: Option<String>,
    pub(super) last_active: Option<Timestamp>,
    /// The turn of another program that is running.
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
    /// Events that could not be stored, and are not counted in the store yet.
    lost: u64,
    /// The stream and the offset from which on nothing counts as stored until those events are counted.
    lost_at: Option<(u64, u64)>,
    /// The ends of turns and of agent requests that could not be stored. The next append has them.
    unstored_ends: Vec<NewEvent>,
    /// Whether the last append failed because the store did not take it in time.
    is_failing: bool,
    /// Why something of the turn could not be stored.
    not_stored: Option<StoreError>,
}

impl Tracker {
    /// A tracker of a session that this process does not own yet.
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
            lost: 0,
            lost_at: None,
            is_failing: false,
            unstored_ends: Vec::new(),
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
                None => self.give_up_foreign_turn().await,
            }
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

    /// When something is to be done although nothing happens.
    fn wakes_at(&self) -> Option<Instant> {
        let owned = self.owned.as_ref()?;
        let options = &self.shared.options;
        let unconfirmed = owned.foreign.as_ref().and_then(|foreign| foreign.unconfirmed_since);
        let unconfirmed = unconfirmed.map(|since| since + options.unconfirmed_timeout);
        unconfirmed.or_else(|| Some(owned.ended_at? + options.ended_timeout))
    }

    /// Whether nothing is to be stored of the session: another process owns it, or there is none, or its agent ended long
    /// enough ago. Then the record still names this process as the owner.
    fn may_end(&self) -> bool {
        let is_over = |owned: &Owned| {
            let is_idle = owned.turn.is_none() && owned.foreign.is_none() && owned.trailing.is_empty();
            let timeout = self.shared.options.ended_timeout;
            is_idle && !owned.is_live && owned.ended_at.is_some_and(|at| at.elapsed() >= timeout)
        };
        self.lost == 0
            && match &self.owned {
                Some(owned) => self.unstored_ends.is_empty() && is_over(owned),
                None => true,
            }
    }

    /// The response to the prompt of another program was probably missed. The agent may still run its turn, so that the
    /// session is acquired again before it is used.
    async fn give_up_foreign_turn(&mut self) {
        let foreign = self.owned.as_ref().and_then(|owned| owned.foreign.as_ref());
        let since = foreign.and_then(|foreign| foreign.unconfirmed_since);
        if since.is_some_and(|since| since.elapsed() >= self.shared.options.unconfirmed_timeout) {
            self.foreign_turn_ended(None).await;
            self.owned.iter_mut().for_each(|owned| owned.is_live = false);
            self.show();
        }
    }

    /// This process does not own the session any more.
    pub(super) fn disown(&mut self) {
        // The next owner reads what could not be stored from the server, where that is possible.
        if self.owned.take().is_none_or(|owned| owned.is_numbered) {
            self.lost = 0;
        }
        self.unstored_ends.clear();
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

    /// Handles what has arrived, but for what is asked.
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
            Command::Responded(request, response) => self.responded(&request, &response).await,
            Command::ForeignTurnLost => self.foreign_turn_ended(None).await,
            Command::Described => self.describe().await,
            Command::Answered { answer, stored } => self.answered(*answer, stored).await,
            Command::TurnStored(answer) => {
                // A turn that was dropped needs no answer.
                let _ = answer.send(self.not_stored.take().map_or(Ok(()), Err));
            }
            Command::Ask(ask) => ask(self).await,
        }
        self.show();
    }

    /// The agent does not have the session any more. What a turn of another program became is found out when the
    /// session is acquired again.
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
        if self.write(Vec::new(), patch, None).await {
            self.shared.feed.set_accounted(&self.inbox);
        }
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
    pub(super) fn show(&self) {
        let owned = self.owned.as_ref();
        let view = View {
            agent_session: owned.filter(|owned| owned.is_live).and_then(|owned| owned.agent_session.clone()),
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

    /// Ends the agent of the session if it is idle; `false` if it is not, or was ended before.
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

/// Whether a turn interrupted: the agent is gone, or its end lies in a gap.
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
