//! The owner of a stored session's state in this process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use super::entry::Entry;
use super::feed::{Moment, Offers};
use super::holder::Holder;
use super::inbox::{Inbox, Item};
use super::options::Durability;
use super::remote::RemoteTurn;
use super::scan::Response;
use super::shared::Shared;
use super::store::{Fence, NewEvent, SessionRecord, StoreError, StoredError, StoredEventKind, TurnEnd};
use crate::client::{SessionClaim, WeakClient};
use crate::event::Restored;
use crate::session::Timestamp;
use crate::sessions::RetentionPolicy;
use crate::stream::{Resend, StreamReader};
use crate::thread::ResultRules;
use crate::{Error, Event, NewSession, Prompt, Turn, TurnOutcome};

mod acquire;
mod catch_up;
mod create;
mod reopen;
mod sorting;
mod turns;
mod writing;

pub(super) use acquire::Wish;
pub(super) use sorting::abandoned;

/// What a tracker notices, and what is asked of it.
pub(super) enum Command {
    /// The agent, the server or the connection is gone.
    Gone,
    /// A turn of this process ended.
    TurnEnded(Box<EndedTurn>),
    /// The response to the prompt with this JSON-RPC id arrived on the stream.
    Responded(String, Response),
    /// The stream on which a turn of another program runs has ended, or is of another incarnation.
    ForeignTurnLost,
    /// A call changed the state of the session.
    Described,
    /// An agent request is answered. The answer is sent when it is stored.
    Answered {
        payload: Value,
        stored: oneshot::Sender<()>,
    },
    /// Everything before is to be stored.
    Flush(oneshot::Sender<()>),
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

/// What is asked of a tracker; the answer goes to the sender, if anything waits for it.
pub(super) enum Ask {
    Create {
        new: Box<NewSession>,
        answer: oneshot::Sender<Result<(), Error>>,
    },
    Acquire {
        wish: Wish,
        answer: oneshot::Sender<Result<Option<Restored>, Error>>,
    },
    Prompt {
        prompt: Prompt,
        new: Option<Box<NewSession>>,
        answer: oneshot::Sender<Result<Begun, Error>>,
    },
    Resend {
        turn: String,
        prompt: Prompt,
        new: Option<Box<NewSession>>,
        answer: oneshot::Sender<Result<(Resend, Fence), Error>>,
    },
    /// Cancels the turn of another program, on the endpoint of that program.
    CancelRemote {
        answer: oneshot::Sender<Result<(), Error>>,
    },
    Interrupt {
        turn: String,
        answer: oneshot::Sender<Result<bool, Error>>,
    },
    Release {
        answer: oneshot::Sender<Result<SessionRecord, Error>>,
    },
    EndIdle {
        policy: RetentionPolicy,
        now: Timestamp,
        answer: oneshot::Sender<Result<bool, Error>>,
    },
}

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
    /// The id of the turn, which its stored events contain.
    pub turn_id: String,
    /// The prompt, as stored.
    pub prompt: Value,
    /// When the prompt was stored.
    pub since: Timestamp,
}

/// One task per session: everything that changes the session in this process goes through its mailbox.
pub(super) struct Tracker {
    pub(super) shared: Arc<Shared>,
    pub(super) client: WeakClient,
    pub(super) id: String,
    pub(super) inbox: Arc<Inbox<Command>>,
    pub(super) view: watch::Sender<View>,
    pub(super) owned: Option<Owned>,
    /// Events that could not be stored, and are not counted in the store yet.
    pub(super) lost: u64,
    /// The stream and the offset from which on nothing counts as stored until those events are counted.
    pub(super) lost_at: Option<(u64, u64)>,
    /// The ends of turns and of agent requests that could not be stored. The next append has them.
    pub(super) unstored_ends: Vec<NewEvent>,
    /// Whether the last append failed because the store did not take it in time.
    pub(super) is_failing: bool,
    /// Why something of the turn could not be stored.
    pub(super) not_stored: Option<StoreError>,
}

