//! Routes the agent's requests: whether they are addressed to this client, and what answers them.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use acp_http_client as wire;
use futures::FutureExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::ends::Ends;
use self::incoming::Incoming;
use self::owned::OwnedSession;
pub(super) use self::owned::OwnedSessions;
pub(super) use self::unclaimed::UnclaimedTable;
use super::hub::Hub;
use super::pump::Shared;
use crate::requests::QuestionRequest;
use crate::requests::{ClaimedRequest, DecidedBy, PermissionDecided, UnclaimedRequest};
use crate::requests::{
    ELICITATION, Open, PermissionHandler, REQUEST_PERMISSION, REQUEST_QUESTION, ReplyListener,
};
use crate::tools::AgentTools;
use crate::{Event, PermissionDecision, PermissionPolicy, PermissionRequest};

mod ends;
mod incoming;
mod owned;
mod unclaimed;

/// For how many sessions that this client has never named a warning is logged that nothing answers them.
const WARNED: usize = 64;
/// How much of a method an event shows.
const METHOD_CHARS: usize = 256;

/// Routes agent requests. Nothing here waits.
///
/// On a connection of its own every request is addressed to this client. On a shared endpoint a request is only while
/// a call of this client about its session is pending; everything else is published as unclaimed.
#[derive(Debug)]
pub(super) struct RequestRouter {
    ends: Arc<Ends>,
    hub: Arc<Hub>,
    policy: PermissionPolicy,
    handler: Option<PermissionHandler>,
    tools: AgentTools,
    shared: Arc<Shared>,
    /// The sessions this client has never named for which a warning was logged.
    warned: HashSet<Option<String>>,
    /// The tools at work, and those that end with their session. They end with the connection.
    at_work: JoinSet<()>,
}

impl RequestRouter {
    pub(super) fn new(
        wire: &wire::AcpHttpClient,
        hub: Arc<Hub>,
        (policy, handler): (PermissionPolicy, Option<PermissionHandler>),
        tools: AgentTools,
        shared: Arc<Shared>,
    ) -> Self {
        let ends = Arc::new(Ends::new(wire.clone()));
        hub.listen(&ends);
        Self { ends, hub, policy, handler, tools, shared, warned: HashSet::new(), at_work: JoinSet::new() }
    }

    pub(super) fn route(&mut self, request: &wire::AgentRequest, responder: wire::Responder) {
        let incoming = Incoming::read(request, responder, &self.shared);
        match &incoming.params {
            Ok(_) if self.is_ours(incoming.session.as_deref()) => self.serve(incoming),
            Err(_) if self.is_ours(incoming.session.as_deref()) => self.reject(incoming),
            _ => self.publish_unclaimed(incoming),
        }
    }

    /// The connection has ended: no tool can be used any more.
    pub(super) fn end(&self) {
        self.tools.close();
    }

    /// Ends the tools of ended sessions and collects finished tasks. It never returns.
    pub(super) async fn maintain(&mut self) -> std::convert::Infallible {
        loop {
            tokio::select! {
                Some(_) = self.at_work.join_next() => {}
                session = self.ends.next() => {
                    let tools = self.tools.clone();
                    self.at_work.spawn(async move { tools.end_session(&session).await });
                }
            }
        }
    }

    /// Whether a request of this session is addressed to this client. Every client of a shared endpoint sees it, and
    /// the first response counts: what another client is asked must not be answered here.
    fn is_ours(&self, session: Option<&str>) -> bool {
        !self.shared.is_shared || session.is_some_and(|session| self.hub.has_pending_call(session))
    }

    /// Publishes a request that the application may claim. Without a subscriber it is left to other clients at once.
    fn publish_unclaimed(&self, incoming: Incoming) {
        let Incoming { method, session, params, responder, place } = incoming;
        let params = params.ok();
        tracing::debug!(session, method, "an agent request belongs to no pending call of this client");
        let open = Open {
            responder,
            listener: self.claim_listener(
                &method,
                params.as_deref().map(|params| &**params),
                session.clone(),
            ),
            on_claim: self.claim_note(place),
        };
        let request = UnclaimedRequest::new(method, session, params, open);
        self.shared.unclaimed.add(&request);
        self.hub.publish(&Event::UnclaimedRequest(request));
    }

