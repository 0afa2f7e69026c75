//! The token of a server, which is sent only to that server.

use std::sync::Arc;

use acp_http_client::{Token, TokenError};

use crate::ClientOptions;
use crate::client::secret::Secret;
use crate::process_tree::{Listener, Owner, ProcessTree, run_blocking};

/// Provides the token of a server while the server holds its port. Afterwards another process may listen there.
#[derive(Debug)]
pub(super) struct Credential {
    tree: Arc<ProcessTree>,
    port: u16,
    token: Secret,
    owner: Owner,
}

impl Credential {
    pub(super) fn new(tree: Arc<ProcessTree>, port: u16, token: Secret, owner: Owner) -> Arc<Self> {
        Arc::new(Self { tree, port, token, owner })
    }

    /// Makes a client get the token here for each request.
    pub(super) fn authorise(self: &Arc<Self>, options: ClientOptions) -> ClientOptions {
        let credential = Arc::clone(self);
        options.token_provider(move |_| {
            let credential = Arc::clone(&credential);
            async move { credential.token().await }
        })
    }

    pub(super) fn expose(&self) -> &str {
        self.token.expose()
    }

    /// Returns the token.
    ///
    /// # Errors
    /// If the server has exited, or does not hold its port: a server that is told to stop closes its listener first.
    async fn token(&self) -> Result<Token, TokenError> {
        if !self.tree.is_leader_alive() {
            return Err(TokenError::from("the local server has exited"));
        }
        // The first process may be a wrapper, and start the server again.
        let (owner, port) = (self.owner, self.port);
        match run_blocking(&self.tree, move |tree| tree.listener(owner, port)).await? {
            Listener::Owner | Listener::Unknown => {}
            Listener::None | Listener::Foreign => {
                return Err(TokenError::from("the local server no longer listens on its port"));
            }
        }
        Token::new(self.expose()).map_err(TokenError::from)
    }
}
