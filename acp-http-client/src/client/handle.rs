//! The handle of a connection.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Duration, Instant},
};
use tracing::Instrument;

use super::{
    builder::AcpHttpClientBuilder, control::Control, core::Core, request::Request, session::SessionHandle,
};
use crate::{
    ConnectionState, Diagnostics, EndReason, Error, EventId, Events, Json, Phase, SessionId, Timeout,
    outbound::{Slot, send_one_way},
    rpc::Outgoing,
    transport::PostFailure,
};

/// A connection to an agent behind an HTTP server.
///
/// It is cheap to clone, and all clones share one connection. Nothing is sent before the first request. Dropping the
/// last clone ends all local tasks at once, without a message to the server; [`close`](Self::close) sends one. Each
/// pending request, and each agent request that is being handled, holds a clone.
#[derive(Clone)]
pub struct AcpHttpClient {
    handle: Arc<Handle>,
}

/// Counts the handles of the application apart from the tasks of the connection.
pub(crate) struct Handle {
    core: Arc<Core>,
    /// Guards the one close and its outcome; held to start it.
    closing: Mutex<Option<Closing>>,
}

struct Closing {
    outcome: watch::Receiver<Option<CloseOutcome>>,
    /// Owns the task that closes, so that it lives as long as a handle does.
    _task: JoinSet<()>,
}

/// The outcome of closing a connection. Locally the connection has ended in any case.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CloseOutcome {
    /// The server confirmed that the connection is closed.
    Confirmed,
    /// There was nothing to close: no message reached the server, or the server had ended the connection.
    NothingToClose,
    /// The server did not confirm within the timeout, or refused. Some servers do not respond while an agent runs.
    Unconfirmed(Error),
}

impl AcpHttpClient {
    /// Creates a builder for a client of the server at this URL.
    pub fn builder(base_url: impl AsRef<str>) -> AcpHttpClientBuilder {
        AcpHttpClientBuilder::new(base_url.as_ref())
    }

    /// Creates a client with default settings.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL is invalid.
    pub fn new(base_url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(base_url).build()
    }

    pub(crate) fn from_core(core: Arc<Core>) -> Self {
        let handle = Arc::new(Handle { core: core.clone(), closing: Mutex::new(None) });
        // The core is new, so the cell is empty.
        let _ = core.handle.set(Arc::downgrade(&handle));
        Self { handle }
    }

    pub(crate) fn from_handle(handle: Arc<Handle>) -> Self {
        Self { handle }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// Calls a method and parses its result. Use it for extensions and for methods without a typed function.
    pub fn request<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Request<R> {
        Request::typed(self, method, params)
    }

    /// Calls a method and returns its result as JSON text.
    pub fn request_raw(&self, method: &str, params: &(impl Serialize + ?Sized)) -> Request<Json> {
        Request::raw(self, method, params)
    }

    /// Creates a handle to a session. Sends nothing and does not check whether the session exists.
    pub fn session(&self, id: impl Into<SessionId>) -> SessionHandle {
        SessionHandle::new(self.clone(), id.into())
    }

    /// Returns the controls for layers above this crate.
    pub fn control(&self) -> Control<'_> {
        Control(self)
    }

    /// Sends a notification. A notification about a session is sent in order with the other messages of the session.
    pub fn notify(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> BoxFuture<'static, Result<(), Error>> {
        let message = self.encode_notification(method, params);
        let (client, method) = (self.clone(), method.to_owned());
        let span = client.core().spans.notification(&method);
        let sending = async move {
            let (body, session) = message?;
            client.core().check_alive()?;
            let _slot = match &session {
                Some(session) => Some(enter_outbox(client.core(), session, &method).await?),
                None => None,
            };
            client.core().check_alive()?;
            client.core().tap_outbound(&body);
            let sent = send_one_way(client.core(), &method, body, session).await;
            sent.map_err(PostFailure::into_error)
        };
        Box::pin(sending.instrument(span))
    }

