//! Local servers by sandbox id.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Endpoint, ProviderError};
use crate::local::LocalServer;

/// Servers that this program started. Dropping this value stops them.
#[derive(Default)]
pub(super) struct Held {
    /// Guards the table, never across an await.
    servers: Mutex<HashMap<String, LocalServer>>,
}

impl Held {
    /// Adds a server and returns its id.
    pub(super) fn add(&self, server: LocalServer) -> String {
        let id = server.pid().to_string();
        self.servers().insert(id.clone(), server);
        id
    }

    pub(super) fn endpoint(&self, id: &str) -> Result<Endpoint, ProviderError> {
        let servers = self.servers();
        let server = servers.get(id).filter(|server| server.exit().is_none());
        let server = server.ok_or_else(|| ProviderError::NotFound(id.to_owned()))?;
        Ok(Endpoint::local(server))
    }

    pub(super) fn remove(&self, id: &str) -> Option<LocalServer> {
        self.servers().remove(id)
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<String, LocalServer>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.servers().keys()).finish()
    }
}
