//! Which kept session is which session of the agent, and what happens in it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::replay::ReplayLimits;
use crate::client::{Hub, Observer};
use crate::{
    ConnectionState, Error, Event, LostReason, MemoryStore, Origin, Recorder, RecorderOptions, SessionRecord,
    SessionStore, StoreError, StoredEventKind, Timestamp, TurnOutcome,
};

/// How many sessions that nobody keeps are remembered, and how many events of each: the answer that names a session may
/// come after its first events.
const STRANGERS: usize = 32;
const STRANGER_EVENTS: usize = 256;
/// How often a change is tried again that others were quicker with.
const CONFLICTS: usize = 32;

/// The sessions of one client that are kept.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(super) store: Arc<dyn SessionStore>,
    pub(super) replay: ReplayLimits,
    options: RecorderOptions,
    hub: Weak<Hub>,
    /// Started with the first session that is bound, which is when there is a runtime.
    recorder: OnceLock<Recorder>,
    /// Guards who is who; held for a look-up, and never while anything waits.
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    bound: HashMap<String, Binding>,
    /// The kept session of each session of the agent.
    kept: HashMap<String, String>,
    /// What came for sessions that nobody keeps, the longest known first.
    strangers: VecDeque<(String, VecDeque<Event>)>,
    /// One at a time may take up a session or begin a turn in it.
    gates: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// How often the stream of events was lost, and whether it still is.
    losses: u64,
    away: bool,
    /// Whether the connection was given up because nothing happened.
    asleep: bool,
    /// Whether the session that the client attaches to was taken.
    expected: bool,
}

/// A kept session and its session of the agent.
#[derive(Debug, Clone)]
pub(super) struct Binding {
    pub(super) agent_session: String,
    /// Whether the agent has the session, as far as is known.
    pub(super) live: bool,
    /// Whether the agent has to be told the history first.
    pub(super) replay: bool,
    pub(super) last_active: Timestamp,
    /// How often the stream had been lost when it was bound.
    losses: u64,
}

impl Ledger {
    pub(super) fn new(
        store: Option<Arc<dyn SessionStore>>,
        options: RecorderOptions,
        replay: ReplayLimits,
        hub: &Arc<Hub>,
    ) -> Arc<Self> {
        let store = store.unwrap_or_else(|| Arc::new(MemoryStore::new()));
        let (recorder, books) = (OnceLock::new(), Mutex::default());
        let ledger = Arc::new(Self { store, replay, options, hub: Arc::downgrade(hub), recorder, books });
        hub.observe(Arc::<Self>::clone(&ledger));
        ledger
    }

    /// What takes events down. It starts on the first call, which needs a runtime.
    pub(super) fn recorder(&self) -> &Recorder {
        self.recorder.get_or_init(|| {
            let hub = Weak::clone(&self.hub);
            let tell = move |unrecorded| {
                if let Some(hub) = hub.upgrade() {
                    hub.publish(&Event::Unrecorded(unrecorded));
                }
            };
            Recorder::start_with(Arc::clone(&self.store), self.options.clone(), Box::new(tell))
        })
    }

