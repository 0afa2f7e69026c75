//! Prompts, and the two ways in which a turn ends.

use std::sync::Arc;

use acp_http_client as wire;
use serde_json::Value;

use super::calls::ended;
use super::connection::Connection;
use super::names::PROMPT;
use crate::Error;
use crate::error::{Phase, RpcError, Timeout};

impl Connection {
    /// Sends a prompt and waits for the end of its turn.
    ///
    /// The end is the response. If the response only confirms that the prompt was accepted, as in the draft of
    /// version 2 of the protocol, the end is the report that the session is idle.
    pub(super) async fn prompt(
        &self,
        session: &str,
        request: wire::Request<wire::Json>,
    ) -> Result<Value, Error> {
        // Agent requests of the turn are addressed to this client until its end.
        let _pending = self.hub.pending_call(session);
        let again = request.copy();
        let outcome = match self.session_request(PROMPT, session, request).await {
            // It certainly did not reach the server, which may have been restarted.
            Err(Error::Unreachable(_)) if self.hub.is_cancelling(session) => {
                Err(Error::Withdrawn { what: PROMPT.to_owned() })
            }
            Err(Error::Unreachable(_)) => self.session_request(PROMPT, session, again).await,
            outcome => outcome,
        };
        let outcome = match outcome {
            Ok(response) if is_acceptance(&response) => self.idle(session).await,
            outcome => outcome,
        };
        // Everything before the end belongs to the turn.
        self.barrier().await;
        if outcome.as_ref().is_ok_and(|response| !is_cancelled(response)) {
            self.hub.run_completed(session);
        }
        outcome
    }

    /// Waits until the run of a cancelled prompt has ended, if the agent reports that: text of the run may follow its
    /// response. If an agent that has never reported an end does not report that of a run that was certainly interrupted
    /// in time, it is not waited for again until it reports one.
    pub(super) async fn run_end(&self, session: &str, is_interrupted: bool) {
        let times = &self.options.timeouts;
        let mut end = self.hub.watch_end(session);
        let mut progress = self.hub.watch_progress(session);
        let is_late = tokio::select! {
            biased;
            _ = progress.wait_for(|progress| !progress.may_continue()) => false,
            _ = ended(&mut end) => false,
            _ = self.wire.ended() => false,
            () = tokio::time::sleep(times.run_end.min(times.cancel / 2)) => true,
        };
        self.hub.run_end_awaited(session, is_late && is_interrupted);
    }

    /// Waits for the report that the work of a session has ended. It may have arrived already.
    async fn idle(&self, session: &str) -> Result<Value, Error> {
        let mut end = self.hub.watch_end(session);
        let mut progress = self.hub.watch_progress(session);
        // The report may be lost in a gap. A session that then stays silent has no running turn.
        let limit = self.options.timeouts.request;
        loop {
            let in_doubt = {
                let now = progress.borrow_and_update();
                if let Some(report) = &now.ended_by {
                    return outcome(report);
                }
                if now.restarted {
                    return Err(Error::ServerRestarted { what: PROMPT.to_owned() });
                }
                now.uncertain && now.open_requests == 0
            };
            tokio::select! {
                biased;
                Ok(()) = progress.changed() => {}
                info = ended(&mut end) => {
                    let with_connection = self.shared.ended().is_some();
                    return Err(Error::ended(Some(session).filter(|_| !with_connection), info, true));
                }
                reason = self.wire.ended() => return Err(Error::terminated(&reason)),
                () = tokio::time::sleep(limit), if in_doubt => {
                    return Err(Error::Timeout(Box::new(Timeout::new(Phase::Confirmation, PROMPT, limit))));
                }
            }
        }
    }
}

/// Whether a response only confirms that the prompt was added to the conversation.
fn is_acceptance(response: &Value) -> bool {
    let text = |member: &str| response.get(member).is_some_and(Value::is_string);
    text("messageId") && !text("stopReason")
}

/// Whether the response says that the prompt was cancelled.
pub(super) fn is_cancelled(response: &Value) -> bool {
    response.get("stopReason").is_some_and(|reason| reason == "cancelled")
}

/// Converts the report of the end to the outcome.
fn outcome(report: &Arc<Value>) -> Result<Value, Error> {
    if report.get("stopReason").and_then(Value::as_str) != Some("error") {
        return Ok((**report).clone());
    }
    let error = report.get("error").cloned().and_then(|error| serde_json::from_value(error).ok());
    let unknown = || RpcError::new(RpcError::INTERNAL_ERROR, "the agent reports an error without details");
    Err(Error::Rpc { error: error.unwrap_or_else(unknown), status: None, executed: true })
}