    fn claim_listener(
        &self,
        method: &str,
        params: Option<&Value>,
        session: Option<String>,
    ) -> Box<dyn FnOnce() -> ReplyListener + Send> {
        let listener = self.reply_listener(method, params, session.as_deref());
        let owned = Arc::clone(&self.shared.owned);
        Box::new(move || {
            let owned = session.map(|session| owned.enter(session));
            Box::new(move |response: &Value| {
                listener(response);
                drop(owned);
            })
        })
    }

    /// Has the observer see a request that was claimed.
    fn claim_note(&self, place: String) -> Box<dyn FnOnce(&ClaimedRequest) + Send> {
        let hub = Arc::downgrade(&self.hub);
        Box::new(move |claimed| {
            let event = match claimed {
                ClaimedRequest::Permission(request) => Event::Permission(request.observed()),
                ClaimedRequest::Question(request) => Event::Question(request.observed()),
                ClaimedRequest::Other(_) => return,
            };
            if let Some(hub) = hub.upgrade() {
                hub.note(&event, Some(&place));
            }
        })
    }

    /// Refuses a request whose parameters cannot be decoded: nothing is served for a meaning that it may not have.
    fn reject(&self, incoming: Incoming) {
        let Incoming { method, session, params, responder, .. } = incoming;
        let Err(error) = params else { return };
        // If the agent no longer waits, there is nothing to refuse.
        let _ = responder.error(error.to_rpc());
        let method = method.chars().take(METHOD_CHARS).collect();
        self.hub.publish(&Event::RequestRejected { session_id: session, method, reason: error.to_string() });
    }

    /// Gives a request that is addressed to this client to what answers it.
    fn serve(&mut self, incoming: Incoming) {
        let Incoming { method, session, params, responder, place } = incoming;
        let Ok(params) = params else { return };
        if session.as_deref().is_some_and(|session| self.hub.is_deserted(session)) {
            // It was sent before the session ended, and nothing waits for a response.
            let _ = responder.ignore();
            return;
        }
        let place = Some(place).filter(|_| self.shared.is_shared);
        let owned = session.clone().filter(|_| self.shared.is_shared);
        let owned = owned.map(|session| self.shared.owned.enter(session));
        match &*method {
            REQUEST_PERMISSION => {
                let listener = owning(self.reply_listener(&method, Some(&params), session.as_deref()), owned);
                let call = params.pointer("/toolCall/toolCallId").and_then(Value::as_str);
                let reported = session.as_deref().zip(call);
                let reported = reported.and_then(|(session, call)| self.hub.tool_call(session, call));
                let request = PermissionRequest::new(params, responder, listener, reported);
                self.permission(request, place.as_deref());
            }
            ELICITATION | REQUEST_QUESTION => {
                let listener = owning(self.reply_listener(&method, Some(&params), session.as_deref()), owned);
                let request = QuestionRequest::new(&method, params, responder, listener);
                // One that has no subscriber is dropped here, which cancels it.
                if self.hub.publish_at(&Event::Question(request), place.as_deref()) == 0 {
                    self.warn(session);
                }
            }
            method => match self.tools.answer(method, &params) {
                Some(answer) => self.work((session, method), answer, responder, owned),
                None => drop(responder.error(wire::RpcError::method_not_found(method))),
            },
        }
    }

    /// Has the observer see the response to a request.
    fn reply_listener(&self, method: &str, params: Option<&Value>, session: Option<&str>) -> ReplyListener {
        let (Some(session), Some(params)) = (session.map(str::to_owned), params) else {
            return Box::new(|_| ());
        };
        let tool_call = params.pointer("/toolCall/toolCallId").or_else(|| params.get("toolCallId"));
        let mut payload = json!({ "method": method });
        if let Some(tool_call) = tool_call {
            payload["toolCallId"] = tool_call.clone();
        }
        let hub = Arc::downgrade(&self.hub);
        Box::new(move |response| {
            if let (Some(hub), Some(response)) = (hub.upgrade(), response.as_object()) {
                response.iter().for_each(|(name, value)| payload[name] = value.clone());
                hub.replied(&session, payload);
            }
        })
    }

