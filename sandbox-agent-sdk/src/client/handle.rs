//! The handle a program holds.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::lifecycle::{Again, Asked, Attempt, Inner};
use crate::connection::{Capabilities, Feature, Support};
use crate::control::{Agents, Configuration, ControlPlane, Files, HealthCheck};
#[cfg(feature = "sessions")]
use crate::sessions::Sessions;
use crate::{ClientOptions, ConnectionState, Error, Events, ServerKind, Session, TerminationInfo};

/// Talks to an agent behind a Sandbox Agent server.
///
/// It is cheap to clone, and every clone is the same client: it holds at most one connection. By default it starts
/// connecting as soon as it is made, and the first call waits for that. When the last clone is dropped (sessions
/// and turns count as clones), everything local ends at once and the server is not told;
/// [`disconnect`](Self::disconnect) tells it.
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

impl SandboxAgentClient {
    /// Makes a client, which starts connecting in the background unless the options say otherwise.
    ///
    /// # Errors
    /// [`Error::Config`] if an option cannot be used, if the client shall connect by itself and no agent is named,
    /// or if there is no runtime for it to connect on.
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        let agent = options.agent.clone().filter(|agent| !agent.trim().is_empty());
        if options.auto_connect && agent.is_none() {
            return Err(Error::config("connecting by itself needs the name of an agent"));
        }
        if options.auto_connect && tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::config("connecting by itself needs a tokio runtime"));
        }
        let http = match &options.http {
            Some(http) => http.clone(),
            None => crate::client::network::http_client_builder_for(&options.base_url)
                .connect_timeout(std::time::Duration::from_secs(10))
                .build()
                .map_err(|error| Error::config(format!("the HTTP client cannot be made: {error}")))?,
        };
        let control = control_plane(&options, &http)?;
        let auto_connect = options.auto_connect;
        #[cfg(feature = "sessions")]
        let keeps = options.attachment.is_some() || options.store.is_some();
        let client = Self::over(Arc::new(Inner::new(options, control, http)));
        #[cfg(feature = "sessions")]
        if keeps {
            // What comes must find somebody who keeps it, and knows how far the stream was read, as soon as it comes.
            drop(client.sessions());
        }
        if let Some(agent) = agent.filter(|_| auto_connect) {
            client.inner().begin(&agent, Asked::ByOptions)?;
        }
        Ok(client)
    }

    /// Starts setting up a client for the server at this URL.
    pub fn builder(base_url: impl Into<String>) -> ClientOptions {
        ClientOptions::new(base_url)
    }

    fn over(inner: Arc<Inner>) -> Self {
        Self { handle: Arc::new(Handle { inner }) }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.handle.inner
    }

    /// Connects to the agent of the options, and tells what the server and the agent can do.
    ///
    /// A server that is not up yet is waited for. Dropping the future gives the attempt up.
    ///
    /// # Errors
    /// [`Error::AlreadyConnected`] while there is a connection or one is being made.
    /// [`Error::Disconnected`] if [`disconnect`](Self::disconnect) was called meanwhile.
    pub fn connect(&self) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        match self.inner().options.agent.clone() {
            Some(agent) => self.connect_with(agent),
            None => Box::pin(async { Err(Error::config("connecting needs the name of an agent")) }),
        }
    }

    /// Connects to an agent of this name.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(
        &self,
        agent: impl Into<String>,
    ) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        let (client, agent) = (self.clone(), agent.into());
        Box::pin(async move {
            let attempt = client.inner().begin(&agent, Asked::ByProgram)?;
            client.wait_for(attempt).await
        })
    }

    /// Waits for an attempt; if the wait is given up, so is the attempt.
    async fn wait_for(&self, attempt: Arc<Attempt>) -> Result<Arc<Capabilities>, Error> {
        struct GiveUp<'a>(&'a Inner, &'a Arc<Attempt>);
        impl Drop for GiveUp<'_> {
            fn drop(&mut self) {
                self.0.give_up(self.1);
            }
        }
        let guard = GiveUp(self.inner(), &attempt);
        let outcome = attempt.finished().await;
        // The attempt is over, and giving it up changes nothing any more.
        std::mem::forget(guard);
        outcome
    }

    /// Ends the connection, or the attempt to make one. Calls that wait fail with [`Error::Disconnected`].
    ///
    /// It is bounded by the timeout for it and may be called at any time and any number of times. Where every
    /// connection has an agent of its own, the agent and its sessions end too; elsewhere they live on.
    ///
    /// # Errors
    /// [`Error::Store`] if what happened in sessions that are kept could not be stored. A server that does not confirm
    /// the end in time is not waited for, and that is no error.
    pub fn disconnect(&self) -> BoxFuture<'static, Result<(), Error>> {
        let client = self.clone();
        Box::pin(async move {
            client.inner().disconnect().await;
            #[cfg(feature = "sessions")]
            if let Some(ledger) = client.inner().ledger.get() {
                ledger.flush().await?;
            }
            Ok(())
        })
    }

    /// Starts the agent anew, after it has ended or to begin afresh.
    ///
    /// Where every connection has an agent of its own, the old agent is ended, with all its sessions, and a new one
    /// is started under a new name. Elsewhere the agent is shared: it is started if it is not running, and left
    /// alone if it is. Sessions that have ended stay so until they are [loaded](Self::load_session) or
    /// [resumed](Self::resume_session). Of several tasks that call this after the same end, one starts the agent and
    /// all get it.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is no connection to an agent, dead or alive.
    pub fn restart_agent(&self) -> BoxFuture<'static, Result<Arc<Capabilities>, Error>> {
        let client = self.clone();
        // The agent that is meant is the one there is now, not one that is started while this waits.
        let present = self.inner().present();
        Box::pin(async move {
            let Some(connection) = present else {
                let fresh = client.inner().connection().await?;
                return fresh.capabilities().ok_or(Error::NotConnected);
            };
            if connection.kind() != ServerKind::PerAgent && connection.is_usable() {
                return connection.initialize().await;
            }
            match client.inner().begin_again(&connection)? {
                Again::Ours(attempt) => client.wait_for(attempt).await,
                Again::Theirs(attempt) => attempt.finished().await,
                Again::Done(connection) => connection.capabilities().ok_or(Error::NotConnected),
            }
        })
    }

    /// Where the connection stands.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.inner().state()
    }

    /// What the server and the agent can do, while there is a connection.
    #[must_use]
    pub fn capabilities(&self) -> Option<Arc<Capabilities>> {
        self.inner().present()?.capabilities()
    }

    /// Whether the server or the agent can do something, as far as is known: from what they say, and from what has
    /// been tried over this connection. A user interface offers what [is possible](Support::is_possible).
    ///
    /// Nothing is sent. Without a connection nothing is known.
    #[must_use]
    pub fn supports(&self, feature: impl Into<Feature>) -> Support {
        self.inner().present().map_or(Support::Unknown, |connection| connection.supports(feature.into()))
    }

    /// How the agent ended, if it has and the connection with it.
    #[must_use]
    pub fn termination(&self) -> Option<TerminationInfo> {
        match self.state() {
            ConnectionState::AgentEnded(info) => Some(*info),
            _ => None,
        }
    }

    /// Everything that happens from now on: to the connection, and in all sessions.
    pub fn events(&self) -> Events {
        self.inner().hub.subscribe()
    }

    /// A handle of a session by its id. Nothing is sent, and the session need not exist.
    ///
    /// Subscribe to [`Session::events`] before a session is loaded to see its history as it comes.
    #[must_use]
    pub fn session(&self, session_id: impl Into<String>) -> Session {
        Session::of(self.clone(), session_id.into())
    }

    #[cfg(feature = "sessions")]
    /// The sessions that are kept: in the store of the options, or in memory while this program runs.
    #[must_use]
    pub fn sessions(&self) -> Sessions {
        Sessions::of(self.clone())
    }

    /// What the server offers besides its agents' conversations. It works without a connection.
    #[must_use]
    pub fn control(&self) -> &ControlPlane {
        &self.inner().control
    }

    /// The page of the server on which people watch its agents. The token is not in it.
    #[must_use]
    pub fn inspector_url(&self) -> String {
        self.control().inspector_url()
    }

    /// Whether the server is up. It works without a connection.
    #[must_use]
    pub fn health(&self) -> HealthCheck {
        self.control().health()
    }

    /// The agents that the server can run. It works without a connection.
    #[must_use]
    pub fn agents(&self) -> Agents {
        self.control().agents()
    }

    /// The files of the server's machine. It works without a connection.
    #[must_use]
    pub fn files(&self) -> Files {
        self.control().files()
    }

    /// What is configured for directories of the server's machine. It works without a connection.
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
    let mut builder =
        ControlPlane::builder(&options.base_url).http_client(http.clone()).limits(options.limits.clone());
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
