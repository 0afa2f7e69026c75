//! One connection.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client as wire;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::deadline::deadline_after;
use super::event_loop::{COMMANDS, Command, EventLoop, Exit, Shared, lost_reason};
use super::hub::Hub;
use super::offers::client_capabilities;
use super::probe::Endpoint;
use super::router::{Ownership, RequestRouter};
use super::tasks::Tasks;
use super::wiring::Wiring;
use crate::connection::Capabilities;
use crate::convert::text::OneLine;
use crate::requests::{ConnectionHandlers, Requests};
use crate::session::SessionMetadata;
use crate::termination::TerminationReport;
use crate::{ClientOptions, ConnectionState, Error, ServerKind, TerminationInfo};

/// The minimum time for each of the last steps of closing, however long the steps before it took.
const CLOSE_AT_LEAST: Duration = Duration::from_millis(100);
/// The version of the conversation that this crate speaks.
const VERSION: u64 = 1;

/// One connection to one agent.
pub(crate) struct Connection {
    pub(super) wire: wire::AcpHttpClient,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Arc<Shared>,
    pub(super) options: Arc<ClientOptions>,
    kind: ServerKind,
    agent: String,
    pub(crate) wiring: Wiring,
    /// Whether the endpoint, with its agent, is left to another process when the connection ends.
    pub(crate) is_left: AtomicBool,
    commands: mpsc::Sender<Command>,
    /// Guards the capabilities, which may change when the agent restarts; held for a copy.
    capabilities: Mutex<Option<Arc<Capabilities>>>,
    /// The handlers of agent requests; they end with the connection.
    handlers: Arc<ConnectionHandlers>,
    /// Complete a close that takes too long. They end with the client.
    closing: Tasks,
    /// Owns the event loop, which ends with the connection.
    _event_loop: JoinSet<()>,
}

