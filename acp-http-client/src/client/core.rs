//! What every handle, call and task of one connection shares.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES as METHODS;
use bytes::Bytes;
use serde::Deserialize;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Duration, Instant},
};

use super::{
    courier::{self, Courier},
    gate::Gate,
    handle::Handle,
    tasks::Tasks,
    ticket::{Via, Waiter},
};
use crate::{
    AcpHttpClient, ConnectionState, Direction, EndReason, Envelope, Error, Event, EventId, Limits, Profile,
    ReconnectPolicy, RpcError, Timeouts,
    error::Cause,
    events::{Hub, Stored, is_conversation, peek_session},
    handler::AnyHandler,
    inbound::{AgentRequestTable, Links},
    rpc::{Ids, Pending},
    tap::{Hook, Tap, TapBook},
    transport::{Post, PostFailure, Posted, Transport},
};

/// How a connection behaves.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) profile: Profile,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) cancel_on_drop: bool,
    pub(crate) resume_from: Option<String>,
    pub(crate) handler: Arc<dyn AnyHandler>,
    pub(crate) tap: Option<Tap>,
    pub(crate) hook: Option<Hook>,
}

/// An answer to one of our requests.
#[derive(Debug, Clone)]
pub(crate) struct Settled {
    pub(crate) outcome: Result<Bytes, RpcError>,
    pub(crate) via: Via,
}

/// Whether a server copies its answers to the event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Echo {
    Unknown,
    Copies,
    /// Answers come in the body alone.
    BodyOnly,
}

/// Counters for `diagnostics()`.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) messages: AtomicU64,
    pub(crate) reconnects: AtomicU64,
    pub(crate) gaps: AtomicU64,
    pub(crate) repeats: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) ignored: AtomicU64,
    pub(crate) oversize: AtomicU64,
    pub(crate) restarts: AtomicU64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) transport: Transport,
    pub(crate) ids: Ids,
    /// Guards the table of requests that wait; held for a look-up.
    pending: Mutex<Pending<Waiter>>,
    pub(crate) hub: Hub,
    state: watch::Sender<ConnectionState>,
    pub(crate) gate: Gate,
    pub(crate) links: Links,
    pub(crate) calls: AgentRequestTable,
    pub(crate) tasks: Tasks,
    pub(crate) courier: Courier,
    pub(crate) stats: Stats,
    echo: AtomicU8,
    /// When the first answer came in a body, to learn whether it is copied to the stream.
    first_body: OnceLock<Instant>,
    /// Guards the sessions whose history is being replayed, with what each pending call to take one up replays.
    loading: Mutex<HashMap<Arc<str>, Vec<Replay>>>,
    posted: AtomicBool,
    /// Guards who waits for a session to fall silent, and when it last spoke; held for a look-up.
    watched: Mutex<Vec<Watched>>,
    /// How many are watched, so that a message need not take the lock when none is.
    watching: AtomicUsize,
    pub(crate) tap_book: TapBook,
    pub(crate) handle: OnceLock<Weak<Handle>>,
}

impl Core {
    pub(crate) fn new(options: Options, transport: Transport, ids: Ids, bootstrap: bool) -> Self {
        Self {
            transport,
            ids,
            pending: Mutex::default(),
            hub: Hub::default(),
            state: watch::Sender::new(ConnectionState::Connecting),
            gate: Gate::new(bootstrap),
            links: Links::new(),
            calls: AgentRequestTable::new(&options.limits),
            tasks: Tasks::new(),
            courier: Courier::default(),
            stats: Stats::default(),
            echo: AtomicU8::new(Echo::Unknown as u8),
            first_body: OnceLock::new(),
            loading: Mutex::default(),
            posted: AtomicBool::new(false),
            watched: Mutex::default(),
            watching: AtomicUsize::new(0),
            tap_book: TapBook::default(),
            handle: OnceLock::new(),
            options,
        }
    }

