//! Agent requests, and the registry of their handlers.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::params::Params;
use crate::error::RpcError;

/// The response of a handler.
pub type Response = Result<Value, RpcError>;

type Filter = dyn Fn(&AgentRequest) -> bool + Send + Sync;

/// Responds to agent requests. See [`Requests::register`].
///
/// An asynchronous function that takes an [`AgentRequest`] is a handler. Implement this trait for a type that
/// advertises capabilities or holds resources of sessions and connections.
pub trait RequestHandler: Send + Sync + 'static {
    /// Responds to a request.
    ///
    /// The future is dropped when the agent no longer waits for the response: when the turn is cancelled, and
    /// when the session or the connection ends. If the handler panics, the agent receives an internal error.
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response>;

    /// Returns a separate handler for a new connection to this agent.
    ///
    /// By default returns `None`: this handler serves all connections.
    fn for_connection(&self, agent: &str) -> Option<Arc<dyn RequestHandler>> {
        let _ = agent;
        None
    }

    /// Returns the capabilities to advertise to this agent, in the format of `clientCapabilities`.
    fn capabilities(&self, agent: &str) -> Map<String, Value> {
        let _ = agent;
        Map::new()
    }

    /// Called when a result could not be delivered. Release the resources that were created for it.
    fn undelivered(&self, method: &str, session_id: Option<&str>, result: &Value) -> BoxFuture<'static, ()> {
        let _ = (method, session_id, result);
        Box::pin(std::future::ready(()))
    }

    /// Called when a session has ended. Release its resources.
    fn session_ended(&self, session_id: &str) -> BoxFuture<'static, ()> {
        let _ = session_id;
        Box::pin(std::future::ready(()))
    }

    /// Called when the connection is being closed. Release all its resources.
    fn connection_ended(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Called when the connection is lost. Release all its resources without waiting.
    fn close(&self) {}
}

impl<F, R> RequestHandler for F
where
    F: Fn(AgentRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Response> + Send + 'static,
{
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        Box::pin(self(request))
    }
}

/// A request from the agent to this client, as passed to a [`RequestHandler`].
pub struct AgentRequest {
    method: Arc<str>,
    session_id: Option<Arc<str>>,
    params: Arc<Params>,
    next: Next,
    leaving: Arc<Notify>,
}

/// Where a request goes if its handler forwards it.
#[derive(Clone)]
struct Next {
    handlers: Arc<[Arc<dyn RequestHandler>]>,
    index: usize,
    fallback: Arc<dyn Fallback>,
}

/// Responds to requests that no handler selects.
pub(crate) trait Fallback: Send + Sync {
    fn respond(
        &self,
        method: Arc<str>,
        session_id: Option<Arc<str>>,
        params: Arc<Params>,
    ) -> BoxFuture<'static, Response>;
}

impl AgentRequest {
    pub(crate) fn new(
        method: Arc<str>,
        session_id: Option<Arc<str>>,
        params: Arc<Params>,
        fallback: Arc<dyn Fallback>,
    ) -> Self {
        let next = Next { handlers: Arc::new([]), index: 0, fallback };
        Self { method, session_id, params, next, leaving: Arc::default() }
    }

    /// Returns what leaves the request to another client of its endpoint: once it is notified, its handlers are dropped,
    /// and this client sends no response.
    pub(crate) fn leaving(&self) -> Arc<Notify> {
        Arc::clone(&self.leaving)
    }

    /// Returns the id of the request, unique among the open requests of a connection.
    #[must_use]
    pub fn id(&self) -> &str {
        self.params.id()
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Returns the session id in the request, if there is one.
    #[must_use]
    pub fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    /// Returns the parameters as received.
    #[must_use]
    pub fn params(&self) -> &Value {
        &self.params
    }

    /// Returns the response that the request would get without this handler.
    ///
    /// The request is passed to the handler that was registered before this one, and so on. If no handler is left, a
    /// permission request or a question is passed to the policy, the permission handler, the turn, or a deciding
    /// subscription. Any other request fails with "method not found".
    ///
    /// Use it, for example, in a handler that stores responses: it forwards the request, stores the response, and
    /// returns it.
    pub fn forward(self) -> BoxFuture<'static, Response> {
        let Self { method, session_id, params, next, leaving } = self;
        let Next { handlers, index, fallback } = next;
        match handlers.get(index).cloned() {
            Some(handler) => {
                let next = Next { handlers, index: index + 1, fallback };
                guarded(&*handler, Self { method, session_id, params, next, leaving })
            }
            None => fallback.respond(method, session_id, params),
        }
    }