impl Connection {
    /// Prepares a connection. Sends nothing.
    pub(super) fn open(
        options: &Arc<ClientOptions>,
        (hub, requests): (&Arc<Hub>, &Requests),
        (late, closing): (&Tasks, &Tasks),
        http: &reqwest::Client,
        endpoint: &Endpoint,
        agent: &str,
    ) -> Result<Self, Error> {
        let handlers = Arc::new(requests.connect(agent));
        let wiring = Wiring::new(options, http, endpoint, agent)?;
        // Nothing proves yet that the server is the same as before: logs compare the events that it replays.
        hub.next_incarnation();
        let is_shared = endpoint.kind == ServerKind::Shared;
        let (mut builder, requests) = wiring.connection(agent).agent_requests();
        if is_shared {
            builder = builder.refuse_if(RequestRouter::refusals(hub, &options.limits));
        }
        let client = builder.build().map_err(Error::from_wire)?;
        let (commands, receiver) = mpsc::channel(COMMANDS);
        hub.set_shared(is_shared);
        hub.stream_reopened();
        hub.set_numbered(endpoint.kind != ServerKind::ConnectionId);
        let shared = Arc::new(Shared::new(is_shared, &options.limits));
        let router = RequestRouter::new(
            &client,
            Arc::clone(hub),
            (options.permissions.clone(), options.permission_handler.clone()),
            Arc::clone(&handlers),
            Arc::clone(&shared),
        );
        let event_loop = EventLoop {
            // Updates are parsed once, here.
            events: client.events().untyped(),
            wire: client.clone(),
            requests,
            queued: VecDeque::new(),
            commands: receiver,
            hub: Arc::clone(hub),
            shared: Arc::clone(&shared),
            router,
            termination_timeout: options.timeouts.termination,
            late_details: options.timeouts.late_details,
            late: late.clone(),
            trailing: options.timeouts.trailing,
            exit: Exit::default(),
            is_lost: false,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(event_loop.run());
        Ok(Self {
            wire: client,
            hub: Arc::clone(hub),
            shared,
            options: Arc::clone(options),
            kind: endpoint.kind,
            agent: agent.to_owned(),
            wiring,
            is_left: AtomicBool::new(false),
            commands,
            capabilities: Mutex::new(None),
            handlers,
            closing: closing.clone(),
            _event_loop: tasks,
        })
    }

    /// Sends `initialize`, which starts the agent if it is not running.
    pub(super) async fn initialize(&self) -> Result<Arc<Capabilities>, Error> {
        let (name, version) = &self.options.client_info;
        let offers = client_capabilities(&self.options, self.handlers.capabilities());
        let mut params = json!({
            "protocolVersion": VERSION,
            "clientInfo": {"name": name, "version": version},
            "clientCapabilities": offers,
        });
        let metadata = SessionMetadata::new().with_agent(&self.agent);
        metadata.write_into(&mut params).map_err(|error| Error::config(error.to_string()))?;
        // On a shared endpoint, the order distinguishes the backlog from live events.
        let options = wire::RequestOptions::new().ordered(self.kind == ServerKind::Shared);
        let answer = self.call_with("initialize", params, options).await?;
        let capabilities = Arc::new(Capabilities::read(self.kind, &self.agent, answer));
        *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&capabilities));
        self.hub.usage(|usage| usage.connected(&self.agent, capabilities.agent_name.as_deref()));
        self.shared.set_agent([self.agent.as_str()].into_iter().chain(capabilities.agent_name.as_deref()));
        self.shared.learned.clear();
        self.shared.trust_exit_notices(self.kind != ServerKind::Shared || capabilities.extensions.is_empty());
        // Before any call requires it: some agents report a missing login as the error of a prompt, which may have
        // been executed and is not sent again. Not for a shared agent: its other clients may have chosen another
        // login.
        if self.kind != ServerKind::Shared {
            self.log_in_with_keys().await?;
        }
        Ok(capabilities)
    }

    /// Logs in to a shared agent that required a login, if it is the agent of this connection. Returns whether the
    /// login succeeded.
    pub(super) async fn log_in_if_required(&self, agent: Option<&str>) -> Result<bool, Error> {
        match self.kind {
            ServerKind::Shared if !self.is_of_another_agent(agent) => self.log_in_with_keys().await,
            // It was tried when the connection was opened.
            _ => Ok(false),
        }
    }

    /// Whether this agent is not the agent of this connection. An endpoint with one agent has no other.
    pub(super) fn is_of_another_agent(&self, agent: Option<&str>) -> bool {
        self.kind != ServerKind::PerAgent && agent.is_some_and(|agent| agent != self.agent)
    }

    /// Tries every login with a key, in order, until one succeeds. Returns whether one succeeded.
    async fn log_in_with_keys(&self) -> Result<bool, Error> {
        let Some(capabilities) = self.capabilities().filter(|_| self.options.auto_authenticate) else {
            return Ok(false);
        };
        for login in capabilities.login_methods.iter().filter(|login| login.takes_a_key()) {
            if self.log_in(&login.id).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Logs in with a key that the agent may have. Returns whether the login succeeded. Only the end of the agent or of
    /// the connection is an error.
    async fn log_in(&self, login: &str) -> Result<bool, Error> {
        let mut params = json!({"methodId": login});
        name_agent(&mut params, self.kind, &self.agent);
        match self.authenticate(&params).await {
            Err(error) if error.is_terminal() || error.termination().is_some() => Err(error),
            Err(error) => {
                tracing::warn!(error = %OneLine(&error), login, "the agent refused a login");
                Ok(false)
            }
            Ok(_) => Ok(true),
        }
    }

    pub(crate) fn capabilities(&self) -> Option<Arc<Capabilities>> {
        self.capabilities.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn kind(&self) -> ServerKind {
        self.kind
    }

    /// Builds another client of this endpoint, or of the endpoint at `path`, that reads the events after this number.
    pub(super) fn reader(&self, path: Option<&str>, after: u64) -> wire::AcpHttpClientBuilder {
        match path {
            Some(path) => self.wiring.at(path).reader(after),
            None => self.wiring.reader(after),
        }
    }

    /// Routes an agent request that another reader of the stream received, as one that is addressed to this client.
    pub(super) async fn serve(&self, request: wire::AgentRequest, responder: wire::Responder) {
        // An event loop that is gone drops the request.
        let _ = self.commands.send(Command::Serve(Box::new((request, responder)))).await;
    }

    pub(super) fn agent(&self) -> &str {
        &self.agent
    }

    /// Returns its state.
    pub(super) fn state(&self) -> ConnectionState {
        if let Some(info) = self.shared.ended() {
            return ConnectionState::AgentEnded(Box::new(info));
        }
        match self.wire.state() {
            wire::ConnectionState::Reconnecting { attempt } => ConnectionState::Reconnecting { attempt },
            wire::ConnectionState::Terminated(reason) => match lost_reason(&reason) {
                Some(reason) => ConnectionState::Lost(reason),
                None => ConnectionState::Disconnected,
            },
            _ => ConnectionState::Connected,
        }
    }

    /// Whether calls can be made over it.
    pub(super) fn is_usable(&self) -> bool {
        self.state().is_usable()
    }

    /// Whether no call is pending.
    pub(super) fn is_quiet(&self) -> bool {
        self.shared.in_flight.load(Ordering::Acquire) == 0
    }

    /// Why no call can be made, if none can.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(info) = self.shared.ended() {
            return Err(Error::ended(None, info, false));
        }
        match self.wire.state() {
            wire::ConnectionState::Terminated(reason) => Err(Error::terminated_before(&reason)),
            _ => Ok(()),
        }
    }

    /// Waits until everything that has arrived was published.
    pub(crate) async fn barrier(&self) {
        self.in_order(|| ()).await;
    }

    /// Runs `run` between two events: earlier events have been published and routed, later ones have not. Returns
    /// `None` if the connection has ended.
    pub(crate) async fn in_order<T: Send + 'static>(
        &self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, done) = oneshot::channel();
        // The caller may be gone.
        let run = Box::new(move || drop(sender.send(run())));
        self.commands.send(Command::InOrder(run)).await.ok()?;
        done.await.ok()
    }

    /// Reports a sign that the agent has ended, and returns how it ended.
    pub(super) async fn report(&self, report: TerminationReport) -> TerminationInfo {
        let (sender, info) = oneshot::channel();
        let alone = report.clone();
        if self.commands.send(Command::Report(Box::new(report), sender)).await.is_err() {
            return alone.into_info();
        }
        info.await.unwrap_or_else(|_| alone.into_info())
    }

    /// Ends the connection, by a deadline. If the agent ends with it, so do its sessions.
    ///
    /// Open agent requests first get the response "cancelled", because an agent that continues would wait forever. On a
    /// shared endpoint, requests to which another process responds do not.
    pub(super) async fn close(&self, deadline: Instant) {
        // All of it has one deadline: neither an undeliverable response nor a busy event loop delays the end. If the
        // agent has already ended, that end is published first.
        let (sender, done) = oneshot::channel();
        let settled = async {
            if self.commands.send(Command::Settle(sender)).await.is_ok() {
                // An event loop that has ended has nothing to publish.
                let _ = done.await;
            }
        };
        let _ = tokio::time::timeout_at(deadline, settled).await;
        let lost = match self.wire.state() {
            wire::ConnectionState::Terminated(reason) => lost_reason(&reason).is_some(),
            _ => false,
        };
        self.shared.stop_requested.store(true, Ordering::Release);
        // Requests of other clients are released first; the rest is cancelled.
        self.shared.unclaimed.close();
        if self.shared.is_shared {
            let is_left = |session: Option<&str>| session.is_some_and(|id| self.hub.leaves_requests(id));
            self.wire.control().ignore_agent_requests_where(is_left);
        }
        // On an endpoint that another process uses, all requests are left to that process.
        let left = self.is_left.load(Ordering::Acquire);
        let ownership = self.ownership();
        let cancelled =
            self.wire.control().cancel_agent_requests_where(move |session| !left && ownership.has(session));
        let _ = tokio::time::timeout_at(deadline, cancelled).await;
        if tokio::time::timeout_at(deadline, self.handlers.connection_ended()).await.is_err() {
            // Handlers that are still running end without waiting.
            self.handlers.close();
        }
        if left {
            self.wire.control().end(Error::Disconnected { what: "connect".to_owned() });
        }
        // Closing a shared endpoint ends the streams of its other clients, too. A connection that was lost has none open.
        if !(left || lost && self.kind == ServerKind::Shared) {
            match tokio::time::timeout_at(at_least(deadline), self.wire.close()).await {
                Ok(wire::CloseOutcome::Unconfirmed(error)) => {
                    tracing::debug!(error = %OneLine(&error), "the server did not confirm that the connection is closed");
                }
                Ok(_) => {}
                Err(_) => {
                    tracing::debug!("closing the connection takes too long");
                    self.close_later();
                }
            }
        }
        // Events that have arrived are published before the end of the connection.
        let _ = tokio::time::timeout_at(at_least(deadline), self.barrier()).await;
        if self.kind == ServerKind::PerAgent && !left {
            // Sessions that ended with the server were not requested to end, and how they ended is unknown.
            let report = if lost { TerminationReport::default() } else { TerminationReport::requested() };
            self.hub.end_all(&report);
        }
    }

    /// Continues to close the connection, within the time to disconnect: the request that ends the agent may not be sent
    /// yet. Not on a shared endpoint, where a late request would end the streams of the next connection.
    fn close_later(&self) {
        if self.kind != ServerKind::Shared {
            let wire = self.wire.clone();
            self.closing.spawn(async move { drop(wire.close().await) });
        }
    }

    /// Whose agent requests this client cancels.
    pub(super) fn ownership(&self) -> Ownership {
        Ownership { hub: Arc::clone(&self.hub), shared: Arc::clone(&self.shared) }
    }

    /// Ends the connection because the server no longer knows it.
    pub(super) fn lose(&self, error: &Error) {
        self.wire.control().end(error.clone());
    }
}

impl Drop for Connection {
    /// The event loop is aborted with the connection, but ends only when the runtime polls it. Handlers on this
    /// machine end now.
    fn drop(&mut self) {
        self.handlers.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("kind", &self.kind)
            .field("agent", &self.agent)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// The deadline of a step of closing.
fn at_least(deadline: Instant) -> Instant {
    deadline.max(deadline_after(CLOSE_AT_LEAST))
}

/// Adds the field `agent`, which servers with several agents need for sessions that they do not know.
pub(super) fn name_agent(params: &mut Value, kind: ServerKind, agent: &str) {
    if kind != ServerKind::PerAgent
        && let Some(members) = params.as_object_mut()
    {
        members.entry("agent").or_insert_with(|| agent.into());
    }
}
