//! Runs a server on this machine without a sandbox.

use std::fmt;

use futures::future::BoxFuture;

use super::held::Held;
use super::{Endpoint, ProviderError, SandboxProvider};
use crate::SandboxAgentClient;
use crate::local::LocalOptions;

/// Starts the released server as a process of this user, without any isolation.
///
/// Dropping the provider stops its servers. A client can attach to them only through this provider.
pub struct LocalProvider {
    options: Box<dyn Fn() -> LocalOptions + Send + Sync>,
    held: Held,
}

impl LocalProvider {
    /// Creates a provider that starts servers with default options.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(SandboxAgentClient::start_local)
    }

    /// Creates a provider that calls this function for the options of each server.
    #[must_use]
    pub fn with_options(options: impl Fn() -> LocalOptions + Send + Sync + 'static) -> Self {
        Self { options: Box::new(options), held: Held::default() }
    }
}

impl Default for LocalProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl SandboxProvider for LocalProvider {
    fn name(&self) -> &str {
        "local"
    }

    fn start(&self) -> BoxFuture<'_, Result<String, ProviderError>> {
        let starting = (self.options)().start();
        Box::pin(async move { Ok(self.held.add(starting.await?)) })
    }

    fn endpoint<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Endpoint, ProviderError>> {
        Box::pin(async move { self.held.endpoint(id) })
    }

    fn destroy<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            if let Some(server) = self.held.remove(id) {
                server.close().await;
            }
            Ok(())
        })
    }
}

impl fmt::Debug for LocalProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalProvider").field("servers", &self.held).finish_non_exhaustive()
    }
}
