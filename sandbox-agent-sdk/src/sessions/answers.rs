//! Stores agent requests and the answers to them before they take effect.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::oneshot;

use super::entry::{Entry, is_stored, rpc_id_of};
use super::feed::Mailbox;
use super::shared::Shared;
use super::store::{Append, StoreError, StoredEventKind};
use super::tracker::{Command, View};
use crate::error::RpcError;
use crate::requests::{AgentRequest, RequestHandler, Response};

/// Stores agent requests of stored sessions: the answers to permission requests and questions before they are sent, and
/// that a handler begins with any other request before it does. So each of these is executed at most once, although the
/// next owner of the session reads it too.
#[derive(Debug)]
pub(super) struct Answers(pub(super) Weak<Shared>);

impl Answers {
    /// Whether the request is of a stored session of this process.
    pub(super) fn selects(&self, request: &AgentRequest) -> bool {
        self.tracker_of(request).is_some()
    }

    fn tracker_of(&self, request: &AgentRequest) -> Option<(Arc<Shared>, Mailbox, Option<String>)> {
        let shared = self.0.upgrade()?;
        let (inbox, turn) = shared.feed.answering(request.session_id()?, request.id())?;
        Some((shared, inbox, turn))
    }
}

impl RequestHandler for Answers {
    fn handle(&self, request: AgentRequest) -> BoxFuture<'static, Response> {
        match self.tracker_of(&request) {
            Some((_, inbox, _)) if is_stored(request.method()) => decide(inbox, request),
            Some((shared, inbox, turn)) => {
                // The turn that runs when the request arrives, not the one that runs when it is stored. The tracker may
                // not show a turn of this process yet.
                let running = || shared.tracked(inbox.session())?.view.borrow().turn.clone();
                let turn = turn.or_else(running);
                Box::pin(serve(shared, inbox, turn, request))
            }
            None => request.forward(),
        }
    }
}

/// Has a permission request or a question decided, and stores the answer before it is sent.
fn decide(inbox: Mailbox, request: AgentRequest) -> BoxFuture<'static, Response> {
    let params = request.params();
    let tool_call = params.pointer("/toolCall/toolCallId").or_else(|| params.get("toolCallId"));
    let mut payload = json!({ "method": request.method(), "requestId": request.id() });
    if let Some(tool_call) = tool_call {
        payload["toolCallId"] = tool_call.clone();
    }
    // It is published now, in its order between the updates.
    let response = request.forward();
    Box::pin(async move {
        let response = response.await;
        match &response {
            Ok(result) => payload["result"] = result.clone(),
            Err(error) => payload["error"] = json!({"code": error.code, "message": error.message}),
        }
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

/// Has any other request served, if this process is the first that begins with it and owns the session.
async fn serve(shared: Arc<Shared>, inbox: Mailbox, turn: Option<String>, request: AgentRequest) -> Response {
    let rpc_id = rpc_id_of(request.id());
    match begin(&shared, &inbox, turn.as_deref(), &rpc_id, request.method()).await {
        Ok(true) => {}
        // It is that of the process that has begun with it, or owns the session: nothing is answered here.
        Ok(false) => return pending().await,
        Err(error) => {
            let what = format!("the request was not executed: it could not be stored: {error}");
            return Err(RpcError::new(RpcError::INTERNAL_ERROR, what));
        }
    }
    drop(shared);
    let _closing = Closing { inbox, rpc_id };
    request.forward().await
}

/// Stores that this process begins with a request. Returns whether it may: it owns the session, the turn of the request
/// runs, and nothing has begun with the request before.
async fn begin(
    shared: &Shared,
    inbox: &Mailbox,
    turn: Option<&str>,
    rpc_id: &str,
    method: &str,
) -> Result<bool, StoreError> {
    // Nothing else serves the requests of a session that was deleted during its turn.
    let is_deleted = async || Ok(shared.in_time(shared.store.get(inbox.session())).await?.is_none());
    let Some(mut view) = shared.tracked(inbox.session()).map(|handle| handle.view) else {
        return is_deleted().await;
    };
    let mut refused = None;
    loop {
        let is_known =
            |view: &View| turn.is_none() || view.turn.as_deref() == turn || !shared.feed.is_claiming(inbox);
        let is_owned = |view: &View| view.fence.is_some() && view.fence != refused;
        let owned = view.wait_for(|view| is_owned(view) && is_known(view)).await;
        let seen = owned.map(|view| (view.fence, view.turn.clone(), view.incarnation));
        let Ok((fence, running, incarnation)) = seen else { return is_deleted().await };
        if turn.is_some_and(|turn| running.as_deref() != Some(turn) && !shared.feed.is_running(turn)) {
            // The agent does not wait for it any more.
            return Ok(false);
        }
        let entry = Entry::own(StoredEventKind::AgentRequest, json!({ "method": method }));
        let now = SystemTime::now().into();
        let event = entry.about(Some(rpc_id.to_owned())).into_event(incarnation, turn);
        let mut append = Append::to(inbox.session()).events([event]);
        append.fence = fence;
        append.patch.last_active_at = Some(now);
        match shared.append(append).await {
            Ok(appended) => return Ok(appended.added > 0),
            // Another process has the session, or this one has acquired it again.
            Err(StoreError::OwnershipLost { .. }) => refused = fence,
            Err(StoreError::NotFound { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// Closes a request that was begun, when it is answered or the agent does not wait any more.
struct Closing {
    inbox: Mailbox,
    rpc_id: String,
}

impl Drop for Closing {
    fn drop(&mut self) {
        // A tracker that has ended leaves it to the next owner.
        self.inbox.push(Entry::request_closed(Some(self.rpc_id.clone()), "delivered"));
    }
}
