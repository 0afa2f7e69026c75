//! Stores answers to agent requests before they are sent.

use std::sync::Weak;

use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::oneshot;

use super::entry::{Entry, is_stored, rpc_id_of};
use super::feed::{Feed, Mailbox};
use super::store::StoredEventKind;
use super::tracker::Command;
use crate::requests::{AgentRequest, RequestHandler, Response};

/// Stores the answers to permission requests and questions of stored sessions before they are sent.
#[derive(Debug)]
pub(super) struct Answers(pub(super) Weak<Feed>);

impl Answers {
    /// Whether an answer to this request is stored.
    pub(super) fn selects(&self, request: &AgentRequest) -> bool {
        is_stored(request.method()) && self.tracker_of(request).is_some()
    }

    fn tracker_of(&self, request: &AgentRequest) -> Option<Mailbox> {
        self.0.upgrade()?.answering(request.session_id()?, request.id())
    }
}

impl RequestHandler for Answers {
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        let params = request.params();
        let tool_call = params.pointer("/toolCall/toolCallId").or_else(|| params.get("toolCallId"));
        let mut payload = json!({ "method": request.method(), "requestId": request.id() });
        if let Some(tool_call) = tool_call {
            payload["toolCallId"] = tool_call.clone();
        }
        let inbox = self.tracker_of(&request);
        // It is published now, in its order between the updates.
        let response = request.forward();
        Box::pin(async move {
            let response = response.await;
            match &response {
                Ok(result) => payload["result"] = result.clone(),
                Err(error) => payload["error"] = json!({"code": error.code, "message": error.message}),
            }
            let Some(inbox) = inbox else { return response };
            if inbox.is_busy() {
                // The tracker may wait for the agent, which waits for this answer.
                let rpc_id = payload["requestId"].as_str().map(rpc_id_of);
                inbox.push(Entry::own(StoredEventKind::Answered, payload).about(rpc_id));
                return response;
            }
            let (stored, is_stored) = oneshot::channel();
            inbox.note(Command::Answered { payload, stored });
            // A tracker that has ended stores nothing, and the agent gets its answer all the same.
            let _ = is_stored.await;
            response
        })
    }
}
