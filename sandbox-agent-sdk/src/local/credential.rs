//! The token of a server, which is sent only to that server.

use std::sync::{Arc, Mutex, PoisonError};

use acp_http_client::{Token, TokenError};

use crate::client::secret::Secret;
use crate::process_tree::{Holders, Listener, ProcessTree, run_blocking};

/// Provides the token of a server while the server holds its port. Afterwards another process may listen there.
#[derive(Debug)]
pub(super) struct Credential {
    tree: Arc<ProcessTree>,
    port: u16,
    token: Secret,
    /// The processes that hold the port, or `None` if that is not checked. Guards a list; held for a look-up.
    holders: Option<Mutex<Holders>>,
}

impl Credential {
    pub(super) fn new(
        tree: Arc<ProcessTree>,
        port: u16,
        token: Secret,
        holders: Option<Holders>,
    ) -> Arc<Self> {
        Arc::new(Self { tree, port, token, holders: holders.map(Mutex::new) })
    }

    /// Returns the token.
    ///
    /// # Errors
    /// If the server has exited, or no longer holds its port.
    pub(super) async fn token(&self) -> Result<Token, TokenError> {
        if !self.tree.is_leader_alive() {
            return Err(TokenError::from("the local server has exited"));
        }
        if let Some(holders) = &self.holders {
            let held = holders.lock().unwrap_or_else(PoisonError::into_inner).any_alive();
            if !held {
                // The first process may be a wrapper, and start the server again.
                let port = self.port;
                let listener = run_blocking(&self.tree, move |tree| tree.listener(port)).await;
                match listener? {
                    Listener::Member(new) => {
                        *holders.lock().unwrap_or_else(PoisonError::into_inner) = new;
                    }
                    Listener::Unknown => {}
                    Listener::None | Listener::Foreign => {
                        return Err(TokenError::from("the local server no longer listens on its port"));
                    }
                }
            }
        }
        Token::new(self.token.expose()).map_err(TokenError::from)
    }
}
