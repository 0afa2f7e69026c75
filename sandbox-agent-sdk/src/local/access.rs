//! What a client of a running server needs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::credential::Credential;
use crate::client::WeakClient;
use crate::convert::text::OneLine;
use crate::{ClientOptions, SandboxAgentClient};

/// How long a client may take to disconnect, including pending writes to its store.
const DISCONNECT: Duration = Duration::from_secs(10);

/// Lets clients use a server, and ends them with it.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    credential: Arc<Credential>,
    clients: Clients,
}

impl Access {
    pub(super) fn new(credential: Arc<Credential>, clients: Clients) -> Self {
        Self { credential, clients }
    }

    /// Makes a client send the token of the server, and only to the server.
    pub(crate) fn authorise(&self, options: ClientOptions) -> ClientOptions {
        self.credential.authorise(options)
    }

    /// Disconnects this client as soon as the server exits, or now if it has exited.
    pub(crate) async fn attach(&self, client: &SandboxAgentClient) {
        self.clients.add(client).await;
    }

    pub(crate) fn token(&self) -> &str {
        self.credential.expose()
    }
}

/// The clients that end with a server.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    /// `None` once the server has exited. Guards a list; held for a look-up.
    clients: Arc<Mutex<Option<Vec<WeakClient>>>>,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self { clients: Arc::new(Mutex::new(Some(Vec::new()))) }
    }

    async fn add(&self, client: &SandboxAgentClient) {
        // Dropped without the lock: the drop of the last handle of a client ends its tasks.
        let mut in_use = Vec::new();
        let is_late = match &mut *self.lock() {
            Some(clients) => {
                clients.retain(|client| client.upgrade().map(|client| in_use.push(client)).is_ok());
                clients.push(client.downgrade());
                false
            }
            None => true,
        };
        if is_late {
            disconnect(client.clone()).await;
        }
    }

    /// Disconnects the clients that were added, and from now on each one that is added.
    pub(super) async fn disconnect(&self) {
        let clients = self.lock().take().unwrap_or_default();
        join_all(clients.iter().filter_map(|client| client.upgrade().ok()).map(disconnect)).await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<WeakClient>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn disconnect(client: SandboxAgentClient) {
    match timeout(DISCONNECT, client.disconnect()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(error = %OneLine(&error), "failed to disconnect from a server that has exited")
        }
        Err(_) => tracing::debug!("disconnecting from a server that has exited timed out"),
    }
}

#[cfg(test)]
mod tests {
    use super::Clients;
    use crate::{ConnectionState, SandboxAgentClient};

    fn client() -> SandboxAgentClient {
        // Nothing listens there, so that it connects until it is disconnected.
        SandboxAgentClient::builder("http://127.0.0.1:9").agent("mock").build().unwrap()
    }

    #[tokio::test]
    async fn clients_that_are_attached_before_or_after_the_exit_are_disconnected() {
        let clients = Clients::new();
        let [early, late] = [client(), client()];
        clients.add(&early).await;
        clients.disconnect().await;
        clients.add(&late).await;
        for client in [early, late] {
            assert!(matches!(client.state(), ConnectionState::Disconnected), "{:?}", client.state());
        }
    }

    #[tokio::test]
    async fn clients_that_were_dropped_are_not_stored() {
        let clients = Clients::new();
        for _ in 0..100 {
            clients.add(&client()).await;
        }
        assert_eq!(clients.lock().as_ref().map(Vec::len), Some(1));
    }
}