    pub(crate) fn pending(&self) -> MutexGuard<'_, Pending<Waiter>> {
        lock(&self.pending)
    }

    pub(crate) fn client(&self) -> Option<AcpHttpClient> {
        self.handle.get()?.upgrade().map(AcpHttpClient::from_handle)
    }

    pub(crate) fn state(&self) -> ConnectionState {
        self.state.borrow().clone()
    }

    pub(crate) fn state_changes(&self) -> watch::Receiver<ConnectionState> {
        self.state.subscribe()
    }

    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        match &*self.state.borrow() {
            ConnectionState::Terminated(reason) => Err(Error::terminated(reason.clone())),
            _ => Ok(()),
        }
    }

    /// Changes the state, unless the connection has ended, and tells subscribers.
    pub(crate) fn set_state(&self, new: ConnectionState) {
        let changed = self.state.send_if_modified(|state| {
            let changes = !state.is_terminated() && *state != new;
            if changes {
                *state = new.clone();
            }
            changes
        });
        if changed {
            tracing::debug!(state = %new, "connection state");
            self.publish(Event::State(new));
        }
    }

    pub(crate) fn publish(&self, event: Event) {
        self.hub.publish(Stored::Other(Box::new(event)));
    }

    /// The one end of a connection: every waiter fails with the reason, subscribers see it, every task ends.
    /// Gives the tasks, for whoever wants to see them gone.
    pub(crate) fn terminate(&self, reason: EndReason) -> Option<JoinSet<()>> {
        let state = ConnectionState::Terminated(reason.clone());
        let first = self.state.send_if_modified(|present| {
            let first = !present.is_terminated();
            if first {
                *present = state.clone();
            }
            first
        });
        if !first {
            return None;
        }
        match &reason {
            EndReason::Closed | EndReason::Dropped => tracing::debug!(%reason, "connection ended"),
            _ => tracing::error!(%reason, "connection ended"),
        }
        let waiters = self.pending().take_all();
        for waiter in waiters {
            waiter.settle(Err(Error::cut_off(reason.clone())));
        }
        for body in self.tap_book.end() {
            self.tap(Direction::Inbound, None, &body);
        }
        self.calls.clear();
        self.options.handler.end();
        self.links.end();
        self.hub.end(Event::State(state));
        self.tasks.end()
    }

    /// Fails the calls of one session, or all of them.
    pub(crate) fn fail_calls(&self, session: Option<&str>, error: &Error) -> usize {
        let waiters =
            self.pending().take_where(|waiter| session.is_none() || waiter.session.as_deref() == session);
        let count = waiters.len();
        for waiter in waiters {
            waiter.settle(Err(error.clone()));
        }
        count
    }

    pub(crate) fn interrupt(&self, session: Option<&str>, reason: Cause) -> usize {
        self.fail_calls(session, &Error::Interrupted(reason))
    }

    /// The server began anew: what was sent to the old one, before this moment, and has no POST left to wait for is
    /// lost.
    pub(crate) fn fail_unconfirmed(&self, before: Instant) {
        let waiters = self.pending().take_where(|waiter| waiter.unconfirmed.is_some_and(|at| at <= before));
        for waiter in waiters {
            let method = waiter.method.to_string();
            waiter.settle(Err(Error::ServerRestarted { method }));
        }
    }

    pub(crate) fn echo(&self) -> Echo {
        match self.echo.load(Ordering::Acquire) {
            value if value == Echo::Copies as u8 => Echo::Copies,
            value if value == Echo::BodyOnly as u8 => Echo::BodyOnly,
            _ => Echo::Unknown,
        }
    }

    pub(crate) fn learn_echo(&self, echo: Echo) {
        self.echo.store(echo as u8, Ordering::Release);
    }

    /// A POST was answered in its body.
    pub(crate) fn mark_answer(&self) -> Instant {
        *self.first_body.get_or_init(Instant::now)
    }

    /// When the first POST was answered in its body.
    pub(crate) fn first_answer(&self) -> Option<Instant> {
        self.first_body.get().copied()
    }

    /// Whether there is something on the server to close.
    pub(crate) fn has_posted(&self) -> bool {
        let known = !self.options.profile.waits_for_id() || self.transport.connection_id().is_some();
        known && self.posted.load(Ordering::Acquire)
    }

    /// Watches one session's messages for as long as the guard lives.
    pub(crate) fn watch(self: &Arc<Self>, session: Option<Arc<str>>) -> Watch {
        let number = self.ids.next();
        lock(&self.watched).push(Watched { number, session, last: None });
        self.watching.fetch_add(1, Ordering::AcqRel);
        Watch { core: self.clone(), number }
    }

    /// A message came: tells those who watch its session. Costs nothing while nobody does.
    pub(crate) fn session_spoke(&self, params: &[u8], at: Option<Instant>) {
        if self.watching.load(Ordering::Acquire) == 0 {
            return;
        }
        let session = peek_session(params);
        for watched in lock(&self.watched).iter_mut() {
            if watched.session.is_none() || watched.session.as_deref() == session.as_deref() {
                watched.last = at;
            }
        }
    }

    pub(crate) fn tap_outbound(&self, body: &Bytes) {
        self.tap(Direction::Outbound, None, body);
    }

    /// An answer came in a body.
    pub(crate) fn tapped_body(&self, number: u64, body: &Bytes) {
        if self.options.tap.is_some()
            && let Some(body) = self.tap_book.body(number, body, self.echo() == Echo::Copies)
        {
            self.tap(Direction::Inbound, None, &body);
        }
    }

    pub(crate) fn tap(&self, direction: Direction, event_id: Option<&EventId>, raw: &Bytes) {
        if let Some(tap) = &self.options.tap {
            let event_id = event_id.map(EventId::as_text);
            tap.call(Envelope { direction, event_id: event_id.as_deref(), raw });
        }
    }

    /// Posts a message, with everything that happens around a POST.
    pub(crate) async fn post(self: Arc<Self>, mut post: Post) -> Result<Posted, PostFailure> {
        self.start_streams();
        let pass = self.gate.enter().await;
        post.bootstrap = pass.is_some();
        self.check_alive().map_err(PostFailure::NotTaken)?;
        // From here on the server may know of us, and a close has to tell it.
        let first = !self.posted.swap(true, Ordering::AcqRel);
        let result = self.transport.post(&post).await;
        match &result {
            Ok(_) => {
                self.gate.open();
                self.start_streams();
            }
            Err(PostFailure::NotTaken(_)) if first => self.posted.store(false, Ordering::Release),
            Err(PostFailure::NotTaken(_)) => {}
            Err(PostFailure::Failed(error) | PostFailure::Unknown(error)) => {
                if self.is_gone(error) {
                    let reason = EndReason::ServerGone(Arc::new(error.clone()));
                    self.terminate(reason.clone());
                    return Err(PostFailure::Failed(Error::cut_off(reason)));
                }
            }
        }
        result
    }

    /// Whether an error means that the server has forgotten the connection id it gave us.
    fn is_gone(&self, error: &Error) -> bool {
        let status = error.http().map(|http| http.status);
        self.transport.connection_id().is_some() && matches!(status, Some(404 | 410))
    }

    /// Opens the stream of the connection as soon as the dialect allows it.
    pub(crate) fn start_streams(self: &Arc<Self>) {
        let ready = !self.options.profile.waits_for_id() || self.transport.connection_id().is_some();
        if ready && self.links.start_connection(self) {
            self.tasks.spawn(courier::run(self.clone()));
        }
    }

    /// An answer was given to one of our requests: sessions begin and end with some of them.
    pub(crate) fn on_answer(self: &Arc<Self>, waiter: &Waiter, outcome: &Result<Bytes, RpcError>) {
        if !self.options.profile.has_session_streams() {
            return;
        }
        let method = &*waiter.method;
        if method == METHODS.session_new || method == METHODS.session_fork {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Created {
                session_id: Arc<str>,
            }
            let created =
                outcome.as_ref().ok().and_then(|result| serde_json::from_slice::<Created>(result).ok());
            if let Some(created) = created {
                self.links.start_session(self, &created.session_id);
            }
        } else if (method == METHODS.session_close || method == METHODS.session_delete)
            && outcome.is_ok()
            && let Some(session) = &waiter.session
        {
            self.links.stop_session(session);
        }
    }

    /// Marks a session as being loaded, for as long as the guard lives.
    pub(crate) fn loading(self: &Arc<Self>, session: Arc<str>, replay: Replay) -> Loading {
        self.loading_sessions().entry(session.clone()).or_default().push(replay);
        Loading { core: self.clone(), session, replay }
    }

    /// Whether an update with these parameters is of a session that is being loaded, and one that is replayed then.
    pub(crate) fn is_replayed(&self, params: &[u8]) -> bool {
        let loading = self.loading_sessions();
        if loading.is_empty() {
            return false;
        }
        let replays = peek_session(params).and_then(|session| loading.get(&*session));
        replays.is_some_and(|replays| replays.contains(&Replay::Everything) || is_conversation(params))
    }

    fn loading_sessions(&self) -> MutexGuard<'_, HashMap<Arc<str>, Vec<Replay>>> {
        lock(&self.loading)
    }

    pub(crate) fn last_event_age(&self) -> Option<Duration> {
        self.links.connection().last_message().map(|at| at.elapsed())
    }
}