    /// Passes the request to the first of these handlers.
    pub(crate) fn dispatch(mut self, handlers: Vec<Arc<dyn RequestHandler>>) -> BoxFuture<'static, Response> {
        self.next.handlers = handlers.into();
        self.forward()
    }
}

impl fmt::Debug for AgentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentRequest")
            .field("method", &self.method)
            .field("session_id", &self.session_id)
            .finish_non_exhaustive()
    }
}

/// Calls a handler. A panic becomes an error response.
fn guarded(handler: &dyn RequestHandler, request: AgentRequest) -> BoxFuture<'static, Response> {
    let panicked = || {
        tracing::error!("an agent request handler panicked");
        Err(RpcError::new(RpcError::INTERNAL_ERROR, "the handler panicked"))
    };
    match catch_unwind(AssertUnwindSafe(|| handler.handle(request))) {
        Ok(response) => {
            Box::pin(
                async move { AssertUnwindSafe(response).catch_unwind().await.unwrap_or_else(|_| panicked()) },
            )
        }
        Err(_) => Box::pin(std::future::ready(panicked())),
    }
}

/// The registry of a client's agent request handlers. See
/// [`SandboxAgentClient::requests`](crate::SandboxAgentClient::requests).
#[derive(Clone, Default)]
pub struct Requests {
    registry: Arc<Registry>,
}

#[derive(Default)]
struct Registry {
    /// Guards the registrations; held for a change or a copy.
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// Oldest first. Handlers that receive requests before all others are at the end.
    list: Vec<Entry>,
    /// How many handlers receive requests before all others.
    outermost: usize,
    last_id: u64,
}

#[derive(Clone)]
struct Entry {
    id: u64,
    is_outermost: bool,
    filter: Arc<Filter>,
    handler: Arc<dyn RequestHandler>,
}

impl Requests {
    /// Registers a handler for the agent requests that the filter selects.
    ///
    /// If several filters select a request, the handler that was registered last responds. It may
    /// [forward](AgentRequest::forward) the request to the handler registered before it.
    ///
    /// Handlers receive only requests that are addressed to this client. On a shared endpoint these are the requests
    /// of sessions with a pending call. The client advertises capabilities when it connects, so register a handler
    /// with capabilities before you connect.
    ///
    /// # Examples
    /// ```
    /// # fn example(client: &sandbox_agent_sdk::SandboxAgentClient) {
    /// use sandbox_agent_sdk::requests::AgentRequest;
    ///
    /// let registration = client.requests().register(
    ///     |request| request.method() == "_example/time",
    ///     |request: AgentRequest| async move { Ok(serde_json::json!({"session": request.session_id()})) },
    /// );
    /// registration.detach();
    /// # }
    /// ```
    pub fn register(
        &self,
        filter: impl Fn(&AgentRequest) -> bool + Send + Sync + 'static,
        handler: impl RequestHandler,
    ) -> Registration {
        self.insert(Arc::new(filter), Arc::new(handler), false)
    }

    /// Registers a handler that receives requests before all handlers of [`register`](Self::register).
    ///
    /// This includes handlers that are registered later. Use it for a layer that must see every request and its
    /// response, such as a layer that stores them. Normally it [forwards](AgentRequest::forward) the request.
    pub fn register_outermost(
        &self,
        filter: impl Fn(&AgentRequest) -> bool + Send + Sync + 'static,
        handler: impl RequestHandler,
    ) -> Registration {
        self.insert(Arc::new(filter), Arc::new(handler), true)
    }

    fn insert(
        &self,
        filter: Arc<Filter>,
        handler: Arc<dyn RequestHandler>,
        is_outermost: bool,
    ) -> Registration {
        let mut entries = self.registry.lock();
        entries.last_id += 1;
        let id = entries.last_id;
        let end = entries.list.len();
        let position = if is_outermost { end } else { end - entries.outermost };
        entries.outermost += usize::from(is_outermost);
        entries.list.insert(position, Entry { id, is_outermost, filter, handler });
        Registration { registry: Arc::downgrade(&self.registry), id }
    }

    /// Creates the handlers of one connection.
    pub(crate) fn connect(&self, agent: &str) -> ConnectionHandlers {
        ConnectionHandlers {
            registry: Arc::clone(&self.registry),
            agent: agent.to_owned(),
            serving: Mutex::default(),
        }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.registry.lock().list.len();
        f.debug_struct("Requests").field("handlers", &count).finish()
    }
}

