//! The state of one session.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::known_prompts::KnownPrompts;
use super::messages::Messages;
use super::progress::Progress;
use super::unused::Share;
use crate::client::event::{Class, Hold, Queue, Weight, end_size};
use crate::client::session::TurnState;
use crate::client::snapshot::{Patch, TrackedSnapshot};
use crate::client::turn::TurnItem;
use crate::convert::tool_calls::ToolCalls;
use crate::event::Origin;
use crate::update::Missed;
use crate::{Event, OpenSession, TerminationInfo, Update, UpdateKind};

/// How many events are stored for a session without subscribers.
pub(super) const UNREAD_EVENTS: usize = 1024;
/// How many bytes these may take.
const UNREAD_BYTES: usize = 1 << 20;

/// How many missing parts a turn lists.
const MISSED: usize = 64;

/// The notifications of a session's start, which contain its state.
const STARTED: [&str; 2] = ["session/started", "_sandboxagent/session/started"];

/// The state of one session.
#[derive(Debug)]
pub(super) struct SessionState {
    pub(super) subscribers: Vec<Arc<Queue<Event>>>,
    /// The events without a reader: before the response that created the session, or between turns.
    pub(super) unread: VecDeque<(Event, Option<Hold>)>,
    pub(super) unread_bytes: usize,
    /// The size of the events that changed its snapshot before this client named it.
    learned_bytes: usize,
    pub(super) missed: u64,
    pub(super) turn: Option<Arc<Queue<TurnItem>>>,
    /// The prompts that wait until the turn has stopped, the oldest first.
    pub(super) waiting: VecDeque<Arc<Queue<TurnItem>>>,
    /// Whether its prompt was sent. Earlier updates belong to an earlier turn.
    pub(super) is_prompted: bool,
    /// Whether the turn has an update.
    pub(super) has_updates: bool,
    /// Whether chunks were dropped because their message began before the turn.
    pub(super) has_late_chunks: bool,
    /// The messages of the turn, and those that began before it.
    pub(super) messages: Messages,
    /// The missing parts of the turn.
    pub(super) turn_missed: Vec<Missed>,
    /// The latest tool calls of the turn.
    pub(super) tool_calls: ToolCalls,
    /// The prompts of the session, if this client knows all of them.
    pub(super) prompts: Option<KnownPrompts>,
    /// The calls that load the session and collect its history.
    pub(super) histories: Vec<Arc<Queue<Update>>>,
    pub(super) turn_state: watch::Sender<TurnState>,
    /// How many turns have ended: a wait for the end of one turn does not depend on the state of the next one.
    pub(super) turns_ended: watch::Sender<u64>,
    /// How often the application has cancelled a turn.
    pub(super) cancels: watch::Sender<u64>,
    /// Whether its turn makes progress.
    pub(super) progress: Arc<watch::Sender<Progress>>,
    pub(super) ended: watch::Sender<Option<TerminationInfo>>,
    /// How often it has ended.
    pub(super) ends: u64,
    /// How many calls are loading or resuming the session.
    pub(super) resuming: usize,
    /// How many of these calls load it.
    pub(super) loads: watch::Sender<usize>,
    /// Whether the agent replayed a part of the conversation after its response to such a call.
    pub(super) replays_late: bool,
    /// Whether its end is older than these calls.
    pub(super) past_end: bool,
    /// The modes that this client has set since its last prompt, and that the agent may report as text.
    pub(super) expected_modes: Vec<String>,
    /// How often the stream had been lost when its last event arrived.
    pub(super) losses: u64,
    /// Whether a warning was logged that nothing decides the session's requests.
    pub(super) warned: bool,
    /// Whether this client requested the end of the session.
    pub(super) stop_requested: bool,
    /// Whether this client has created or named the session; others are forgotten first.
    pub(super) is_named: bool,
    /// How many calls of this client about the session are pending.
    pub(super) pending_calls: usize,
    /// Whether the session is known to exist: it was opened or has responded, and has not ended since.
    pub(super) open: bool,
    /// The agent it belongs to, if this client knows.
    pub(super) agent: Option<Arc<str>>,
    /// How this client has opened it, if it has.
    pub(super) opened_with: Option<Arc<OpenSession>>,
    /// The available settings of the session and their current values.
    pub(super) snapshot: TrackedSnapshot,
    /// How many guards exist that keep the state of the session.
    pub(super) handles: usize,
    /// What it counts among the unused sessions.
    pub(super) share: Share,
}