#[derive(Debug)]
struct Watched {
    number: u64,
    /// The session that is watched; `None` for all of them.
    session: Option<Arc<str>>,
    last: Option<Instant>,
}

/// Knows when a session last spoke since the watch began.
#[derive(Debug)]
pub(crate) struct Watch {
    core: Arc<Core>,
    number: u64,
}

impl Watch {
    pub(crate) fn last(&self) -> Option<Instant> {
        let watched = lock(&self.core.watched);
        watched.iter().find(|watched| watched.number == self.number).and_then(|watched| watched.last)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.core.watching.fetch_sub(1, Ordering::AcqRel);
        lock(&self.core.watched).retain(|watched| watched.number != self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What of a session is its history while it is taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    Everything,
    /// What was said and done in it. What the session offers now is news.
    Conversation,
}

/// A session whose history is being replayed.
#[derive(Debug)]
pub(crate) struct Loading {
    core: Arc<Core>,
    session: Arc<str>,
    replay: Replay,
}

impl Drop for Loading {
    fn drop(&mut self) {
        let mut loading = self.core.loading_sessions();
        if let Some(replays) = loading.get_mut(&self.session) {
            if let Some(place) = replays.iter().position(|replay| *replay == self.replay) {
                replays.swap_remove(place);
            }
            if replays.is_empty() {
                loading.remove(&self.session);
            }
        }
    }
}