    /// Waits until everything that happened is stored.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        match self.recorder.get() {
            Some(recorder) => Ok(recorder.flush().await?),
            None => Ok(()),
        }
    }

    /// Waits until everything that happened is stored, and tells what became of one session.
    pub(super) async fn flush_session(&self, id: &str) -> Result<(), Error> {
        match self.recorder.get() {
            Some(recorder) => Ok(recorder.flush_session(id).await?),
            None => Ok(()),
        }
    }

    /// Waits until everything that happened is stored as far as it will be.
    pub(super) async fn settle(&self) {
        if let Some(recorder) = self.recorder.get() {
            recorder.settle().await;
        }
    }

    /// One at a time: whoever holds this may take up the session or begin a turn in it.
    pub(super) fn gate(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut books = self.books();
        // Those that nobody holds are made again when they are needed.
        if books.gates.len() > 1024 {
            books.gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        }
        Arc::clone(books.gates.entry(id.to_owned()).or_default())
    }

    pub(super) fn binding(&self, id: &str) -> Option<Binding> {
        self.books().bound.get(id).cloned()
    }

    /// The sessions that this program has used.
    pub(super) fn bound(&self) -> Vec<(String, Binding)> {
        self.books().bound.iter().map(|(id, binding)| (id.clone(), binding.clone())).collect()
    }

    /// The agent has the session under this id from now on, and what came for it already is taken down.
    pub(super) fn bind(&self, id: &str, agent_session: &str, replay: bool) {
        self.recorder();
        let mut books = self.books();
        books.asleep = false;
        if let Some(before) = books.bound.get(id).map(|before| before.agent_session.clone()) {
            books.kept.remove(&before);
        }
        books.kept.insert(agent_session.to_owned(), id.to_owned());
        let binding = Binding {
            agent_session: agent_session.to_owned(),
            live: true,
            replay,
            last_active: SystemTime::now().into(),
            losses: books.losses,
        };
        books.bound.insert(id.to_owned(), binding);
        let place = books.strangers.iter().position(|(stranger, _)| stranger == agent_session);
        let early = place.and_then(|place| books.strangers.remove(place));
        for event in early.into_iter().flat_map(|(_, events)| events) {
            self.take_down(id, &event);
        }
    }

    /// This program is done with the session: nothing of it is taken down any more.
    pub(super) fn unbind(&self, id: &str) {
        let mut books = self.books();
        if let Some(binding) = books.bound.remove(id) {
            books.kept.remove(&binding.agent_session);
        }
    }

    /// The agent knows the history now.
    pub(super) fn replayed(&self, id: &str) {
        if let Some(binding) = self.books().bound.get_mut(id) {
            binding.replay = false;
        }
    }

    pub(super) fn touch(&self, id: &str) {
        if let Some(binding) = self.books().bound.get_mut(id) {
            binding.last_active = SystemTime::now().into();
        }
    }

    /// The agent no longer has the session, or will not.
    pub(super) fn lose(&self, id: &str) {
        if let Some(binding) = self.books().bound.get_mut(id) {
            binding.live = false;
        }
    }

    /// Whether this is the first time that somebody asks.
    pub(super) fn expect_once(&self) -> bool {
        !std::mem::replace(&mut self.books().expected, true)
    }

    pub(super) fn fall_asleep(&self) {
        self.books().asleep = true;
    }

    pub(super) fn is_asleep(&self) -> bool {
        self.books().asleep
    }

    /// Changes a record, again and again until nobody else was quicker.
    pub(super) async fn change(
        &self,
        id: &str,
        mut change: impl FnMut(&mut SessionRecord) -> Result<(), Error>,
    ) -> Result<SessionRecord, Error> {
        let mut conflict = StoreError::Conflict { id: id.to_owned() };
        for _ in 0..CONFLICTS {
            let mut record = self.record(id).await?;
            change(&mut record)?;
            match self.store.put(record).await {
                Ok(record) => return Ok(record),
                Err(error @ StoreError::Conflict { .. }) => conflict = error,
                Err(error) => return Err(error.into()),
            }
        }
        Err(conflict.into())
    }

    pub(super) async fn record(&self, id: &str) -> Result<SessionRecord, Error> {
        let record = self.store.get(id).await?;
        Ok(record.ok_or_else(|| StoreError::NotFound { id: id.to_owned() })?)
    }

    /// Takes an event of a session down, if it is new and worth it.
    fn take_down(&self, id: &str, event: &Event) {
        if event.origin() != Origin::Live {
            return;
        }
        let (kind, payload) = match event {
            Event::Update(update) => (StoredEventKind::Update, update.raw().clone()),
            Event::SessionEnded(ended) => (StoredEventKind::Ended, json!(ended.termination)),
            Event::Permission(request) => (StoredEventKind::Permission, request.raw().clone()),
            Event::Question(request) => (StoredEventKind::Question, request.raw().clone()),
            Event::Other { method, params, .. } => {
                (StoredEventKind::Notification, json!({"method": method, "params": params}))
            }
            Event::Gap(gap) => (StoredEventKind::Gap, json!({"from": gap.from, "to": gap.to})),
            Event::Lagged(count) => (StoredEventKind::Lost, json!({ "count": count })),
            _ => return,
        };
        self.recorder().record(id, kind, payload);
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Nothing that the agent had is there any more, as far as is known.
    fn lose_all(&mut self) {
        self.bound.values_mut().for_each(|binding| binding.live = false);
    }

    /// The server began anew. What was bound since the stream was lost was bound to the new one.
    fn lose_older(&mut self) {
        let losses = self.losses;
        self.bound.values_mut().for_each(|binding| binding.live &= binding.losses >= losses);
    }

    /// The stream of events is there, or is not.
    fn notice(&mut self, away: bool) {
        self.losses += u64::from(away && !self.away);
        self.away = away;
    }

    /// Keeps an event of a session that nobody keeps yet.
    fn remember(&mut self, session: &str, event: &Event) {
        if event.origin() != Origin::Live || !matches!(event, Event::Update(_) | Event::Other { .. }) {
            return;
        }
        let place = self.strangers.iter().position(|(stranger, _)| stranger == session);
        let events = match place {
            Some(place) => self.strangers.get_mut(place),
            None => {
                if self.strangers.len() == STRANGERS {
                    self.strangers.pop_front();
                }
                self.strangers.push_back((session.to_owned(), VecDeque::new()));
                self.strangers.back_mut()
            }
        };
        if let Some((_, events)) = events.filter(|(_, events)| events.len() < STRANGER_EVENTS) {
            events.push_back(event.clone());
        }
    }
}

