use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use bytes::Bytes;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::builder::Builder;
use super::core::Core;
use super::gate::{Gate, authorize};
use super::journal::RecordedRequest;
use super::listener::{accept, listen};
use super::tasks::Tasks;
use crate::agent::AgentAnswer;
use crate::control::ControlPlane;
use crate::face::{Connections, Table, official_routes, released_routes, rpc_routes, session_routes};
use crate::fault::{Rule, RuleId};
use crate::hub::Hub;
use crate::problem::Problem;

/// What happens to sessions, agents and event logs on a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// They survive, as after a restart of a proxy in front of the server.
    Preserved,
    /// They are lost, and event ids restart at 1.
    Lost,
}

/// How long a shutdown waits for its streams to end.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// A mock server on its own port.
///
/// Dropping it ends connections, tasks and agents without waiting for them; [`shutdown`](Self::shutdown) waits. If a
/// task of the server panicked, the drop (or the next call) panics too, so that the test that owns the server fails.
pub struct MockServer {
    core: Arc<Core>,
    address: SocketAddr,
    /// The listener and its connections.
    connections: Tasks,
    /// What a restart may lose. Guards only the handle.
    world: Mutex<World>,
    /// The directory that clients see as `/`.
    files: PathBuf,
    /// Removed with the server, unless the directory was given.
    _temporary: Option<TempDir>,
}

/// Everything a restart may lose.
#[derive(Clone)]
struct World {
    hub: Arc<Hub>,
    control: ControlPlane,
    table: Arc<Table>,
    connections: Arc<Connections>,
}

