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

pub use bubblewrap::BubblewrapProvider;
pub use container::ContainerProvider;
pub use error::ProviderError;
pub use local::LocalProvider;
pub use sandbox::{Provisioning, Sandbox};

/// The address of a sandbox's server.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// The URL of the server.
    pub url: String,
    token: Option<Secret>,
}

impl Endpoint {
    /// Creates an endpoint.
    pub fn new(url: impl Into<String>, token: Option<String>) -> Self {
        Self { url: url.into(), token: token.map(Secret::from) }
    }

    /// Returns the token that the server requires. Its memory is overwritten on drop.
    #[must_use]
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(Secret::expose)
    }
}

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
