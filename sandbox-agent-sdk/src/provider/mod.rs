//! Sandboxes that run a server: where they come from, and their end.
//!
//! A [`SandboxProvider`] makes sandboxes; [`SandboxAgentClient::with_provider`](crate::SandboxAgentClient::with_provider)
//! makes one, or attaches to one, and gives a client of the server in it.
//!
//! | provider | what separates the server from this machine |
//! |---|---|
//! | [`LocalProvider`] | nothing: it is a process of this user |
//! | [`BubblewrapProvider`] | file system, processes, users and environment, and by choice the network. Linux |
//! | [`ContainerProvider`] | what the container engine separates |
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
mod relay;
mod sandbox;

use std::fmt;

use futures::future::BoxFuture;

pub use bubblewrap::BubblewrapProvider;
pub use container::ContainerProvider;
pub use error::ProviderError;
pub use local::LocalProvider;
pub use sandbox::{Provisioning, Sandbox};

/// Where the server of a sandbox is reached.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// Its URL.
    pub url: String,
    /// The token it requires.
    pub token: Option<String>,
}

impl Endpoint {
    /// A server at this URL.
    pub fn new(url: impl Into<String>, token: Option<String>) -> Self {
        Self { url: url.into(), token }
    }
}

/// The token is not shown.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Makes sandboxes that run a server.
pub trait SandboxProvider: fmt::Debug + Send + Sync + 'static {
    /// Its name, which is the first part of the ids of its sandboxes.
    fn name(&self) -> &str;

    /// Makes a sandbox with a running server, and returns its id. When this fails, nothing is left behind.
    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>>;

    /// Where the server of a sandbox is reached. A paused sandbox is resumed.
    fn endpoint<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Endpoint, ProviderError>>;

    /// Pauses a sandbox: it keeps its state and uses no processor. [`ProviderError::Unsupported`] by default.
    fn pause<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        let _ = id;
        Box::pin(async { Err(ProviderError::Unsupported("pause")) })
    }

    /// Destroys a sandbox with everything in it. One that is gone is fine.
    fn destroy<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>>;
}