impl SessionState {
    /// The memory of a session about which nothing is known, besides its id: the state, and what it allocates.
    pub(super) const EMPTY: usize = size_of::<Self>() + 1024;

    pub(super) fn new(snapshot_limit: usize, losses: u64) -> Self {
        Self {
            subscribers: Vec::new(),
            unread: VecDeque::new(),
            unread_bytes: 0,
            learned_bytes: 0,
            missed: 0,
            turn: None,
            waiting: VecDeque::new(),
            is_prompted: false,
            has_updates: false,
            has_late_chunks: false,
            messages: Messages::default(),
            turn_missed: Vec::new(),
            tool_calls: ToolCalls::default(),
            prompts: None,
            histories: Vec::new(),
            turn_state: watch::Sender::new(TurnState::Idle),
            turns_ended: watch::Sender::default(),
            cancels: watch::Sender::default(),
            progress: Arc::default(),
            ended: watch::Sender::new(None),
            ends: 0,
            resuming: 0,
            loads: watch::Sender::default(),
            replays_late: false,
            past_end: false,
            expected_modes: Vec::new(),
            losses,
            warned: false,
            stop_requested: false,
            is_named: false,
            pending_calls: 0,
            open: false,
            agent: None,
            opened_with: None,
            snapshot: TrackedSnapshot::new(snapshot_limit),
            handles: 0,
            share: Share::default(),
        }
    }

    /// Whether the session is in use, so that its state must not be forgotten.
    pub(super) fn is_watched(&mut self) -> bool {
        self.subscribers.retain(|queue| Arc::strong_count(queue) > 1);
        self.handles > 0
            || self.resuming > 0
            || self.pending_calls > 0
            || !self.subscribers.is_empty()
            || self.is_busy()
    }

    /// Returns the memory of a session.
    pub(super) fn bytes(&self) -> usize {
        let end = self.ended.borrow().as_ref().map_or(0, end_size);
        Self::EMPTY + self.unread_bytes + self.tool_calls.bytes() + self.snapshot.bytes() + end
    }

    /// Returns an upper bound of the memory of a session that this client has not named.
    pub(super) fn stored_bytes(&self) -> usize {
        let end = self.ended.borrow().as_ref().map_or(0, end_size);
        self.unread_bytes + self.learned_bytes + end
    }

    /// Whether it has ended and no call is loading or resuming it.
    pub(super) fn is_over(&self) -> bool {
        self.resuming == 0 && self.ended.borrow().is_some()
    }

    /// Whether a turn runs or a call waits for the session.
    pub(super) fn is_busy(&self) -> bool {
        let waits = self.turn_state.receiver_count() + self.ended.receiver_count() > 0;
        waits || *self.turn_state.borrow() != TurnState::Idle
    }

    /// Applies an event to the state. Large events of sessions that this client has not named are ignored.
    pub(super) fn learn(&mut self, event: &Event, now: u64) {
        // Earlier conversation has other tool calls, perhaps with the same ids.
        if let Event::Update(update) = event
            && self.is_named
            && update.origin() == Origin::Live
        {
            self.tool_calls.learn(update);
        }
        let patch = match event {
            Event::Update(update) if self.is_named || update.size() <= UNREAD_BYTES => {
                Patch::of_update(update)
            }
            Event::Other { method, params, .. } if STARTED.contains(&method.as_str()) => {
                let small = || params.to_string().len() <= UNREAD_BYTES;
                (self.is_named || small()).then(|| Patch::of_state(params))
            }
            _ => None,
        };
        if let Some(patch) = patch {
            if !self.is_named {
                self.learned_bytes += event.weight();
            }
            self.snapshot.report(patch, event.origin(), now);
        }
    }

