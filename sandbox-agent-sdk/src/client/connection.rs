//! One connection.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client as wire;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant};

use super::hub::Hub;
use super::names::AUTHENTICATE;
use super::offers::client_capabilities;
use super::probe::Endpoint;
use super::pump::{COMMANDS, Command, Exit, Pump, Shared, lost_reason};
use super::router::RequestRouter;
use crate::connection::Capabilities;
use crate::session::SessionMetadata;
use crate::termination::TerminationReport;
use crate::tools::AgentTools;
use crate::{ClientOptions, ConnectionState, Error, ServerKind, TerminationInfo};

/// How long the request that closes a connection to a released server is given to be sent.
const RELEASED_CLOSE: Duration = Duration::from_millis(300);
/// What is left for closing the connection at least, however long everything before it took.
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
    commands: mpsc::Sender<Command>,
    /// Guards what the agent can do, which may change when it is started anew; held for a copy.
    capabilities: Mutex<Option<Arc<Capabilities>>>,
    /// What the agent may use of this machine; it ends with the connection.
    tools: AgentTools,
    /// Owns the pump, which ends with the connection.
    _pump: JoinSet<()>,
}

impl Connection {
    /// Prepares a connection. Nothing is sent yet.
    pub(super) fn open(
        options: &Arc<ClientOptions>,
        hub: &Arc<Hub>,
        http: &reqwest::Client,
        endpoint: &Endpoint,
        agent: &str,
        is_first: bool,
    ) -> Result<Self, Error> {
        let (builder, requests) = wire_builder(options, http, endpoint, agent, is_first).agent_requests();
        let client = builder.build().map_err(Error::from_wire)?;
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let is_shared = endpoint.kind == ServerKind::Shared;
        let shared = Arc::new(Shared::new(is_shared, &options.limits));
        let tools = options.agent_tools();
        let router = RequestRouter::new(
            &client,
            Arc::clone(hub),
            (options.permissions.clone(), options.permission_handler.clone()),
            tools.clone(),
            Arc::clone(&shared),
        );
        let pump = Pump {
            events: client.events(),
            wire: client.clone(),
            requests,
            commands: receiver,
            hub: Arc::clone(hub),
            shared: Arc::clone(&shared),
            router,
            patience: options.timeouts.termination,
            exit: Exit::default(),
            last_event: None,
            away: false,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(pump.run());
        Ok(Self {
            wire: client,
            hub: Arc::clone(hub),
            shared,
            options: Arc::clone(options),
            kind: endpoint.kind,
            agent: agent.to_owned(),
            commands,
            capabilities: Mutex::new(None),
            tools,
            _pump: tasks,
        })
    }

    /// Introduces this client to the agent, which starts it if need be.
    pub(super) async fn initialize(&self) -> Result<Arc<Capabilities>, Error> {
        let (name, version) = &self.options.client_info;
        let offers = client_capabilities(&self.options, &self.tools);
        let mut params = json!({
            "protocolVersion": VERSION,
            "clientInfo": {"name": name, "version": version},
            "clientCapabilities": offers,
        });
        let metadata = SessionMetadata::new().with_agent(&self.agent);
        metadata.write_into(&mut params).map_err(|error| Error::config(error.to_string()))?;
        // Where others are heard too, it has to be known what was said before this client came.
        let options = wire::RequestOptions::new().ordered(self.kind == ServerKind::Shared);
        let answer = self.call_with("initialize", params, options).await?;
        let capabilities = Arc::new(Capabilities::read(self.kind, &self.agent, answer));
        *self.capabilities.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&capabilities));
        self.hub.usage.connected(&self.agent, capabilities.agent_name.as_deref());
        self.shared.learned.clear();
        self.shared.trust_exit_notices(self.kind != ServerKind::Shared || capabilities.extensions.is_empty());
        if self.options.auto_authenticate {
            for login in capabilities.login_methods.iter().filter(|login| login.takes_a_key()) {
                if self.log_in(&login.id).await? {
                    break;
                }
            }
        }
        Ok(capabilities)
    }

    /// Logs in with a key that the agent may have, and says whether it did. Only the end of the agent, or of the
    /// connection, is a failure.
    async fn log_in(&self, login: &str) -> Result<bool, Error> {
        let mut params = json!({"methodId": login});
        name_agent(&mut params, self.kind, &self.agent);
        match self.call(AUTHENTICATE, params).await {
            Err(error) if error.is_terminal() || error.termination().is_some() => Err(error),
            Err(error) => {
                tracing::warn!(%error, login, "the agent refused a login");
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

    /// Does something between two events, and tells which was the last one before it; `None` where that means nothing to
    /// another connection.
    pub(crate) async fn between_events(&self, act: impl FnOnce() + Send + 'static) -> Option<String> {
        let (told, last) = oneshot::channel();
        // A pump that is gone gives nothing out any more, and drops what it was asked to do.
        let _ = self.commands.send(Command::Between(Box::new(act), told)).await;
        let last = last.await.ok().flatten().or_else(|| self.wire.last_event_id());
        last.filter(|_| self.kind == ServerKind::Shared)
    }

    pub(super) fn agent(&self) -> &str {
        &self.agent
    }

    /// Where it stands.
    pub(super) fn state(&self) -> ConnectionState {
        if let Some(info) = self.shared.ended.get() {
            return ConnectionState::AgentEnded(Box::new(info.clone()));
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

    /// Whether nobody waits for an answer.
    pub(super) fn is_quiet(&self) -> bool {
        self.shared.in_flight.load(Ordering::Acquire) == 0
    }

    /// Why no call can be made, if none can.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(info) = self.shared.ended.get() {
            return Err(Error::ended(None, info.clone(), false));
        }
        match self.wire.state() {
            wire::ConnectionState::Terminated(reason) => Err(match Error::terminated(&reason) {
                Error::ConnectionEnded { reason, source, .. } => {
                    Error::ConnectionEnded { reason, sent: false, source }
                }
                Error::Disconnected { .. } => Error::NotConnected,
                other => other,
            }),
            _ => Ok(()),
        }
    }

    /// Waits until everything that has arrived was given out.
    pub(super) async fn barrier(&self) {
        self.ask_pump(Command::Barrier).await;
    }

    async fn ask_pump(&self, command: fn(oneshot::Sender<()>) -> Command) {
        let (done, told) = oneshot::channel();
        if self.commands.send(command(done)).await.is_ok() {
            // A pump that is gone has nothing to give out.
            let _ = told.await;
        }
    }

    /// Takes note of a sign that the agent has ended, and tells how.
    pub(super) async fn report(&self, report: TerminationReport) -> TerminationInfo {
        let (told, info) = oneshot::channel();
        let alone = report.clone();
        if self.commands.send(Command::Report(Box::new(report), told)).await.is_err() {
            return alone.into_info();
        }
        info.await.unwrap_or_else(|_| alone.into_info())
    }

    /// Ends the connection, within a bound. Where the agent ends with it, so do its sessions.
    ///
    /// What the agent has asked is answered as cancelled before: on a server where it lives on, it would wait for ever.
    pub(super) async fn close(&self) {
        // An end to which the agent came by itself before is told as what it is.
        self.ask_pump(Command::Settle).await;
        let lost = match self.wire.state() {
            wire::ConnectionState::Terminated(reason) => lost_reason(&reason).is_some(),
            _ => false,
        };
        self.shared.stop_requested.store(true, Ordering::Release);
        // What belongs to other clients is left to them before the rest is cancelled.
        self.shared.unclaimed.close();
        let (hub, shared) = (Arc::clone(&self.hub), Arc::clone(&self.shared));
        let cancelled = self.wire.control().cancel_agent_requests_where(move |session| {
            let is_ours = |session| shared.owned.contains(session) || hub.has_pending_call(session);
            !shared.is_shared || session.is_some_and(is_ours)
        });
        // All of it has one deadline: a response that cannot be delivered does not hold up the end.
        let deadline = Instant::now() + self.options.timeouts.disconnect;
        let _ = tokio::time::timeout_at(deadline, cancelled).await;
        if tokio::time::timeout_at(deadline, self.tools.end_all()).await.is_err() {
            // What still runs for the agent ends without being waited for.
            self.tools.close();
        }
        // Closing a shared endpoint ends the streams of its other clients, too. A connection that was lost has none open.
        if !(lost && self.kind == ServerKind::Shared) {
            // Closing continues by itself when it is no longer waited for.
            match tokio::time::timeout_at(deadline.max(Instant::now() + CLOSE_AT_LEAST), self.wire.close())
                .await
            {
                Ok(wire::CloseOutcome::Unconfirmed(error)) => {
                    tracing::debug!(%error, "the server did not confirm that the connection is closed");
                }
                Ok(_) => {}
                Err(_) => tracing::debug!("closing the connection takes too long"),
            }
        }
        // What has arrived is told before the end of the connection is.
        self.barrier().await;
        if self.kind == ServerKind::PerAgent {
            // What ended with a server that is gone was not asked to, and nobody says how it ended.
            let report = if lost { TerminationReport::default() } else { TerminationReport::requested() };
            self.hub.end_all(&report);
        }
    }

    /// Ends the connection because the server has forgotten it.
    pub(super) fn lose(&self, error: &Error) {
        self.wire.control().end(error.clone());
    }
}

impl Drop for Connection {
    /// The pump is given up with the connection, but ends when the runtime gets to it. What runs for the agent on this
    /// machine ends now.
    fn drop(&mut self) {
        self.tools.close();
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

fn wire_builder(
    options: &ClientOptions,
    http: &reqwest::Client,
    endpoint: &Endpoint,
    agent: &str,
    is_first: bool,
) -> wire::AcpHttpClientBuilder {
    let times = &options.timeouts;
    let mut timeouts = wire::Timeouts::default()
        .request(times.request)
        .method("initialize", times.initialize)
        .method("session/new", times.session)
        .method("session/load", times.session)
        .method("session/resume", times.session)
        .method("session/fork", times.session);
    timeouts.close = match endpoint.kind {
        // They respond only when the request is given up, while their agent lives: it only has to be sent.
        ServerKind::PerAgent => times.disconnect.min(RELEASED_CLOSE),
        _ => times.disconnect,
    };
    let mut limits = wire::Limits::default();
    limits.message = options.limits.message;
    limits.open_requests = options.limits.open_requests;
    let mut builder = wire::AcpHttpClient::builder(&options.base_url)
        .http_client(http.clone())
        .limits(limits)
        .timeouts(timeouts)
        .reconnect(options.reconnect.clone());
    builder = match endpoint.kind {
        ServerKind::PerAgent => builder
            .dialect(wire::Dialect::RELEASED)
            .path(format!("/v1/acp/{}", server_id(agent)))
            .bootstrap_query("agent", agent)
            // Nobody else can know the id, so that nothing behind it is older than this connection.
            .resume_from("0"),
        ServerKind::ConnectionId => builder
            .dialect(wire::Dialect::EARLY.with_connection_id(endpoint.header.clone()))
            .path(endpoint.path),
        ServerKind::Shared => builder
            .dialect(wire::Dialect::RPC)
            .path(endpoint.path)
            // Every server of this kind answers it, also right after a restart, if only with an error.
            .probe("session/list", json!({})),
    };
    // A later connection has come further, and reads what the server still has like any other.
    #[cfg(feature = "sessions")]
    if let Some(attachment) = options.attachment.as_ref().filter(|_| is_first)
        && let Some(stream) = attachment.stream(endpoint.kind)
    {
        builder = builder.resume_from(stream);
    }
    for (name, value) in &options.headers {
        builder = builder.header(name, value);
    }
    if let Some(provider) = options.provider.clone() {
        builder = builder.token_provider(move |reason| provider(reason));
    } else if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    builder
}

/// A name that cannot be guessed: it is a credential, as the server lets everyone who knows it talk to the agent.
fn server_id(agent: &str) -> String {
    let readable: String = agent.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    format!("sdk-{readable}-{}", crate::client::random::random_id())
}

/// The `agent` member that servers with several agents behind one endpoint want for sessions they do not know.
pub(super) fn name_agent(params: &mut Value, kind: ServerKind, agent: &str) {
    if kind != ServerKind::PerAgent
        && let Some(members) = params.as_object_mut()
    {
        members.entry("agent").or_insert_with(|| agent.into());
    }
}

#[cfg(test)]
mod tests {
    use super::server_id;

    #[test]
    fn ids_are_safe_in_a_path_and_never_the_same() {
        let ids: std::collections::HashSet<_> = (0..100).map(|_| server_id("a/../b?x")).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.starts_with("sdk-abx-") && id.len() == "sdk-abx-".len() + 32));
    }
}