    pub(super) fn encode_notification(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Result<(Bytes, Option<Arc<str>>), Error> {
        let encode_error = |source| Error::Encode { method: method.to_owned(), source: Arc::new(source) };
        let Outgoing { body, session } = Outgoing::notification(method, params).map_err(encode_error)?;
        Ok((body, session))
    }

    /// Subscribes to all later events of the connection.
    pub fn events(&self) -> Events {
        self.core().hub.subscribe(self.core().options.limits.subscriber)
    }

    /// Returns the state of the connection.
    pub fn state(&self) -> ConnectionState {
        self.core().state()
    }

    /// Waits until the connection has ended, and returns the reason.
    pub async fn ended(&self) -> EndReason {
        let mut changes = self.core().state_changes();
        loop {
            if let ConnectionState::Terminated(reason) = &*changes.borrow_and_update() {
                return reason.clone();
            }
            if changes.changed().await.is_err() {
                return EndReason::Dropped;
            }
        }
    }

    /// Returns the id of the last event before any missing event. Pass it to
    /// [`resume_from`](AcpHttpClientBuilder::resume_from).
    pub fn last_event_id(&self) -> Option<EventId> {
        self.core().links.connection(self.core()).last_event_id()
    }

    /// Returns the connection id that the server assigned, if it did. It may be a secret.
    pub fn connection_id(&self) -> Option<String> {
        let id = self.core().transport.connection_id()?;
        id.to_str().ok().map(str::to_owned)
    }

    /// Returns a snapshot of the connection for a support request. It contains neither secrets nor message contents.
    pub fn diagnostics(&self) -> Diagnostics {
        Diagnostics::of(self.core())
    }

    /// Closes the connection, locally and on the server, within
    /// [`Timeouts::close`](crate::Timeouts#structfield.close).
    ///
    /// Every pending request fails with [`EndReason::Closed`]. Further calls return the same outcome.
    pub async fn close(&self) -> CloseOutcome {
        if tokio::runtime::Handle::try_current().is_err() {
            return CloseOutcome::Unconfirmed(Error::no_runtime());
        }
        let mut outcome = self.handle.start_closing();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(CloseOutcome::NothingToClose),
            // The runtime is shutting down and has dropped the task.
            Err(_) => CloseOutcome::NothingToClose,
        }
    }
}

impl Handle {
    /// Closing runs in a separate task, so that dropping the caller does not interrupt it.
    fn start_closing(&self) -> watch::Receiver<Option<CloseOutcome>> {
        let mut closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let closing = closing.get_or_insert_with(|| {
            let (sender, outcome) = watch::channel(None);
            let core = self.core.clone();
            let mut task = JoinSet::new();
            task.spawn(async move {
                sender.send_replace(Some(close(&core).await));
            });
            Closing { outcome, _task: task }
        });
        closing.outcome.clone()
    }
}

/// Waits for the turn to send a notification about a session.
async fn enter_outbox(core: &Core, session: &Arc<str>, method: &str) -> Result<Slot, Error> {
    let (started, limit) = (Instant::now(), core.options.timeouts.headers);
    let slot = tokio::time::timeout(limit, core.outbox.enter(session)).await;
    slot.map_err(|_| timeout(core, Phase::Outbox, method, started.elapsed()))
}

async fn close(core: &Arc<Core>) -> CloseOutcome {
    let before = core.state();
    let tasks = core.terminate(EndReason::Closed);
    let gone = matches!(before.end_reason(), Some(EndReason::ServerGone(_) | EndReason::Closed));
    let has_nothing = gone || !core.has_posted();
    let (started, timeouts) = (Instant::now(), &core.options.timeouts);
    // A handler that blocks its thread delays neither the request nor, for long, the close.
    let tasks = tokio::time::timeout(timeouts.close, futures::future::join_all(tasks));
    let outcome = async {
        if has_nothing {
            return CloseOutcome::NothingToClose;
        }
        let delete = core.transport.delete(timeouts.close_response);
        match tokio::time::timeout(timeouts.close, delete).await {
            Ok(Some(Ok(()))) => CloseOutcome::Confirmed,
            Ok(Some(Err(error))) => CloseOutcome::Unconfirmed(error),
            Ok(None) | Err(_) => {
                CloseOutcome::Unconfirmed(timeout(core, Phase::Close, "close", started.elapsed()))
            }
        }
    };
    tokio::join!(outcome, tasks).0
}

fn timeout(core: &Core, phase: Phase, what: &str, elapsed: Duration) -> Error {
    Error::Timeout(Box::new(Timeout {
        phase,
        what: what.to_owned(),
        elapsed,
        last_event_age: core.last_event_age(),
        state: core.state(),
        cause: None,
    }))
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.terminate(EndReason::Dropped);
    }
}

impl fmt::Debug for AcpHttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcpHttpClient").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}
