//! Decides permission requests and questions of the agent.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::client::hub::{Hub, warn_undecided};
use crate::error::RpcError;
use crate::requests::{
    DecidedBy, ELICITATION, Fallback, Held, Params, PermissionHandler, QuestionRequest, REQUEST_PERMISSION,
    REQUEST_QUESTION, Responder, Response,
};
use crate::update::ToolCall;
use crate::{Event, PermissionDecision, PermissionPolicy, PermissionRequest};

/// For how many unnamed sessions a warning is logged that nothing decides their requests.
const WARNED: usize = 64;

/// Decides permission requests and questions: by the policy, by the handler, or by deciding readers.
#[derive(Debug)]
pub(super) struct Decisions {
    hub: Arc<Hub>,
    policy: PermissionPolicy,
    handler: Option<PermissionHandler>,
    /// Guards the sessions this client has never named for which a warning was logged; held for a look-up.
    warned: Mutex<HashSet<Option<Arc<str>>>>,
}

impl Decisions {
    pub(super) fn new(hub: Arc<Hub>, policy: PermissionPolicy, handler: Option<PermissionHandler>) -> Self {
        Self { hub, policy, handler, warned: Mutex::default() }
    }

    /// Whether requests with this method are decided here.
    pub(super) fn decides(method: &str) -> bool {
        matches!(method, REQUEST_PERMISSION | ELICITATION | REQUEST_QUESTION)
    }

    /// Decides a request, at once or by the returned future.
    pub(super) fn decide(
        &self,
        request: Undecided<'_>,
        responder: impl Into<Responder>,
    ) -> Option<BoxFuture<'static, ()>> {
        let Undecided { method, session, params, held } = request;
        if method != REQUEST_PERMISSION {
            let request = QuestionRequest::new(method, params, responder, held);
            // Without a deciding subscriber the question is dropped here, which cancels it.
            if self.hub.publish(&Event::Question(request)) == 0 {
                self.warn(session.cloned());
            }
            return None;
        }
        let reported = reported_call(&self.hub, session.map(AsRef::as_ref), &params);
        let request = PermissionRequest::new(params, responder, held, reported);
        self.permission(request)
    }

    /// Decides a permission request by the policy, the handler or a deciding reader; refuses it if there is none.
    fn permission(&self, request: PermissionRequest) -> Option<BoxFuture<'static, ()>> {
        let decision = self.policy.decide(&request);
        if decision != PermissionDecision::Ask {
            request.obey(&decision);
            self.hub.decided(&request, DecidedBy::Policy);
            return None;
        }
        if let Some(handler) = self.handler.clone() {
            self.hub.publish(&Event::Permission(request.observed()));
            let hub = Arc::clone(&self.hub);
            return Some(Box::pin(async move { ask_handler(&hub, &handler, request).await }));
        }
        if self.hub.publish(&Event::Permission(request.clone())) > 0 {
            return None;
        }
        // The agent may have withdrawn it.
        let _ = request.refuse();
        self.hub.decided(&request, DecidedBy::Default);
        self.warn(request.session_id().map(Into::into));
        None
    }

    /// Logs that nothing decides a session's requests, once for each session.
    fn warn(&self, session: Option<Arc<str>>) {
        let known = session.as_deref().and_then(|session| self.hub.warn_of(session));
        let first = known.unwrap_or_else(|| {
            let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
            // An agent can invent any number of sessions.
            warned.len() < WARNED && warned.insert(session.clone())
        });
        if first {
            warn_undecided(session.as_deref());
        }
    }
}

/// A permission request or a question.
pub(super) struct Undecided<'a> {
    pub(super) method: &'a str,
    pub(super) session: Option<&'a Arc<str>>,
    pub(super) params: Arc<Params>,
    /// Resources that are held until the request has a response.
    pub(super) held: Held,
}

/// Requests that their handler forwarded.
impl Fallback for Decisions {
    fn respond(
        &self,
        method: Arc<str>,
        session: Option<Arc<str>>,
        params: Arc<Params>,
    ) -> BoxFuture<'static, Response> {
        let unknown = RpcError::new(RpcError::METHOD_NOT_FOUND, format!("method not found: {method}"));
        if !Self::decides(&method) {
            return Box::pin(std::future::ready(Err(unknown)));
        }
        let (sender, mut decided) = oneshot::channel();
        let request = Undecided { method: &method, session: session.as_ref(), params, held: Box::new(()) };
        let deciding = self.decide(request, Responder::Handler(sender));
        Box::pin(async move {
            let mut deciding = deciding.unwrap_or_else(|| Box::pin(std::future::pending()));
            let response = tokio::select! {
                biased;
                response = &mut decided => response,
                () = &mut deciding => decided.await,
            };
            // Each copy responds when it is dropped, so there is a response.
            response.unwrap_or(Err(unknown))
        })
    }
}

/// Returns what the agent has reported about the tool call of a permission request.
pub(super) fn reported_call(hub: &Hub, session: Option<&str>, params: &Value) -> Option<ToolCall> {
    hub.tool_call(session?, params.pointer("/toolCall/toolCallId")?.as_str()?)
}

/// Lets the handler decide. If it panics or does not decide, the request is refused.
async fn ask_handler(hub: &Hub, handler: &PermissionHandler, request: PermissionRequest) {
    let decision = AssertUnwindSafe(handler.call(request.clone())).catch_unwind();
    let decision = tokio::select! {
        biased;
        // It got a response elsewhere, or the agent no longer waits.
        () = request.closed() => return,
        decision = decision => decision,
    };
    let decision = decision.unwrap_or_else(|_| {
        tracing::error!("a permission handler panicked; the request is rejected");
        PermissionDecision::Refuse
    });
    if !request.obey(&decision) {
        // The agent may have withdrawn it.
        let _ = request.refuse();
    }
    hub.decided(&request, DecidedBy::Handler);
}
