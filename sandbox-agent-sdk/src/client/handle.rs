//! The client handle.

use std::fmt;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;

use super::hub::PendingCall;
use super::lifecycle::{Attempt, Inner, Reconnect, Trigger};
use super::network::check_runtime;
use super::stream::{EventLog, StreamPosition, StreamReader};
use crate::connection::{Capabilities, Feature, Support};
use crate::control::{Agents, Configuration, ControlPlane, Files, HealthCheck};
use crate::requests::Requests;
use crate::{ClientOptions, ConnectionState, Error, Events, ServerKind, Session, TerminationInfo};

/// A client for one agent of a Sandbox Agent server.
///
/// It is cheap to clone; all clones share at most one connection. By default it connects in the background when it is
/// built, and the first call waits for the connection. Dropping the last clone (sessions and turns count as clones)
/// ends all local tasks without a message to the server; [`disconnect`](Self::disconnect) closes the connection.
#[derive(Clone)]
pub struct SandboxAgentClient {
    handle: Arc<Handle>,
}

/// Counts the handles of a program apart from the tasks of the client.
struct Handle {
    inner: Arc<Inner>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.shut_down();
    }
}

/// A claim on the agent requests of a session, released on drop. See [`SandboxAgentClient::claim_requests`].
#[derive(Debug)]
#[must_use = "the claim ends when it is dropped"]
pub struct SessionClaim {
    _pending: PendingCall,
}

/// A reference to a client that does not keep it alive. See [`SandboxAgentClient::downgrade`].
#[derive(Clone)]
pub struct WeakClient(Weak<Handle>);

impl WeakClient {
    /// Returns the client, if a handle to it still exists.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the last handle was dropped.
    pub fn upgrade(&self) -> Result<SandboxAgentClient, Error> {
        self.0.upgrade().map(|handle| SandboxAgentClient { handle }).ok_or(Error::NotConnected)
    }
}

impl fmt::Debug for WeakClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakClient")
    }
}

