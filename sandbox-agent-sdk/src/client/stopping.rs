//! Cancelling turns and ending sessions.

use futures::future::BoxFuture;
use serde_json::json;

use super::calls::Needs;
use super::connection::Connection;
use super::handle::SandboxAgentClient;
use super::methods::read;
use super::names::{CLOSE, TERMINATE};
use crate::Error;
use crate::error::{Phase, Timeout};
use crate::extensions::Extension;
use crate::session::TerminateResult;
use crate::termination::TerminationReport;

impl SandboxAgentClient {
    /// Cancels the turn of a session and waits until it has stopped.
    ///
    /// First cancels the open agent requests of the session. Sends the cancel notification even if no turn is running.
    /// Prompts that wait for a cancelled turn are withdrawn; a prompt that follows this call is not affected. Each call
    /// sends a cancel, because an earlier one may be lost.
    ///
    /// # Errors
    /// [`Error::Timeout`] with [`Phase::Cancel`] if the turn does not stop within
    /// [`ClientTimeouts::cancel`](crate::ClientTimeouts#structfield.cancel).
    pub fn cancel(&self, session_id: impl Into<String>) -> BoxFuture<'static, Result<(), Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            // The task that runs the turn sends the cancel, so that it follows the prompt.
            if let Some(end) = client.inner().hub.cancel_all(&id) {
                let stopping = async {
                    end.passed().await;
                    Ok(())
                };
                return client.stopped(stopping).await;
            }
            let connection = client.inner().connection().await?;
            connection.check()?;
            client.stopped(connection.cancel(&id)).await
        })
    }

    /// Waits within the time to cancel.
    pub(super) async fn stopped(
        &self,
        stopping: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let limit = self.inner().options.timeouts.cancel;
        let late = || Error::Timeout(Box::new(Timeout::new(Phase::Cancel, "session/cancel", limit)));
        tokio::time::timeout(limit, stopping).await.unwrap_or_else(|_| Err(late()))
    }

    /// Ends a session. Its termination is marked as [requested](crate::TerminationInfo::requested) and never counts
    /// as a crash.
    ///
    /// Released servers cannot end a session. There, the agent closes the session, if it advertises that it can. If
    /// neither is possible, [`disconnect`](Self::disconnect) ends the agent of a released server with all its
    /// sessions.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if neither the server nor the agent can end a session.
    pub fn terminate_session(
        &self,
        session_id: impl Into<String>,
    ) -> BoxFuture<'static, Result<TerminateResult, Error>> {
        let (client, id) = (self.clone(), session_id.into());
        Box::pin(async move {
            let connection = client.inner().connection().await?;
            connection.check()?;
            let hub = &client.inner().hub;
            hub.request_stop(&id);
            let result = terminate(&connection, &id).await;
            match &result {
                // The notification may still arrive; if the server sends none, the session has ended anyway.
                Ok(result) if result.terminated => {
                    connection.barrier().await;
                    hub.end_session(&id, TerminationReport::requested());
                }
                _ => hub.withdraw_stop(&id),
            }
            result
        })
    }
}

/// Ends a session through the server, or otherwise through the agent.
pub(super) async fn terminate(connection: &Connection, id: &str) -> Result<TerminateResult, Error> {
    let params = json!({"sessionId": id});
    let can = connection.capabilities();
    let by_server = can.as_deref().is_some_and(|can| can.extensions.supports(Extension::SessionTerminate));
    if !by_server && can.is_some_and(|can| can.close_session) {
        if connection.hub.ended(id).is_some() {
            return Ok(TerminateResult::of_close(false));
        }
        match connection.optional(CLOSE, params.clone(), Some(id), Needs::Nothing).await {
            Err(Error::Unsupported { .. }) => {}
            closed => return closed.map(|_| TerminateResult::of_close(true)),
        }
    }
    let answer = connection.optional(TERMINATE, params, Some(id), Needs::Nothing).await?;
    read(TERMINATE, answer)
}
