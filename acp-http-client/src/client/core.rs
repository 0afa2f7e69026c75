//! The state that all handles, calls and tasks of a connection share.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use agent_client_protocol_schema::v1::AGENT_METHOD_NAMES as METHODS;
use bytes::Bytes;
use serde::Deserialize;
use tokio::{sync::watch, task::JoinHandle, time::Duration};

use super::{handle::Handle, spans::Spans, tasks::Tasks};
use crate::{
    AcpHttpClient, ConnectionState, Dialect, Direction, EndReason, Envelope, Error, Event, EventId, Limits,
    ReconnectPolicy, Timeouts,
    error::Cause,
    events::{Hub, Stored},
    handler::AnyHandler,
    inbound::{AgentRequestTable, Links, flush},
    outbound::{Gate, KeptPosts, Notices, Outbox, Waiter, run_notices},
    printable::OneLine,
    rpc::{Ids, Pending, RpcOutcome},
    tap::{Hook, Refusals, Tap, TapBook},
    transport::{Post, PostFailure, Posted, Transport},
};

/// The settings of a connection.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) dialect: Dialect,
    pub(crate) timeouts: Timeouts,
    pub(crate) limits: Limits,
    pub(crate) reconnect: ReconnectPolicy,
    pub(crate) cancel_on_drop: bool,
    pub(crate) cancel_repeats: u32,
    pub(crate) probe: Option<(String, serde_json::Value)>,
    pub(crate) resume_from: Option<EventId>,
    pub(crate) handler: Arc<dyn AnyHandler>,
    pub(crate) tap: Option<Tap>,
    pub(crate) hook: Option<Hook>,
    pub(crate) refusals: Refusals,
    /// Whether agent requests of other clients' calls are dispatched too.
    pub(crate) all_agent_requests: bool,
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
    pub(crate) spans: Spans,
    pub(crate) transport: Transport,
    pub(crate) ids: Arc<Ids>,
    /// Guards the table of pending requests; held for a look-up.
    pending: Mutex<Pending<Waiter>>,
    pub(crate) hub: Hub,
    state: watch::Sender<ConnectionState>,
    pub(crate) gate: Gate,
    pub(crate) links: Links,
    pub(crate) calls: AgentRequestTable,
    pub(crate) tasks: Tasks,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) notices: Notices,
    pub(crate) stats: Stats,
    /// Whether the server has accepted a message.
    answered: AtomicBool,
    /// How many POSTs were begun, and how many of them certainly did not reach the server.
    posts: AtomicUsize,
    not_taken: AtomicUsize,
    /// The number of probes requested since the last one started.
    pub(crate) probes: AtomicUsize,
    pub(crate) tap_book: TapBook,
    pub(crate) handle: OnceLock<Weak<Handle>>,
    /// Receives the POSTs that are open when the connection ends, if they stay open.
    pub(crate) kept_posts: OnceLock<Weak<KeptPosts>>,
}

