//! A sandbox with a client for its server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use super::{ProviderError, SandboxProvider};
use crate::control::HealthWait;
use crate::convert::text::OneLine;
use crate::{ClientOptions, SandboxAgentClient};

type Adjust = Box<dyn FnOnce(ClientOptions) -> ClientOptions + Send + Sync>;

/// Options for creating a sandbox or attaching to one. See [`SandboxAgentClient::with_provider`].
#[must_use = "nothing happens until `start` is called"]
pub struct Provisioning {
    provider: Arc<dyn SandboxProvider>,
    id: Option<String>,
    agent: Option<String>,
    start_timeout: Duration,
    client: Adjust,
}

impl SandboxAgentClient {
    /// Creates options for a sandbox with a server and a client for it.
    pub fn with_provider(provider: impl SandboxProvider) -> Provisioning {
        Self::with_shared_provider(Arc::new(provider))
    }

    /// Like [`with_provider`](Self::with_provider), but shares the provider with other sandboxes.
    pub fn with_shared_provider(provider: Arc<dyn SandboxProvider>) -> Provisioning {
        Provisioning {
            provider,
            id: None,
            agent: None,
            start_timeout: Duration::from_secs(60),
            client: Box::new(|options| options),
        }
    }
}

impl Provisioning {
    /// Attaches to the sandbox with this [id](Sandbox::id) instead of creating one.
    pub fn sandbox_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the agent that the client connects to. Without an agent it does not connect.
    pub fn agent(mut self, agent: impl Into<String>) -> Self {
        self.agent = Some(agent.into());
        self
    }

    /// Sets how long the server may take to become healthy; one minute by default.
    pub fn start_timeout(mut self, time: Duration) -> Self {
        self.start_timeout = time;
        self
    }

    /// Changes the options of the client, whose URL and token are already set.
    ///
    /// A client with another token or HTTP client may send its token to a process that takes the port of a
    /// [`LocalProvider`](super::LocalProvider) or [`BubblewrapProvider`](super::BubblewrapProvider) after the server has
    /// ended.
    pub fn client_options(
        mut self,
        change: impl FnOnce(ClientOptions) -> ClientOptions + Send + Sync + 'static,
    ) -> Self {
        self.client = Box::new(change);
        self
    }

    /// Creates the sandbox, or attaches to it, and waits until its server is healthy.
    ///
    /// # Errors
    /// [`ProviderError`] describes the failure. If this call created the sandbox, the sandbox has been destroyed.
    pub fn start(self) -> BoxFuture<'static, Result<Sandbox, ProviderError>> {
        Box::pin(async move {
            let provider = Arc::clone(&self.provider);
            match self.id.clone() {
                Some(id) => {
                    let wrong = || ProviderError::WrongProvider {
                        id: id.clone(),
                        provider: provider.name().to_owned(),
                    };
                    let raw = id
                        .strip_prefix(provider.name())
                        .and_then(|rest| rest.strip_prefix('/'))
                        .ok_or_else(wrong)?;
                    self.attach(raw.to_owned()).await
                }
                None => {
                    let raw = provider.start().await?;
                    let attached = self.attach(raw.clone()).await;
                    if attached.is_err()
                        && let Err(error) = provider.destroy(&raw).await
                    {
                        tracing::warn!(error = %OneLine(&error), sandbox = raw, "failed to destroy an unusable sandbox");
                    }
                    attached
                }
            }
        })
    }

    async fn attach(self, raw: String) -> Result<Sandbox, ProviderError> {
        let server = |error| ProviderError::Server(Box::new(error));
        let endpoint = self.provider.endpoint(&raw).await?;
        let mut options = endpoint.client_options().auto_connect(self.agent.is_some());
        if let Some(agent) = self.agent {
            options = options.agent(agent);
        }
        let client = SandboxAgentClient::new((self.client)(options)).map_err(server)?;
        endpoint.attach(&client).await;
        client.health().wait(HealthWait::within(self.start_timeout)).await.map_err(server)?;
        Ok(Sandbox { provider: self.provider, raw, client })
    }
}

impl fmt::Debug for Provisioning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provisioning")
            .field("provider", &self.provider)
            .field("id", &self.id)
            .field("agent", &self.agent)
            .finish_non_exhaustive()
    }
}

/// A sandbox with a client for the server in it.
///
/// Dropping this value drops the client. The provider decides whether the sandbox keeps running.
#[derive(Debug)]
pub struct Sandbox {
    provider: Arc<dyn SandboxProvider>,
    raw: String,
    client: SandboxAgentClient,
}

impl Sandbox {
    /// Returns the id: the provider's name, a slash, and the provider's own id.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.provider.name(), self.raw)
    }

    /// Returns the provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn SandboxProvider> {
        &self.provider
    }

    /// Returns the client of the server in the sandbox.
    #[must_use]
    pub fn client(&self) -> &SandboxAgentClient {
        &self.client
    }

    /// Disconnects the client and pauses the sandbox. Attaching to it by its id resumes it.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] if the provider cannot pause; the sandbox is unchanged.
    pub fn pause(self) -> BoxFuture<'static, Result<(), ProviderError>> {
        Box::pin(async move {
            self.disconnect().await;
            self.provider.pause(&self.raw).await
        })
    }

    /// Disconnects the client and destroys the sandbox with all its contents.
    ///
    /// # Errors
    /// The provider's error. The sandbox may still exist.
    pub fn destroy(self) -> BoxFuture<'static, Result<(), ProviderError>> {
        Box::pin(async move {
            self.disconnect().await;
            self.provider.destroy(&self.raw).await
        })
    }

    async fn disconnect(&self) {
        if let Err(error) = self.client.disconnect().await {
            tracing::debug!(error = %OneLine(&error), "failed to disconnect the client of a sandbox");
        }
    }
}