impl MockServer {
    /// Starts a server with one agent, `mock`, that reacts to words in the prompt.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Creates a builder.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(super) async fn listen(core: Arc<Core>, address: SocketAddr) -> io::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let (files, temporary) = match &core.config.files {
            Some(directory) => (directory.clone(), None),
            None => {
                let directory = tempfile::tempdir()?;
                (directory.path().to_owned(), Some(directory))
            }
        };
        let world = World::new(&core, &files)?;
        let connections = Tasks::new(core.panics.clone());
        let world = Mutex::new(world);
        let server = Self { core, address, connections, world, files, _temporary: temporary };
        server.serve(listener);
        Ok(server)
    }

    /// Returns `http://ADDRESS:PORT`, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all requests so far, oldest first.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.check();
        self.core.journal.all()
    }

    /// Returns the requests with this HTTP method and path.
    pub fn requests_to(&self, verb: &str, path: &str) -> Vec<RecordedRequest> {
        let mut requests = self.requests();
        requests.retain(|request| request.method == verb && request.path == path);
        requests
    }

    /// Returns the bodies of all POSTs with this JSON-RPC method, oldest first.
    pub fn messages(&self, method: &str) -> Vec<Value> {
        let requests = self.requests();
        let bodies =
            requests.iter().filter(|request| request.method == "POST").filter_map(RecordedRequest::json);
        bodies.filter(|body| body.get("method").and_then(Value::as_str) == Some(method)).collect()
    }

    /// Clears the recorded requests.
    pub fn forget_requests(&self) {
        self.core.journal.clear();
    }

    /// Waits until `done` returns `true` for the recorded requests, for at most `limit`. Returns whether `done`
    /// returned `true`.
    pub async fn wait_for(&self, done: impl Fn(&[RecordedRequest]) -> bool, limit: Duration) -> bool {
        let bell = self.core.journal.bell();
        self.wait(bell, limit, || done(&self.core.journal.all())).await
    }

    /// Returns all agent requests and the clients' responses, oldest first.
    pub fn answers(&self) -> Vec<AgentAnswer> {
        self.check();
        self.core.answers.all()
    }

    /// Waits until `done` returns `true` for the recorded responses, for at most `limit`. Returns whether `done`
    /// returned `true`.
    pub async fn wait_for_answers(&self, done: impl Fn(&[AgentAnswer]) -> bool, limit: Duration) -> bool {
        let bell = self.core.answers.bell();
        self.wait(bell, limit, || done(&self.core.answers.all())).await
    }

    /// Returns the number of open event streams.
    pub fn open_streams(&self) -> usize {
        self.check();
        self.core.streams.get()
    }

    /// Waits until `done` returns `true` for the number of open streams, for at most `limit`. Returns whether `done`
    /// returned `true`.
    pub async fn wait_for_streams(&self, done: impl Fn(usize) -> bool, limit: Duration) -> bool {
        let bell = self.core.streams.bell();
        self.wait(bell, limit, || done(self.core.streams.get())).await
    }

    /// Returns the id of the newest event on `/v1/rpc`; 0 before the first.
    pub fn last_event_id(&self) -> u64 {
        self.check();
        self.world().hub.last_event_id()
    }

    /// Activates a fault. An immediate fault is applied to every existing event log.
    pub fn inject(&self, rule: impl Into<Rule>) -> RuleId {
        self.check();
        self.core.inject(rule.into())
    }

    /// Deactivates one fault.
    pub fn lift(&self, id: RuleId) {
        self.core.faults.lift(id);
    }

    /// Deactivates all faults.
    pub fn clear_faults(&self) {
        self.core.faults.clear();
    }

    /// Returns how often each fault fired, by the name of its variant.
    pub fn faults_fired(&self) -> BTreeMap<&'static str, usize> {
        self.check();
        self.core.faults.fired()
    }

    /// Returns how often the fault with this name fired.
    pub fn fired(&self, name: &str) -> usize {
        self.faults_fired().get(name).copied().unwrap_or(0)
    }

    /// Accepts this token from now on, in addition to the tokens that have not expired.
    pub fn accept_token(&self, token: impl Into<String>) {
        self.core.tokens.accept(token.into());
    }

    /// Publishes any JSON value on the stream of `/v1/rpc`, like an agent.
    pub fn emit(&self, value: impl Into<Value>) {
        self.emit_raw(value.into().to_string());
    }

    /// Publishes any text as the data of one event on `/v1/rpc`. It must not contain line endings.
    pub fn emit_raw(&self, data: impl Into<Bytes>) {
        self.check();
        self.world().hub.emit(&data.into());
    }

    /// Publishes any JSON value to a single reader. Returns whether the reader exists.
    ///
    /// `id` is a server id of `/v1/acp`, or a connection id of `/acp`. For a connection id the value goes to the
    /// connection stream.
    pub fn emit_to(&self, id: &str, value: impl Into<Value>) -> bool {
        self.check();
        let (world, value) = (self.world(), value.into());
        world.table.emit(id, &value) || world.connections.emit(id, &value)
    }

    /// Publishes a request with this `method` and these `params`, and returns its id.
    ///
    /// [`MockServer::answers`] returns the response.
    pub fn emit_request(&self, request: Value) -> String {
        self.check();
        self.world().hub.emit_request(request)
    }

    /// Returns the session in the format of `GET /v1/sessions/{id}`.
    pub fn session(&self, id: &str) -> Option<Value> {
        self.check();
        self.world().hub.session_info(id)
    }

    /// Kills the running agent with this name on `/v1/rpc`. Returns whether it was running.
    pub fn kill_agent(&self, name: &str) -> bool {
        self.check();
        self.world().hub.kill_agent(name)
    }

    /// Kills the agent of a server id on `/v1/acp`. Returns whether the server id exists; its agent may already have
    /// exited.
    pub fn kill_agent_of(&self, server_id: &str) -> bool {
        self.check();
        self.world().table.kill(server_id)
    }

    /// Returns the control plane: health, agents, files, configuration, processes and desktop.
    pub fn control(&self) -> ControlPlane {
        self.world().control
    }

    /// Stops listening and closes every connection.
    ///
    /// New connections are refused until the server is [restarted](MockServer::restart).
    pub async fn stop(&self) {
        self.connections.shutdown().await;
        self.core.background.shutdown().await;
    }

    /// Stops the server and starts it again on the same port.
    ///
    /// Files and configuration survive in both cases.
    ///
    /// # Panics
    /// If another process has bound the port in the meantime.
    pub async fn restart(&self, state: State) {
        self.check();
        self.stop().await;
        if state == State::Lost {
            match World::new(&self.core, &self.files) {
                Ok(world) => *self.world_slot() = world,
                Err(error) => panic!("mock server failed to reopen its files: {error}"),
            }
        }
        match self.listen_again().await {
            Ok(listener) => self.serve(listener),
            Err(error) => panic!("mock server failed to listen on {} after a restart: {error}", self.address),
        }
    }

    /// While the server was down, an outgoing connection of another process may have used its port for a
    /// moment.
    async fn listen_again(&self) -> io::Result<TcpListener> {
        const PATIENCE: Duration = Duration::from_secs(5);
        const RETRY: Duration = Duration::from_millis(10);
        let given_up = Instant::now() + PATIENCE;
        loop {
            match listen(self.address) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < given_up => {
                    tokio::time::sleep(RETRY).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Shuts the server down gracefully. Returns how many sessions were active.
    ///
    /// Active sessions are marked as suspended and streams end cleanly. Then the inputs of all agents are closed.
    /// Processes that do not exit within a second get SIGTERM and, after their
    /// [grace period](crate::ProcessAgent::grace), SIGKILL. When this returns, they have exited.
    pub async fn shutdown(self) -> usize {
        let suspended = self.world().hub.suspend_sessions();
        for log in self.core.logs() {
            log.finish();
        }
        // A stream whose reader does not read is cut.
        let _ = self.wait_for_streams(|count| count == 0, DRAIN_LIMIT).await;
        self.stop().await;
        self.core.agents.end().await;
        suspended
    }

    fn serve(&self, listener: TcpListener) {
        let gate = Gate { core: Arc::clone(&self.core), routes: self.world().routes(&self.core) };
        self.connections.spawn(accept(listener, gate, self.connections.clone()));
    }

    async fn wait<T>(&self, mut bell: watch::Receiver<T>, limit: Duration, done: impl Fn() -> bool) -> bool {
        let waited = tokio::time::timeout(limit, async {
            while !done() {
                if bell.changed().await.is_err() {
                    break;
                }
            }
        });
        let in_time = waited.await.is_ok();
        self.check();
        in_time && done()
    }

    /// Panics if a task of the server panicked.
    fn check(&self) {
        if let Some(panic) = self.core.panics.take() {
            panic!("a task of the mock server panicked: {panic}");
        }
    }

    fn world(&self) -> World {
        self.world_slot().clone()
    }

    fn world_slot(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.connections.abort();
        self.core.background.abort();
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl fmt::Debug for MockServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MockServer").field("address", &self.address).finish_non_exhaustive()
    }
}

impl World {
    fn new(core: &Arc<Core>, files: &Path) -> io::Result<Self> {
        let own = core.config.agents.iter().filter(|(_, agent)| agent.installed()).map(|(name, _)| name);
        // The control plane shows how long agents have been running, and the table asks it what is installed.
        let uptimes: Arc<OnceLock<Weak<Table>>> = Arc::default();
        let control =
            ControlPlane::builder().root(files).own_agents(core.config.agents.keys()).installed(own);
        let control = {
            let uptimes = Arc::clone(&uptimes);
            control.uptime(move |agent| uptimes.get()?.upgrade()?.uptime(agent))
        };
        let control = match core.config.body_limit {
            Some(bytes) => control.body_limit(bytes),
            None => control,
        };
        let control = control.processes(core.config.processes).build()?;
        let table = Table::new(Arc::clone(core), control.clone());
        uptimes.get_or_init(|| Arc::downgrade(&table));
        let hub = Hub::new(Arc::clone(core), control.clone());
        Ok(Self { hub, control, table, connections: Connections::new(Arc::clone(core)) })
    }

    fn routes(&self, core: &Arc<Core>) -> Router {
        let guarded = rpc_routes(Arc::clone(core), Arc::clone(&self.hub))
            .merge(session_routes(Arc::clone(&self.hub)))
            .merge(released_routes(Arc::clone(&self.table)))
            .merge(official_routes(Arc::clone(&self.connections)))
            // The gate has already read the body, within the limit of its route.
            .layer(DefaultBodyLimit::disable())
            .merge(self.control.router())
            .route_layer(from_fn_with_state(Arc::clone(core), authorize));
        guarded.fallback(|| async { Problem::unknown_endpoint() })
    }
}
