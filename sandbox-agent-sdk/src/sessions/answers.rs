//! Stores agent requests and the responses to them before they take effect.

use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::calls::{FIRST_WAIT, LAST_WAIT};
use super::entry::{Entry, is_stored, rpc_id_of};
use super::feed::Mailbox;
use super::shared::Shared;
use super::store::{Append, Appended, EventQuery, Fence, StoreError, StoredEventKind};
use super::tracker::{Command, View};
use super::unique::unique_id;
use crate::error::RpcError;
use crate::requests::{AgentRequest, RequestHandler, Response};
use crate::sessions::UserAction;

/// Stores agent requests of stored sessions: the response to a permission request or question before the response is
/// sent, and the start of any other request before its handler runs. So each of the other requests is executed at
/// most once, although the next owner of the session reads it too.
#[derive(Debug)]
pub(super) struct Answers(pub(super) Weak<Shared>);

impl Answers {
    /// Whether the request belongs to a stored session of this process.
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
        let Some((shared, inbox, turn)) = self.tracker_of(&request) else { return request.forward() };
        // The turn that runs when the request arrives, not the one that runs when it is stored. The tracker may not show
        // a turn of this process yet.
        let running = || shared.tracked(inbox.session())?.view.borrow().turn.clone();
        let turn = turn.or_else(running);
        match is_stored(request.method()) {
            true => decide(self.0.clone(), inbox, turn, request),
            false => {
                let fence = shared.tracked(inbox.session()).and_then(|handle| handle.view.borrow().fence);
                Box::pin(serve(shared, inbox, (turn, fence), request))
            }
        }
    }
}

/// Lets a permission request or a question be decided, and stores the response before it is sent.
fn decide(
    shared: Weak<Shared>,
    inbox: Mailbox,
    turn_id: Option<String>,
    request: AgentRequest,
) -> BoxFuture<'static, Response> {
    let params = request.params();
    let tool_call = params.pointer("/toolCall/toolCallId").or_else(|| params.get("toolCallId"));
    let mut payload = json!({ "method": request.method(), "requestId": request.id() });
    if let Some(tool_call) = tool_call {
        payload["toolCallId"] = tool_call.clone();
    }
    let rpc_id = rpc_id_of(request.id());
    let leaving = request.leaving();
    // It is published now, in order between the updates.
    let response = request.forward();
    Box::pin(async move {
        let response = tokio::select! {
            biased;
            response = response => response,
            () = is_left(&shared, &inbox, turn_id.as_deref()) => return leave(&leaving).await,
        };
        match &response {
            Ok(result) => payload["result"] = result.clone(),
            Err(error) => payload["error"] = json!({"code": error.code, "message": error.message}),
        }
        let answer = Entry::own(StoredEventKind::Answered, payload).about(Some(rpc_id));
        let answer = Entry { turn_id, ..answer };
        if inbox.is_busy() {
            // The tracker may wait for the agent, which waits for this response.
            if let Some(shared) = shared.upgrade() {
                shared.feed.give(&inbox, answer);
            }
            return response;
        }
        let (stored, is_stored) = oneshot::channel();
        inbox.note(Command::Answered { answer: Box::new(answer), stored });
        match is_stored.await {
            Ok(true) => response,
            Ok(false) => {
                let what = "the response could not be stored";
                Err(RpcError::new(RpcError::INTERNAL_ERROR, what))
            }
            // This process does not own the session.
            Err(_) if continues(&shared, inbox.session()).await => leave(&leaving).await,
            Err(_) => response,
        }
    })
}

/// Leaves a request to the process that has started it or owns the session: this process sends no response.
async fn leave(leaving: &Notify) -> Response {
    leaving.notify_one();
    // The connection drops the handler.
    pending().await
}

/// Waits until the application no longer needs to decide a request: its turn has ended, or this process does not own
/// its session and the next owner lets its application decide.
async fn is_left(shared: &Weak<Shared>, inbox: &Mailbox, turn: Option<&str>) {
    let is_over = |view: &View| {
        let Some(turn) = turn.filter(|turn| view.turn.as_deref() != Some(turn)) else { return false };
        // The tracker may not show the turn yet.
        shared
            .upgrade()
            .is_some_and(|shared| !shared.feed.is_running(turn) && !shared.feed.is_claiming(inbox))
    };
    let handle = shared.upgrade().and_then(|shared| shared.tracked(inbox.session()));
    if let Some(mut handle) = handle {
        // While the session is being created or acquired, no process owns it. A tracker that has ended owns none.
        let is_owned = handle.view.wait_for(|view| view.fence.is_some()).await.is_ok();
        let left = handle.view.wait_for(|view| view.fence.is_none() || is_over(view)).await;
        let is_over = is_owned && left.is_ok_and(|view| view.fence.is_some());
        if is_over {
            return;
        }
    }
    if !continues(shared, inbox.session()).await {
        pending().await
    }
}

/// Whether a session can have another owner, whose application decides its requests: it was not deleted, and its
/// status is not final. Waits for the store.
async fn continues(shared: &Weak<Shared>, id: &str) -> bool {
    let mut wait = FIRST_WAIT;
    loop {
        // Without a store, only the application of this process can decide the requests.
        let Some(shared) = shared.upgrade() else { return false };
        if let Ok(record) = shared.in_time(shared.store.get(id)).await {
            return record.is_some_and(|record| !record.status.is_terminal());
        }
        drop(shared);
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_WAIT);
    }
}

