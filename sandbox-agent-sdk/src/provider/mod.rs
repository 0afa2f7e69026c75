//! Creates, attaches to and destroys sandboxes that run a server.
//!
//! A [`SandboxProvider`] creates sandboxes.
//! [`SandboxAgentClient::with_provider`](crate::SandboxAgentClient::with_provider) creates a sandbox, or
//! attaches to one, and returns a client for the server in it.
//!
//! | provider | isolation from this machine |
//! |---|---|
//! | [`LocalProvider`] | none: the server is a process of this user |
//! | [`BubblewrapProvider`] | file system, processes, users, environment, optionally the network; Linux only |
//! | [`ContainerProvider`] | that of the container engine |
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use sandbox_agent_sdk::SandboxAgentClient;
//! use sandbox_agent_sdk::provider::ContainerProvider;
//!
//! let provider = ContainerProvider::docker("my-image-with-sandbox-agent");
//! let sandbox = SandboxAgentClient::with_provider(provider).agent("claude").start().await?;
//! println!("{}", sandbox.id()); // to attach to it later
//! sandbox.client().files().write("/work/notes.txt", "hello").await?;
//! sandbox.destroy().await?;
//! # Ok(()) }
//! ```

mod bubblewrap;
mod container;
mod error;
mod held;
mod local;
mod program;
mod relay;
mod sandbox;

use std::fmt;

use futures::future::BoxFuture;

use crate::client::secret::Secret;
use crate::local::{Access, LocalServer};
use crate::{ClientOptions, SandboxAgentClient};

pub use bubblewrap::BubblewrapProvider;
pub use container::ContainerProvider;
pub use error::ProviderError;
pub use local::LocalProvider;
pub use sandbox::{Provisioning, Sandbox};

/// The address of a sandbox's server.
///
/// An endpoint of [`LocalProvider`] or [`BubblewrapProvider`] is also notified when the server ends. A client of
/// [`with_provider`](crate::SandboxAgentClient::with_provider) is then disconnected, and does not send the token to
/// another process that listens on the port. A provider that wraps one of these must return its endpoints unchanged.
#[derive(Clone)]
#[non_exhaustive]
pub struct Endpoint {
    /// The URL of the server.
    pub url: String,
    token: Option<Secret>,
    /// The server, if this program started it.
    server: Option<Access>,
}

impl Endpoint {
    /// Creates an endpoint.
    pub fn new(url: impl Into<String>, token: Option<String>) -> Self {
        Self { url: url.into(), token: token.map(Secret::from), server: None }
    }

    /// Creates the endpoint of a server that this program started.
    fn local(server: &LocalServer) -> Self {
        let access = server.access().clone();
        Self { server: Some(access), ..Self::new(server.url(), Some(server.token().to_owned())) }
    }

    /// Returns the token that the server requires. Its memory is overwritten on drop.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(Secret::expose)
    }

    /// Creates options for a client of the server.
    fn client_options(&self) -> ClientOptions {
        let options = ClientOptions::new(&self.url);
        match (&self.server, self.token()) {
            (Some(server), _) => server.authorise(options),
            (None, Some(token)) => options.token(token),
            (None, None) => options,
        }
    }

    /// Makes a client of the server end with it.
    async fn attach(&self, client: &SandboxAgentClient) {
        if let Some(server) = &self.server {
            server.attach(client).await;
        }
    }
}

impl PartialEq for Endpoint {
    fn eq(&self, other: &Self) -> bool {
        (&self.url, self.token()) == (&other.url, other.token())
    }
}

impl Eq for Endpoint {}

/// Hides the token.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Creates and destroys sandboxes that run a server.
pub trait SandboxProvider: fmt::Debug + Send + Sync + 'static {
    /// Returns the provider's name, which prefixes the ids of its sandboxes.
    fn name(&self) -> &str;

    /// Creates a sandbox with a running server and returns its id. If this fails, it removes everything it created.
    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>>;

    /// Returns the address of a sandbox's server. Resumes a paused sandbox.
    ///
    /// If another process can take the address after the server has ended, a client may send the token to that process.
    fn endpoint<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Endpoint, ProviderError>>;

    /// Pauses a sandbox: it keeps its state and uses no processor time.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] by default.
    fn pause<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        let _ = id;
        Box::pin(async { Err(ProviderError::Unsupported("pause")) })
    }

    /// Destroys a sandbox with all its contents. Succeeds if it does not exist.
    fn destroy<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>>;
}