    /// Delivers an event to the readers of the session. Returns how many readers decide requests, including earlier
    /// ones.
    pub(super) fn push(&mut self, event: &Event, mut deciders: usize, hold: Option<&Hold>) -> usize {
        self.progress.send_if_modified(|progress| progress.observe(event));
        if matches!(event, Event::ServerRestarted | Event::SessionEnded(_)) {
            self.tool_calls = ToolCalls::default();
        }
        self.subscribers.retain(|queue| Arc::strong_count(queue) > 1);
        for queue in &self.subscribers {
            let deciding = queue.is_deciding();
            deciders += usize::from(deciding);
            queue.push_held(event.copy_for(deciding), hold.cloned());
        }
        let collected = matches!(event, Event::Update(update) if self.collect(update));
        let belongs = match event {
            Event::Update(update) => self.is_of_turn(update),
            _ => true,
        };
        if let Event::Update(update) = event {
            self.count(update, belongs);
        }
        match (self.turn.as_ref().filter(|_| belongs), event) {
            (Some(turn), Event::Update(update)) => {
                turn.push_held(TurnItem::Update(update.clone()), hold.cloned());
            }
            (Some(turn), Event::Permission(_) | Event::Question(_)) if turn.is_deciding() => {
                // A turn that was not read yet decides only if nothing else does.
                let decides = turn.is_committed() || deciders == 0;
                deciders += usize::from(decides);
                if decides && !turn.is_committed() {
                    self.progress.send_modify(Progress::unread);
                }
                match event.copy_for(decides) {
                    Event::Permission(request) => {
                        turn.push_held(TurnItem::Permission(request), hold.cloned())
                    }
                    Event::Question(request) => turn.push_held(TurnItem::Question(request), hold.cloned()),
                    _ => {}
                }
            }
            (None, Event::Update(_)) | (_, Event::SessionEnded(_) | Event::TerminationDetails(_))
                if self.subscribers.is_empty() && !collected =>
            {
                self.store(event.clone(), hold.cloned());
            }
            _ => {}
        }
        deciders
    }

    /// Whether an update belongs to the running turn. The result is the same if it is asked again.
    pub(super) fn is_of_turn(&mut self, update: &Update) -> bool {
        self.messages.is_of_turn(update, self.is_prompted)
    }

    /// Starts a turn.
    pub(super) fn begin_turn(&mut self, queue: &Arc<Queue<TurnItem>>) {
        self.turn = Some(Arc::clone(queue));
        self.is_prompted = false;
        self.progress.send_modify(Progress::begin);
        self.turn_state.send_replace(TurnState::Running);
    }

    /// Whether the reader of the running turn has this queue.
    pub(super) fn runs(&self, queue: &Arc<Queue<TurnItem>>) -> bool {
        self.turn.as_ref().is_some_and(|turn| Arc::ptr_eq(turn, queue))
    }

    /// Whether the prompt with this queue waits.
    pub(super) fn waits(&self, queue: &Arc<Queue<TurnItem>>) -> bool {
        self.waiting.iter().any(|known| Arc::ptr_eq(known, queue))
    }

    /// A prompt no longer waits. The next one that waits may begin.
    pub(super) fn stop_waiting(&mut self, queue: &Arc<Queue<TurnItem>>) {
        self.waiting.retain(|known| !Arc::ptr_eq(known, queue));
        self.turn_state.send_modify(|_| ());
    }

    /// The running turn is being cancelled.
    pub(super) fn cancelling_turn(&self) {
        self.turn_state.send_if_modified(|turn| {
            let is_running = *turn == TurnState::Running;
            if is_running {
                *turn = TurnState::Cancelling;
            }
            is_running
        });
    }

    /// The turn is over.
    pub(super) fn end_turn(&mut self) {
        if let Some(queue) = self.turn.take() {
            queue.end();
        }
        let before = self.free();
        self.messages.end_turn(before == TurnState::Cancelling);
        self.is_prompted = false;
    }

    /// The turn no longer runs in this session. Returns the state before.
    pub(super) fn free(&mut self) -> TurnState {
        let before = self.turn_state.send_replace(TurnState::Idle);
        self.turns_ended.send_modify(|ended| *ended += 1);
        self.end_progress();
        before
    }

    /// The reader of the turn does not decide requests. Returns those that waited for it.
    pub(super) fn stop_deciding(&self, queue: &Queue<TurnItem>) -> Vec<TurnItem> {
        queue.set_deciding(false);
        self.progress.send_modify(Progress::read);
        queue.take_class(Class::Request)
    }