/// Serves any other request, if this process owns the session and no process has started the request before. `at` is
/// the fence with which this process owned the session when the request arrived.
async fn serve(
    shared: Arc<Shared>,
    inbox: Mailbox,
    (turn, at): (Option<String>, Option<Fence>),
    request: AgentRequest,
) -> Response {
    let (rpc_id, leaving) = (rpc_id_of(request.id()), request.leaving());
    match begin(&shared, &inbox, (turn.as_deref(), at), &rpc_id, request.method()).await {
        Ok(true) => {}
        // It belongs to the process that has started it or owns the session. This process sends no response.
        Ok(false) => return leave(&leaving).await,
        Err(error) => {
            let what = format!("the request was not executed: {error}");
            return Err(RpcError::new(RpcError::INTERNAL_ERROR, what));
        }
    }
    drop(shared);
    // It is closed with its turn. If this process ends before the agent has the response, the next owner responds.
    request.forward().await
}

/// Stores that this process starts a request. Returns whether it may: it owns the session, the turn of the request
/// runs, and no process has started the request before.
async fn begin(
    shared: &Shared,
    inbox: &Mailbox,
    (turn, at): (Option<&str>, Option<Fence>),
    rpc_id: &str,
    method: &str,
) -> Result<bool, StoreError> {
    let Some(mut view) = shared.tracked(inbox.session()).map(|handle| handle.view) else {
        return shared.serves_unowned(inbox.session()).await;
    };
    let payload = json!({ "method": method, "nonce": unique_id() });
    let (deadline, mut wait) = (shared.deadline(), FIRST_WAIT);
    let (mut refused, mut is_repeated) = (None, false);
    loop {
        let is_known =
            |view: &View| turn.is_none() || view.turn.as_deref() == turn || !shared.feed.is_claiming(inbox);
        let is_owned = |view: &View| view.fence.is_some() && view.fence != refused;
        let owned = view.wait_for(|view| is_owned(view) && is_known(view)).await;
        let seen = owned.map(|view| (view.fence, view.turn.clone(), view.incarnation));
        let Ok((fence, running, incarnation)) = seen else {
            return shared.serves_unowned(inbox.session()).await;
        };
        let is_over = |running: Option<String>| {
            turn.is_some_and(|turn| running.as_deref() != Some(turn) && !shared.feed.is_running(turn))
        };
        if is_over(running) {
            // The agent no longer waits for it.
            return Ok(false);
        }
        if turn.is_none() && fence != at {
            // It belongs to a turn that another process began before this one acquired the session.
            return Ok(false);
        }
        let entry = Entry::own(StoredEventKind::AgentRequest, payload.clone());
        let now = SystemTime::now().into();
        let event = entry.about(Some(rpc_id.to_owned())).into_event(incarnation, turn);
        let mut append = Append::to(inbox.session()).events([event]);
        append.fence = fence;
        append.patch.last_active_at = Some(now);
        match shared.append(append).await {
            // A slow store may have stored it after the end of its turn.
            Ok(appended) if appended.added > 0 => return Ok(!is_over(view.borrow().turn.clone())),
            // An earlier attempt may have stored it, or another process has started it.
            Ok(appended) if is_repeated => return is_own(shared, inbox, &appended, &payload).await,
            Ok(_) => return Ok(false),
            // Another process owns the session, or this one has acquired it again.
            Err(StoreError::OwnershipLost { .. }) => {
                if let Err(error @ StoreError::NotAllowed { .. }) =
                    shared.serves_unowned(inbox.session()).await
                {
                    return Err(error);
                }
                refused = fence;
            }
            Err(StoreError::NotFound { .. }) => return Ok(true),
            Err(error) if error.may_be_done() && Instant::now() < deadline => {
                tokio::time::sleep(wait).await;
                (wait, is_repeated) = (wait * 2, true);
            }
            Err(error) => return Err(error),
        }
    }
}

impl Shared {
    /// Whether this process serves the requests of a session that it does not own: nothing else serves those of a session
    /// that was deleted during its turn. No process serves those of a session with a final status, which is an error.
    async fn serves_unowned(&self, id: &str) -> Result<bool, StoreError> {
        let Some(record) = self.in_time(self.store.get(id)).await? else { return Ok(true) };
        match record.status {
            status if status.is_terminal() => {
                Err(StoreError::NotAllowed { id: id.to_owned(), action: UserAction::Send, status })
            }
            _ => Ok(false),
        }
    }
}

/// Whether the stored request has this payload, which contains the nonce of this process.
async fn is_own(
    shared: &Shared,
    inbox: &Mailbox,
    appended: &Appended,
    payload: &Value,
) -> Result<bool, StoreError> {
    let Some(index) = appended.indexes.first() else { return Ok(false) };
    let query = EventQuery::of(inbox.session()).after(index - 1).limit(1);
    let page = shared.in_time(shared.store.events(&query)).await?;
    Ok(page.events.first().is_some_and(|stored| stored.payload == *payload))
}