impl Observer for Ledger {
    fn happened(&self, event: &Event) {
        let mut books = self.books();
        let Some(session) = event.session_id() else {
            match event {
                Event::ServerRestarted => books.lose_older(),
                Event::Connection(ConnectionState::Reconnecting { .. }) => books.notice(true),
                Event::Reconnected { .. } => books.notice(false),
                Event::Connection(
                    ConnectionState::AgentEnded(_) | ConnectionState::Disconnected | ConnectionState::Lost(_),
                ) => books.lose_all(),
                Event::Gap(_) | Event::Lagged(_) => {
                    let live = books.bound.iter().filter(|(_, binding)| binding.live);
                    live.for_each(|(id, _)| self.take_down(id, event));
                }
                _ => {}
            }
            return;
        };
        let Some(id) = books.kept.get(session).cloned() else { return books.remember(session, event) };
        if let Some(binding) = books.bound.get_mut(&id) {
            if event.origin() == Origin::Live {
                binding.last_active = SystemTime::now().into();
            }
            if matches!(event, Event::SessionEnded(ended) if ended.origin == Origin::Live) {
                binding.live = false;
            }
        }
        self.take_down(&id, event);
    }

    fn turn_ended(&self, session: &str, outcome: &Result<TurnOutcome, Error>) {
        let mut books = self.books();
        let Some(id) = books.kept.get(session).cloned() else { return };
        if let Some(binding) = books.bound.get_mut(&id) {
            binding.last_active = SystemTime::now().into();
            binding.live &= !outcome.as_ref().is_err_and(is_unknown_session);
        }
        let payload = match outcome {
            Ok(outcome) => json!({"stopReason": outcome.stop_reason, "answer": outcome.raw}),
            Err(error) => json!({"error": error.to_string(), "termination": error.termination()}),
        };
        self.recorder().record(&id, StoredEventKind::TurnEnded, payload);
    }
}

/// Whether a failure says that the session, or everything, is gone on the other side.
pub(super) fn is_unknown_session(error: &Error) -> bool {
    /// What agents say of a session that they do not have.
    const NOT_FOUND: i64 = -32002;
    match error {
        Error::AgentEnded(_) | Error::ServerRestarted { .. } | Error::NotConnected => true,
        Error::ConnectionEnded { reason, .. } => *reason != LostReason::Unauthorized,
        Error::Http(http) => matches!(http.status, 400 | 404 | 410),
        Error::Rpc { error, .. } => {
            let words = error.message.to_lowercase();
            error.code == NOT_FOUND
                || (words.contains("session") && (words.contains("not found") || words.contains("unknown")))
                || error.data.as_ref().and_then(|data| data.get("sessionId")).is_some_and(Value::is_string)
                    && words.contains("not found")
        }
        _ => false,
    }
}