    /// Frees the report that ended the turn. Nothing waits for it.
    fn end_progress(&self) {
        self.progress.send_if_modified(|progress| {
            progress.end();
            false
        });
    }

    /// The prompt of the turn is sent. Earlier events do not belong to the turn.
    pub(super) fn send_prompt(&mut self) {
        (self.is_prompted, self.has_updates, self.has_late_chunks) = (true, false, false);
        self.turn_missed.clear();
        self.expected_modes.clear();
        // Agents may use the ids of earlier tool calls again.
        self.tool_calls = ToolCalls::default();
    }

    /// Records that updates are, or may be, missing at this point.
    pub(super) fn miss(&mut self, id: &str, missed: Missed) {
        let update = Update::missed(id, missed);
        self.miss_in_turn(&update, missed);
        self.histories.iter().for_each(|reader| reader.push(update.clone()));
    }

    /// Records what is missing in the turn, if its prompt was sent. A turn without a reader also reports it at its end.
    fn miss_in_turn(&mut self, update: &Update, missed: Missed) {
        if !self.is_prompted {
            return;
        }
        if let Some(turn) = &self.turn {
            turn.push(TurnItem::Update(update.clone()));
        }
        self.turn_missing(missed);
    }

    fn turn_missing(&mut self, missed: Missed) {
        if self.turn_missed.len() < MISSED {
            self.turn_missed.push(missed);
        }
    }

    /// Returns what is missing in the turn. If all its chunks were dropped, the agent may have used the id of an earlier
    /// message again.
    pub(super) fn missing(&self) -> Vec<Missed> {
        let only_late = self.has_late_chunks && !self.has_updates;
        self.turn_missed.iter().copied().chain(only_late.then_some(Missed::Unverified)).collect()
    }

    /// Counts an update for the turn.
    fn count(&mut self, update: &Update, belongs: bool) {
        let is_late = self.is_prompted && !belongs;
        // Late chunks of a cancelled turn come first. A chunk of the same message after an update of this turn is
        // perhaps a part of this turn, by an agent that used the id again.
        if is_late && self.has_updates && !std::mem::replace(&mut self.has_late_chunks, true) {
            self.miss_in_turn(&Update::missed(update.session_id(), Missed::Unverified), Missed::Unverified);
        }
        self.has_late_chunks |= is_late;
        self.has_updates |= belongs;
        if belongs && matches!(update.kind(), UpdateKind::Unreadable { .. }) {
            self.turn_missing(Missed::Malformed);
        }
    }

    /// Passes history to the calls that load the session; `false` if there are none, or the update is not history.
    fn collect(&mut self, update: &Update) -> bool {
        self.histories.retain(|queue| Arc::strong_count(queue) > 1);
        let collected = update.origin() == Origin::History && !self.histories.is_empty();
        if collected {
            self.histories.iter().for_each(|queue| queue.push(update.clone()));
        }
        collected
    }

    /// Takes the stored events, and how many were dropped before them.
    pub(super) fn take_unread(&mut self) -> (u64, VecDeque<(Event, Option<Hold>)>) {
        self.unread_bytes = 0;
        (std::mem::take(&mut self.missed), std::mem::take(&mut self.unread))
    }

    /// Takes the conversation among the stored events, as history.
    pub(super) fn take_unread_conversation(&mut self, id: &str) -> Vec<Update> {
        let missed = std::mem::take(&mut self.missed);
        let mut taken: Vec<_> =
            (missed > 0).then(|| Update::missed(id, Missed::Lagged(missed))).into_iter().collect();
        self.unread.retain(|(event, _)| {
            let Event::Update(update) = event else { return true };
            if update.is_conversation() {
                self.unread_bytes -= event.weight();
                taken.push(update.clone().into_history());
            }
            !update.is_conversation()
        });
        taken
    }

    /// Stores an event for the next subscriber, within limits.
    pub(super) fn store(&mut self, event: Event, hold: Option<Hold>) {
        self.unread_bytes += event.weight();
        self.unread.push_back((event, hold));
        while self.unread.len() > UNREAD_EVENTS || self.unread_bytes > UNREAD_BYTES {
            let Some((oldest, _)) = self.unread.pop_front() else { break };
            self.unread_bytes -= oldest.weight();
            self.missed += 1;
        }
    }
}
