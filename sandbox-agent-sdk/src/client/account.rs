//! Logging out, and deleting sessions.

use futures::future::BoxFuture;
use serde_json::json;

use super::calls::Needs;
use super::handle::SandboxAgentClient;
use super::names::{DELETE, LOGOUT};
use super::session::Session;
use crate::Error;

impl SandboxAgentClient {
    /// Deletes a session from the agent's list, so that it can no longer be loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot delete sessions.
    pub fn delete_session(&self, session_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        self.about(DELETE, session_id.into(), json!({}), Needs::Nothing, |about, _| {
            about.hub.disown(about.id);
            Ok(())
        })
    }

    /// Logs out of the agent. Later calls need another [login](Self::authenticate).
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot log out, [`Error::Rpc`] if it rejects the request.
    pub fn logout(&self) -> BoxFuture<'static, Result<(), Error>> {
        let client = self.clone();
        Box::pin(async move { client.ask_agent(LOGOUT, &json!({})).await })
    }
}

impl Session {
    /// Deletes the session from the agent's list. See [`SandboxAgentClient::delete_session`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the agent cannot delete sessions.
    pub fn delete(&self) -> BoxFuture<'static, Result<(), Error>> {
        self.client().delete_session(self.id())
    }
}