impl Core {
    pub(crate) fn new(options: Options, transport: Transport, ids: Ids, bootstrap: bool) -> Self {
        let spans = Spans::new(options.dialect.name());
        Self {
            transport,
            ids: Arc::new(ids),
            pending: Mutex::default(),
            hub: Hub::default(),
            state: watch::Sender::new(ConnectionState::Connecting),
            gate: Gate::new(bootstrap),
            links: Links::new(),
            calls: AgentRequestTable::new(&options.limits),
            tasks: Tasks::new(spans.span.clone()),
            spans,
            outbox: Arc::default(),
            notices: Notices::default(),
            stats: Stats::default(),
            answered: AtomicBool::new(false),
            posts: AtomicUsize::new(0),
            not_taken: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            tap_book: TapBook::new(options.limits.subscriber),
            handle: OnceLock::new(),
            kept_posts: OnceLock::new(),
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
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::no_runtime());
        }
        match &*self.state.borrow() {
            ConnectionState::Terminated(reason) => Err(Error::terminated(reason.clone())),
            _ => Ok(()),
        }
    }

    /// Changes the state, unless the connection has ended, and publishes the change.
    pub(crate) fn set_state(&self, new: ConnectionState) {
        let changed = self.state.send_if_modified(|state| {
            let changes = !state.is_terminated() && *state != new;
            if changes {
                *state = new.clone();
            }
            changes
        });
        if changed {
            self.spans.span.in_scope(|| tracing::debug!(state = %new, "connection state"));
            self.publish(Event::State(new));
        }
    }

    pub(crate) fn publish(&self, event: Event) {
        self.hub.publish(Stored::Other(Box::new(event)));
    }

    /// Ends the connection: every waiter fails with the reason, subscribers receive it, and every task ends. Returns
    /// the tasks, so that the caller can wait for their end.
    pub(crate) fn terminate(self: &Arc<Self>, reason: EndReason) -> Vec<JoinHandle<()>> {
        let state = ConnectionState::Terminated(reason.clone());
        let first = self.state.send_if_modified(|present| {
            let first = !present.is_terminated();
            if first {
                *present = state.clone();
            }
            first
        });
        if !first {
            return Vec::new();
        }
        let _entered = self.spans.span.enter();
        match &reason {
            EndReason::Closed | EndReason::Dropped => {
                tracing::debug!(reason = %OneLine(&reason), "connection ended")
            }
            _ => tracing::error!(reason = %OneLine(&reason), "connection ended"),
        }
        // What has arrived is delivered before everything else ends.
        for link in self.links.end() {
            flush(self, &link);
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
        self.hub.end(Event::State(state));
        self.tasks.end()
    }

    /// Fails the pending requests of one session, or all of them.
    pub(crate) fn fail_calls(&self, session: Option<&str>, error: &Error) -> usize {
        let waiters =
            self.pending().take_where(|waiter| session.is_none() || waiter.session.as_deref() == session);
        let count = waiters.len();
        for waiter in waiters {
            waiter.settle(Err(error.clone()));
        }
        self.end_abandoned_turns(session);
        count
    }

    /// Ends the turns of one session, or all of them, that were cancelled and whose futures were dropped.
    pub(crate) fn end_abandoned_turns(&self, session: Option<&str>) {
        for number in self.outbox.cancelled_turns(session) {
            if self.pending().get_mut(number).is_none() {
                self.outbox.end_turn(number);
                self.links.all().iter().for_each(|link| link.core().forget(number));
            }
        }
    }

    /// Fails the calls of a session whose stream is refused. They may have run: only their responses are lost.
    pub(crate) fn fail_session(&self, session: Option<&Arc<str>>, error: &Error) {
        let waiters = self.pending().take_where(|waiter| waiter.session.as_ref() == session);
        for waiter in waiters {
            let method = waiter.method.to_string();
            waiter.settle(Err(Error::ConnectionLost { method, source: Arc::new(error.clone()) }));
        }
    }

    pub(crate) fn interrupt(&self, session: Option<&str>, reason: Cause) -> usize {
        self.fail_calls(session, &Error::Interrupted(reason))
    }

    /// Whether an agent request about this session is addressed to this client. On a shared endpoint every client
    /// receives it, and the first response counts.
    pub(crate) fn is_addressed(&self, session: Option<&str>) -> bool {
        let is_shared = self.options.dialect.shared && self.transport.connection_id().is_none();
        if !is_shared || self.options.all_agent_requests {
            return true;
        }
        let is_about = |waiter: &Waiter| waiter.session.as_deref() == session;
        session.is_some_and(|session| {
            self.pending().iter().any(|(_, waiter)| is_about(waiter)) || self.outbox.has_turn(session)
        })
    }

    /// The server has accepted a message.
    pub(crate) fn mark_answered(&self) {
        self.answered.store(true, Ordering::Release);
    }

    pub(crate) fn was_answered(&self) -> bool {
        self.answered.load(Ordering::Acquire)
    }

    /// Whether there is something on the server to close.
    pub(crate) fn has_posted(&self) -> bool {
        let known = !self.options.dialect.waits_for_id() || self.transport.connection_id().is_some();
        known && self.posts.load(Ordering::Acquire) > self.not_taken.load(Ordering::Acquire)
    }

    pub(crate) fn tap_outbound(&self, body: &Bytes) {
        self.tap(Direction::Outbound, None, body);
    }

    /// A response arrived in a body; `echoed` is whether the stream will deliver it too.
    pub(crate) fn tapped_body(&self, number: u64, body: &Bytes, echoed: bool) {
        if self.options.tap.is_some() {
            for body in self.tap_book.body(number, body, echoed) {
                self.tap(Direction::Inbound, None, &body);
            }
        }
    }

    pub(crate) fn tap(&self, direction: Direction, event_id: Option<&EventId>, raw: &Bytes) {
        if let Some(tap) = &self.options.tap {
            tap.call(Envelope { direction, event_id, raw });
        }
    }

    /// Posts a message, and records whether the server accepted it.
    pub(crate) async fn post(self: Arc<Self>, mut post: Post) -> Result<Posted, PostFailure> {
        self.start_streams();
        let pass = self.gate.enter().await;
        post.bootstrap = pass.is_some();
        self.check_alive().map_err(PostFailure::NotTaken)?;
        // From here on the server may know this connection, and a close has to send a DELETE.
        self.posts.fetch_add(1, Ordering::AcqRel);
        let result = self.transport.post(&post).await;
        match &result {
            Ok(_) => {
                self.gate.open();
                self.start_streams();
            }
            Err(PostFailure::NotTaken(_)) => {
                self.not_taken.fetch_add(1, Ordering::AcqRel);
            }
            Err(PostFailure::Failed(error) | PostFailure::Unsaid(error) | PostFailure::Unknown(error)) => {
                if self.is_gone(error) {
                    let reason = EndReason::ServerGone(Arc::new(error.clone()));
                    self.terminate(reason.clone());
                    // The server has refused this message.
                    return Err(PostFailure::Failed(Error::terminated(reason)));
                }
            }
        }
        result
    }

    /// Whether an error means that the server no longer knows the connection id that it assigned.
    fn is_gone(&self, error: &Error) -> bool {
        let status = error.http().map(|http| http.status);
        self.transport.connection_id().is_some() && matches!(status, Some(404 | 410))
    }

    /// Opens the stream of the connection as soon as the dialect allows it.
    pub(crate) fn start_streams(self: &Arc<Self>) {
        let ready = !self.options.dialect.waits_for_id() || self.transport.connection_id().is_some();
        if ready && self.links.start_connection(self) {
            self.tasks.spawn(run_notices(self.clone()));
        }
    }

    /// A request of this client got its response. Some responses begin or end a session.
    pub(crate) fn on_response(self: &Arc<Self>, waiter: &Waiter, outcome: &RpcOutcome) {
        if !self.options.dialect.has_session_streams() {
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
                self.links.establish(self, &created.session_id);
            }
        } else if (method == METHODS.session_close || method == METHODS.session_delete)
            && outcome.is_ok()
            && let Some(session) = &waiter.session
        {
            self.links.close_session(session);
        }
    }

    pub(crate) fn last_event_age(&self) -> Option<Duration> {
        self.links.connection(self).last_message().map(|at| at.elapsed())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