impl SandboxAgentClient {
    /// Builds a client. It connects in the background unless [`auto_connect`](ClientOptions::auto_connect) is off.
    ///
    /// # Errors
    /// [`Error::Config`] if an option is invalid. Connecting in the background also requires an agent name and a
    /// tokio runtime.
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        let agent = options.agent.clone().filter(|agent| !agent.trim().is_empty());
        if options.auto_connect && agent.is_none() {
            return Err(Error::config(
                "connecting in the background requires an agent name: set `agent`, or turn off `auto_connect`",
            ));
        }
        if options.auto_connect && tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::config("connecting in the background needs a tokio runtime"));
        }
        let http = match &options.http {
            Some(http) => http.clone(),
            None => crate::client::network::http_client_builder_for(&options.base_url)
                .connect_timeout(std::time::Duration::from_secs(10))
                .build()
                .map_err(|error| Error::config(format!("the HTTP client cannot be built: {error}")))?,
        };
        let control = control_plane(&options, &http)?;
        let auto_connect = options.auto_connect;
        let client = Self::over(Arc::new(Inner::new(options, control, http)));
        if let Some(agent) = agent.filter(|_| auto_connect) {
            client.inner().begin(&agent, Trigger::Background)?;
        }
        Ok(client)
    }

    /// Creates client options for the server at this URL.
    pub fn builder(base_url: impl Into<String>) -> ClientOptions {
        ClientOptions::new(base_url)
    }

    fn over(inner: Arc<Inner>) -> Self {
        Self { handle: Arc::new(Handle { inner }) }
    }

    /// Returns a weak reference, for tasks that must not keep the client alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakClient {
        WeakClient(Arc::downgrade(&self.handle))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// Connects to the agent that is set in the options. Returns the capabilities of the server and the agent.
    ///
    /// Waits if the server is not up yet. Dropping the future cancels the attempt.
    ///
    /// # Errors
    /// [`Error::Config`] if no agent is set. [`Error::AlreadyConnected`] if the client is connected or connecting.
    /// [`Error::Disconnected`] if [`disconnect`](Self::disconnect) was called meanwhile.
    pub fn connect(&self) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        match self.inner().options.agent.clone() {
            Some(agent) => self.connect_with(agent),
            None => Box::pin(async {
                Err(Error::config("connecting requires an agent name: set `agent`, or call `connect_with`"))
            }),
        }
    }

    /// Connects to the agent with this name. Otherwise like [`connect`](Self::connect).
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect).
    pub fn connect_with(
        &self,
        agent: impl Into<String>,
    ) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        let (client, agent) = (self.clone(), agent.into());
        Box::pin(async move {
            let attempt = client.inner().begin(&agent, Trigger::Call)?;
            client.wait_for(attempt).await
        })
    }

    /// Waits for an attempt. Dropping the future cancels the attempt.
    async fn wait_for(&self, attempt: Arc<Attempt>) -> Result<Arc<Capabilities>, Error> {
        struct GiveUp<'a>(&'a Inner, &'a Arc<Attempt>);
        impl Drop for GiveUp<'_> {
            fn drop(&mut self) {
                self.0.cancel_attempt(self.1);
            }
        }
        let guard = GiveUp(self.inner(), &attempt);
        let outcome = attempt.finished().await;
        // The attempt has ended, so cancelling it has no effect.
        std::mem::forget(guard);
        outcome
    }

    /// Closes the connection, or cancels the attempt to connect. Pending calls fail with [`Error::Disconnected`].
    ///
    /// It takes at most about [`ClientTimeouts::disconnect`](crate::ClientTimeouts#structfield.disconnect) and can be
    /// called repeatedly. On a released server ([`ServerKind::PerAgent`](crate::ServerKind::PerAgent)) the agent and
    /// its sessions end too; on other servers they continue. If the request that ends the agent is not sent in time, the
    /// client continues to send it for the same time, unless the client is dropped.
    ///
    /// # Errors
    /// [`Error::Config`] if there is a connection and no tokio runtime. It is not an error if the server does not
    /// confirm the close before the timeout.
    pub fn disconnect(&self) -> BoxFuture<'static, Result<(), Error>> {
        let client = self.clone();
        Box::pin(async move { client.inner().disconnect().await })
    }

    /// Closes the connection if no call is pending and no turn is running. See [`disconnect`](Self::disconnect).
    ///
    /// Returns whether it closed the connection. A turn that starts at the same time either keeps the connection open
    /// or fails with [`Error::NotConnected`] before its prompt is sent.
    pub fn disconnect_if_idle(&self) -> BoxFuture<'static, bool> {
        let client = self.clone();
        Box::pin(async move { client.inner().disconnect_if_idle().await })
    }

    /// Restarts the agent.
    ///
    /// On a released server this ends the agent with all its sessions and starts a new one. On other servers the
    /// agent is shared and is started only if it is not running. Ended sessions stay ended until they are
    /// [loaded](Self::load_session) or [resumed](Self::resume_session). If several tasks call this after the
    /// agent has ended, the agent is restarted only once.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the client was not connected.
    pub fn restart_agent(&self) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        let client = self.clone();
        // This restarts the current agent, not one that is started while this call waits.
        let present = self.inner().present();
        Box::pin(async move {
            check_runtime()?;
            let Some(connection) = present else {
                let fresh = client.inner().connection().await?;
                return fresh.capabilities().ok_or(Error::NotConnected);
            };
            if connection.kind() != ServerKind::PerAgent && connection.is_usable() {
                return connection.initialize().await;
            }
            match client.inner().reconnect(&connection, Trigger::Call)? {
                Reconnect::Started(attempt) => client.wait_for(attempt).await,
                Reconnect::Joined(attempt) => attempt.finished().await,
                Reconnect::Done(connection) => connection.capabilities().ok_or(Error::NotConnected),
            }
        })
    }

    /// Returns the state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.inner().state()
    }

    /// Returns the capabilities of the server and the agent; `None` without a connection.
    #[must_use]
    pub fn capabilities(&self) -> Option<Arc<Capabilities>> {
        self.inner().present()?.capabilities()
    }

    /// Returns whether the server or the agent supports a feature.
    ///
    /// The result is based on what they advertise and on earlier calls; nothing is sent. A user interface can offer a
    /// feature if it [is possible](Support::is_possible). Returns [`Support::Unknown`] without a connection.
    #[must_use]
    pub fn supports(&self, feature: impl Into<Feature>) -> Support {
        self.inner().present().map_or(Support::Unknown, |connection| connection.supports(feature.into()))
    }

    /// Returns how the agent ended, if its end closed the connection.
    #[must_use]
    pub fn termination(&self) -> Option<TerminationInfo> {
        match self.state() {
            ConnectionState::AgentEnded(info) => Some(*info),
            _ => None,
        }
    }

    /// Subscribes to all later events of the connection and of all sessions.
    pub fn events(&self) -> Events {
        self.inner().hub.subscribe()
    }

    /// Opens a lossless log of all events after a stream position, or from now on. See [`stream`](crate::stream).
    ///
    /// The log has all events in one order, with their stream positions. It also contains the result of each call about
    /// a session. Use it for layers that must not miss anything, such as a store; [`events`](Self::events) may drop
    /// events.
    pub fn events_from(&self, from: impl Into<Option<StreamPosition>>) -> EventLog {
        let from = from.into();
        EventLog::new(self.inner(), self.inner().hub.open_log(from), from)
    }

    /// Reads a part of the server's stream again, after a position.
    ///
    /// Reading ends at the event with the number `to`, or at the current end of the stream. The result contains the
    /// events of all sessions and all clients of the endpoint.
    pub fn read(&self, from: StreamPosition, to: impl Into<Option<u64>>) -> StreamReader {
        StreamReader::new(Arc::clone(self.inner()), None, from, to.into())
    }

    /// Routes the agent requests of a session to this client until the claim is dropped.
    ///
    /// Without a claim, a request on a shared endpoint is routed to this client only while this client has a pending
    /// call for the same session. Use a claim to continue the turn of a process that was killed: claim the session
    /// until that turn ends.
    pub fn claim_requests(&self, session_id: &str) -> SessionClaim {
        SessionClaim { _pending: self.inner().hub.pending_call(session_id) }
    }

    /// Returns the registry of request handlers: files, terminals, and the application's own.
    #[must_use]
    pub fn requests(&self) -> &Requests {
        &self.inner().requests
    }

    /// Creates a handle to a session by its id. Sends nothing and does not check whether the session exists.
    ///
    /// To receive the history while it arrives, subscribe to [`Session::events`] before loading the session.
    #[must_use]
    pub fn session(&self, session_id: impl Into<String>) -> Session {
        Session::of(self.clone(), session_id.into())
    }

    /// Returns the control plane of the server. It needs no connection.
    #[must_use]
    pub fn control(&self) -> &ControlPlane {
        &self.inner().control
    }

    /// Returns the URL of the server's inspector page. It does not contain the token.
    #[must_use]
    pub fn inspector_url(&self) -> String {
        self.control().inspector_url()
    }

    /// Returns a handle that checks the health of the server. It needs no connection.
    #[must_use]
    pub fn health(&self) -> HealthCheck {
        self.control().health()
    }

    /// Returns a handle that lists and installs agents. It needs no connection.
    #[must_use]
    pub fn agents(&self) -> Agents {
        self.control().agents()
    }

    /// Returns a handle that reads and writes files of the server's machine. It needs no connection.
    #[must_use]
    pub fn files(&self) -> Files {
        self.control().files()
    }

    /// Returns a handle that stores MCP servers and skills by directory. It needs no connection.
    #[must_use]
    pub fn config(&self) -> Configuration {
        self.control().config()
    }
}

impl fmt::Debug for SandboxAgentClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxAgentClient").field("state", &self.state()).finish_non_exhaustive()
    }
}

fn control_plane(options: &ClientOptions, http: &reqwest::Client) -> Result<ControlPlane, Error> {
    let mut builder = ControlPlane::builder(&options.base_url)
        .shared_client(http.clone(), options.http.is_some())
        .limits(options.limits.clone());
    for (name, value) in &options.headers {
        builder = builder.header(name, value);
    }
    if let Some(provider) = options.provider.clone() {
        builder = builder.token_provider(move |reason| provider(reason));
    } else if let Some(token) = &options.token {
        builder = builder.token(token);
    }
    builder.build()
}