/// A session that this process owns.
pub(super) struct Owned {
    pub(super) fence: Fence,
    pub(super) agent_session: Option<String>,
    /// Whether the agent has the session.
    pub(super) is_live: bool,
    pub(super) incarnation: u64,
    /// Messages up to this offset of this stream were read when the session was acquired.
    pub(super) scanned: Option<(Moment, u64)>,
    /// The endpoint that the agent's session is on.
    pub(super) endpoint: String,
    /// Whether other processes can read the stream of that endpoint.
    pub(super) is_numbered: bool,
    /// The running turn of this process.
    pub(super) turn: Option<String>,
    /// A turn of this process that has ended, while updates of it may still arrive.
    pub(super) trailing: Option<Trailing>,
    pub(super) foreign: Option<ForeignTurn>,
    pub(super) replay: Replay,
    /// The agent requests that are open, and whether an answer is stored, by their JSON-RPC ids.
    pub(super) requests: BTreeMap<String, bool>,
    /// What the record says about the state of the session.
    pub(super) described: Described,
}

/// A turn whose response arrived without proof that all updates before it had arrived. Updates that precede its response
/// on the stream belong to it.
pub(super) struct Trailing {
    pub(super) turn_id: String,
    /// The JSON-RPC id of its prompt.
    pub(super) request: String,
}

/// What a record has of a session's settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Described {
    pub(super) options: Option<Value>,
    pub(super) mode: Option<String>,
    pub(super) model: Option<String>,
}

/// A turn of another program that is running.
pub(super) struct ForeignTurn {
    pub(super) turn: OpenTurn,
    /// The JSON-RPC ids with which its prompt was sent.
    pub(super) prompts: Vec<String>,
    /// Whether the agent has reported anything since its prompt.
    pub(super) is_heard: bool,
    pub(super) link: ForeignLink,
    /// Its agent requests, which are offered to the application until it ends.
    pub(super) _offers: Offers,
}

/// How a turn of another program is followed.
pub(super) enum ForeignLink {
    /// It runs on the endpoint of this client.
    Here {
        /// Its agent requests are addressed to this client meanwhile.
        _claim: SessionClaim,
        /// Its open requests are answered through this reader.
        _reader: Option<Mutex<StreamReader>>,
    },
    /// It runs on the endpoint of another process.
    Remote(RemoteTurn),
}

impl ForeignTurn {
    pub(super) fn remote(&self) -> Option<&RemoteTurn> {
        match &self.link {
            ForeignLink::Remote(remote) => Some(remote),
            ForeignLink::Here { .. } => None,
        }
    }
}

impl Owned {
    /// A session whose agent has not been asked for it yet.
    pub(super) fn new(record: &SessionRecord, endpoint: String, is_numbered: bool) -> Self {
        Self {
            fence: record.fence(),
            agent_session: record.agent_session.as_ref().map(|session| session.id.clone()),
            is_live: false,
            incarnation: record.position.map_or(1, |position| position.incarnation),
            scanned: None,
            endpoint,
            is_numbered,
            turn: None,
            trailing: None,
            foreign: None,
            replay: if record.details.replay_pending { Replay::Pending } else { Replay::Done },
            requests: BTreeMap::new(),
            described: Described::default(),
        }
    }

    /// The id of the running turn, of this process or another program.
    pub(super) fn running(&self) -> Option<String> {
        let foreign = || self.foreign.as_ref().map(|foreign| foreign.turn.turn_id.clone());
        self.turn.clone().or_else(foreign)
    }

    /// Whether a turn of another program is followed on the endpoint of that program.
    pub(super) fn is_remote(&self) -> bool {
        self.foreign.as_ref().is_some_and(|foreign| foreign.remote().is_some())
    }
}

/// Whether the agent has to get the history as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replay {
    Done,
    Pending,
    /// It was sent; with whether the agent has reported anything since.
    Sent {
        is_heard: bool,
    },
}