    /// Has a permission decided: by the policy, by the handler, by those who read requests, or refuses it.
    fn permission(&mut self, request: PermissionRequest, place: Option<&str>) {
        let decision = self.policy.decide(&request);
        if decision != PermissionDecision::Ask {
            self.hub.note(&Event::Permission(request.observed()), place);
            request.obey(&decision);
            return decided(&self.hub, &request, DecidedBy::Policy);
        }
        if let Some(handler) = self.handler.clone() {
            self.hub.publish_at(&Event::Permission(request.observed()), place);
            let hub = Arc::clone(&self.hub);
            self.at_work.spawn(async move { ask_handler(&hub, &handler, request).await });
            return;
        }
        if self.hub.publish_at(&Event::Permission(request.clone()), place) > 0 {
            return;
        }
        // The agent may have taken it back meanwhile.
        let _ = request.refuse();
        decided(&self.hub, &request, DecidedBy::Default);
        self.warn(request.session_id().map(str::to_owned));
    }

    /// Logs that nothing answers a session's requests, once for each session.
    fn warn(&mut self, session: Option<String>) {
        let known = session.as_deref().and_then(|session| self.hub.warn_of(session));
        let first = known.unwrap_or_else(|| {
            // An agent can invent any number of sessions.
            self.warned.len() < WARNED && self.warned.insert(session.clone())
        });
        if first {
            tracing::warn!(
                session,
                "the requests of this session are refused because nothing decides them: set a permission handler or a policy, or read its events as a deciding subscription"
            );
        }
    }

    /// Runs a tool for as long as its response is wanted. What it has created for a response that is no longer wanted
    /// is taken back.
    fn work(
        &mut self,
        (session, method): (Option<String>, &str),
        answer: impl Future<Output = Result<Value, crate::error::RpcError>> + Send + 'static,
        mut responder: wire::Responder,
        owned: Option<OwnedSession>,
    ) {
        let (tools, method) = (self.tools.clone(), method.to_owned());
        self.at_work.spawn(async move {
            let _owned = owned;
            let answer = tokio::select! {
                biased;
                () = responder.closed() => return,
                answer = answer => answer,
            };
            // Whether it arrives is reported by the connection.
            match answer {
                Ok(result) => {
                    if !responder.respond(&result) {
                        tools.take_back(session.as_deref(), &method, &result).await;
                    }
                }
                Err(error) => drop(responder.error(error.into_wire())),
            }
        });
    }
}

/// Keeps a session among those with open requests of ours until the response is given.
fn owning(listener: ReplyListener, owned: Option<OwnedSession>) -> ReplyListener {
    Box::new(move |response| {
        listener(response);
        drop(owned);
    })
}

/// Has the handler decide. The request stays open meanwhile; a handler that panics, or leaves it open, refuses it.
async fn ask_handler(hub: &Hub, handler: &PermissionHandler, request: PermissionRequest) {
    let decision = AssertUnwindSafe(handler.call(request.clone())).catch_unwind();
    let decision = tokio::select! {
        biased;
        // It was answered elsewhere, or the agent does not wait any more.
        () = request.closed() => return,
        decision = decision => decision,
    };
    let decision = decision.unwrap_or_else(|_| {
        tracing::error!("a permission handler panicked; the permission is refused");
        PermissionDecision::Refuse
    });
    if !request.obey(&decision) {
        // The agent may have taken it back meanwhile.
        let _ = request.refuse();
    }
    decided(hub, &request, DecidedBy::Handler);
}

/// Reports how a permission was decided.
fn decided(hub: &Hub, request: &PermissionRequest, by: DecidedBy) {
    if request.outcome().is_some() {
        hub.publish(&Event::PermissionDecided(PermissionDecided::new(request.observed(), by)));
    }
}