/// A registered handler. Dropping this value removes the handler.
///
/// Requests that the handler is serving at that time are completed.
#[must_use = "a handler is removed when its registration is dropped"]
pub struct Registration {
    registry: Weak<Registry>,
    id: u64,
}

impl Registration {
    /// Keeps the handler registered for the lifetime of the client.
    pub fn detach(mut self) {
        self.registry = Weak::new();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut entries = registry.lock();
        let position = entries.list.iter().position(|entry| entry.id == self.id);
        let removed = position.map(|position| entries.list.remove(position));
        entries.outermost -= usize::from(removed.as_ref().is_some_and(|removed| removed.is_outermost));
        drop(entries);
        // Dropped after the lock is released, because its destructor is application code.
        drop(removed);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The handlers that serve one connection.
pub(crate) struct ConnectionHandlers {
    registry: Arc<Registry>,
    agent: String,
    /// Guards the handlers that have served this connection; held for a lookup or a change.
    serving: Mutex<Vec<(u64, Arc<dyn RequestHandler>)>>,
}

impl ConnectionHandlers {
    /// Returns the handlers that select a request: the outermost ones, then the others, the last registered first.
    pub(crate) fn of(&self, request: &AgentRequest) -> Vec<Arc<dyn RequestHandler>> {
        let entries = self.registry.lock().list.clone();
        let selects = |entry: &&Entry| {
            catch_unwind(AssertUnwindSafe(|| (entry.filter)(request))).unwrap_or_else(|_| {
                tracing::error!("the filter of an agent request handler panicked");
                false
            })
        };
        entries.iter().rev().filter(selects).map(|entry| self.serving(entry)).collect()
    }

    /// Returns the capabilities of all handlers. If several set one member, the last registered wins.
    pub(crate) fn capabilities(&self) -> Map<String, Value> {
        let entries = self.registry.lock().list.clone();
        let mut all = Map::new();
        for entry in &entries {
            let handler = self.serving(entry);
            let advertised = catch_unwind(AssertUnwindSafe(|| handler.capabilities(&self.agent)));
            all.extend(advertised.unwrap_or_default());
        }
        all
    }

    fn serving(&self, entry: &Entry) -> Arc<dyn RequestHandler> {
        let known = |serving: &[(u64, Arc<dyn RequestHandler>)]| {
            serving.iter().find(|(id, _)| *id == entry.id).map(|(_, handler)| Arc::clone(handler))
        };
        if let Some(handler) = known(&self.lock()) {
            return handler;
        }
        let own = catch_unwind(AssertUnwindSafe(|| entry.handler.for_connection(&self.agent)));
        let handler = own.ok().flatten().unwrap_or_else(|| Arc::clone(&entry.handler));
        let mut serving = self.lock();
        // Another task may have added it meanwhile.
        known(&serving).unwrap_or_else(|| {
            serving.push((entry.id, Arc::clone(&handler)));
            handler
        })
    }

    /// Notifies the handlers that a session has ended.
    pub(crate) async fn session_ended(&self, session_id: &str) {
        for handler in self.all() {
            released(|| handler.session_ended(session_id)).await;
        }
    }

    /// Notifies the handlers that the connection is being closed.
    pub(crate) async fn connection_ended(&self) {
        for handler in self.all() {
            released(|| handler.connection_ended()).await;
        }
    }

    /// Notifies the handlers that the connection is lost.
    pub(crate) fn close(&self) {
        for handler in self.all() {
            if catch_unwind(AssertUnwindSafe(|| handler.close())).is_err() {
                tracing::error!("an agent request handler panicked in `close`");
            }
        }
    }

    fn all(&self) -> Vec<Arc<dyn RequestHandler>> {
        self.lock().iter().map(|(_, handler)| Arc::clone(handler)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Arc<dyn RequestHandler>)>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ConnectionHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionHandlers").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// Waits for a handler to release resources. Logs a panic.
async fn released(release: impl FnOnce() -> BoxFuture<'static, ()>) {
    let done = match catch_unwind(AssertUnwindSafe(release)) {
        Ok(done) => AssertUnwindSafe(done).catch_unwind().await,
        Err(panic) => Err(panic),
    };
    if done.is_err() {
        tracing::error!("an agent request handler panicked while releasing resources");
    }
}