impl Tracker {
    pub(super) async fn run(mut self) {
        while self.inbox.filled().await {
            // An application that waits for the store does not wait for more events.
            let is_awaited = self.shared.options.durability == Durability::BeforeDelivery;
            if !is_awaited && !self.inbox.is_urgent(self.shared.options.batch) {
                self.linger().await;
            }
            let items = self.inbox.take(self.shared.options.batch);
            self.handle_all(items.into()).await;
            if self.owned.is_none() && self.lost == 0 && self.inbox.close_if_empty() {
                // Another process owns the session, or there is none. The next call starts another tracker.
                break;
            }
        }
        self.shared.forget_tracker(&self.id, &self.inbox);
        self.disown();
        self.show();
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
        let items = self.inbox.take_all_but(|command| matches!(command, Command::Ask(_) | Command::Flush(_)));
        Box::pin(self.handle_all(items.into()))
    }

    async fn handle_all(&mut self, mut items: VecDeque<Item<Command>>) {
        let mut entries = Vec::new();
        loop {
            match items.pop_front() {
                Some(Item::Event(entry)) => entries.push(entry),
                Some(Item::Lost(first, count)) => {
                    // The mark stands in the position of the first one, and has no key of the stream.
                    let stream = first.stream;
                    if let Some(at) = first.held_at() {
                        self.hold_lost(at);
                    }
                    let mark = Entry::own(StoredEventKind::Lost, json!({ "count": count }));
                    entries.push(Entry { stream, ..mark });
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
            Command::TurnEnded(ended) => self.turn_ended(*ended).await,
            Command::Responded(request, response) => self.responded(&request, &response).await,
            Command::ForeignTurnLost => self.foreign_turn_ended(None).await,
            Command::Described => self.describe().await,
            Command::Answered { payload, stored } => self.answered(payload, stored).await,
            Command::Flush(done) => {
                self.describe().await;
                self.store_ends().await;
                // A caller that went away needs no answer.
                let _ = done.send(());
            }
            Command::TurnStored(answer) => {
                // A turn that was dropped needs no answer.
                let _ = answer.send(self.not_stored.take().map_or(Ok(()), Err));
            }
            Command::Ask(ask) => {
                self.inbox.set_busy(true);
                Box::pin(self.answer(ask)).await;
                self.inbox.set_busy(false);
            }
        }
        self.show();
    }

    /// Callers that went away need no answer.
    async fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Create { new, answer } => {
                let created = self.create(&new).await;
                self.show();
                let _ = answer.send(created);
            }
            Ask::Acquire { wish, answer } => {
                let acquired = self.acquire_if_needed(&wish).await;
                self.show();
                let _ = answer.send(acquired);
            }
            Ask::Prompt { prompt, new, answer } => {
                let begun = self.prompt(&prompt, new.as_deref()).await;
                self.show();
                let _ = answer.send(begun);
            }
            Ask::Resend { turn, prompt, new, answer } => {
                let resent = self.resend(&turn, prompt, new.as_deref()).await;
                self.show();
                let _ = answer.send(resent);
            }
            Ask::CancelRemote { answer } => {
                let _ = answer.send(self.cancel_remote().await);
            }
            Ask::Interrupt { turn, answer } => {
                let _ = answer.send(self.interrupt(&turn).await);
            }
            Ask::Release { answer } => {
                let released = self.release().await;
                self.show();
                let _ = answer.send(released);
            }
            Ask::EndIdle { policy, now, answer } => {
                let ended = self.end_idle(&policy, now).await;
                self.show();
                let _ = answer.send(ended);
            }
        }
    }

    /// The agent does not have the session any more. What a turn of another program became is found out when the
    /// session is acquired again.
    fn gone(&mut self) {
        if let Some(owned) = &mut self.owned {
            (owned.is_live, owned.foreign) = (false, None);
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
    async fn end_idle(&mut self, policy: &RetentionPolicy, now: Timestamp) -> Result<bool, Error> {
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
    "interrupted: the agent is gone, or the end of the turn was not seen".clone_into(&mut error.message);
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

/// The event of a turn's end.
pub(super) fn turn_end_entry(end: &TurnEnd) -> Entry {
    Entry::own(StoredEventKind::TurnEnded, json!(end))
}
