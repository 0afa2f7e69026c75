//! Routes agent requests: to the handlers of this client, or to the application as unclaimed.

use std::sync::Arc;

use acp_http_client as wire;
use tokio::task::JoinSet;

use self::decisions::{Decisions, Undecided, reported_call};
use self::ends::Ends;
use self::incoming::{Incoming, Refused};
use self::owned::OwnedSession;
pub(super) use self::owned::{OwnedSessions, Ownership};
pub(super) use self::unclaimed::UnclaimedTable;
use super::event_loop::Shared;
use super::hub::{Hub, OpenRequest};
use super::limits::Limits;
use crate::requests::{Admitted, AgentRequest, UnclaimedRequest};
use crate::requests::{ConnectionHandlers, Held, Open, Params, PermissionHandler, RequestHandler};
use crate::{Event, PermissionPolicy};

mod decisions;
mod ends;
mod incoming;
mod owned;
mod unclaimed;

/// How much of a method an event shows.
const METHOD_CHARS: usize = 256;

/// Routes agent requests. It never waits.
///
/// On an unshared endpoint every request is addressed to this client. On a shared endpoint a request is addressed to
/// this client only while a call of this client about its session is pending; every other request is published as
/// unclaimed.
#[derive(Debug)]
pub(super) struct RequestRouter {
    ends: Arc<Ends>,
    hub: Arc<Hub>,
    decisions: Arc<Decisions>,
    handlers: Arc<ConnectionHandlers>,
    shared: Arc<Shared>,
    /// The tasks of handlers. They end with the connection.
    tasks: JoinSet<()>,
}

impl RequestRouter {
    pub(super) fn new(
        wire: &wire::AcpHttpClient,
        hub: Arc<Hub>,
        (policy, handler): (PermissionPolicy, Option<PermissionHandler>),
        handlers: Arc<ConnectionHandlers>,
        shared: Arc<Shared>,
    ) -> Self {
        let ends = Arc::new(Ends::new(wire.clone()));
        hub.listen(&ends);
        let decisions = Arc::new(Decisions::new(Arc::clone(&hub), policy, handler));
        Self { ends, hub, decisions, handlers, shared, tasks: JoinSet::new() }
    }

    /// Selects the requests over a limit of the connection that are refused on a shared endpoint: those of this client.
    pub(super) fn refusals(hub: &Arc<Hub>, limits: &Limits) -> impl Fn(&wire::Json) -> bool + use<> {
        let (hub, limit) = (Arc::downgrade(hub), limits.session_id);
        move |params| {
            let session = incoming::read_session(params.as_bytes(), limit);
            session.zip(hub.upgrade()).is_some_and(|(session, hub)| hub.has_pending_call(&session))
        }
    }

    pub(super) fn route(&mut self, request: &wire::AgentRequest, responder: wire::Responder) {
        let session = self.session_of(request);
        if self.is_ours(session.as_deref()) {
            return self.accept(request, session, responder);
        }
        let admission = &self.shared.unclaimed_admission;
        self.publish_unclaimed(Incoming::read(request, session, responder, &self.shared.limits, admission));
    }

    /// Routes a request that another reader of the stream received, as one that is addressed to this client.
    pub(super) fn route_ours(&mut self, request: &wire::AgentRequest, responder: wire::Responder) {
        self.accept(request, self.session_of(request), responder);
    }

    fn session_of(&self, request: &wire::AgentRequest) -> Option<String> {
        incoming::read_session(request.params().as_bytes(), self.shared.limits.session_id)
    }

    fn accept(&mut self, request: &wire::AgentRequest, session: Option<String>, responder: wire::Responder) {
        let Shared { limits, admission, .. } = &*self.shared;
        let incoming = Incoming::read(request, session, responder, limits, admission);
        match &incoming.params {
            Ok(_) => self.serve(incoming),
            Err(_) => self.reject(incoming),
        }
    }

    /// The connection has ended: handlers can no longer be used.
    pub(super) fn end(&self) {
        self.handlers.close();
    }

    /// Releases the resources of ended sessions and collects finished tasks. It never returns.
    pub(super) async fn maintain(&mut self) -> std::convert::Infallible {
        loop {
            tokio::select! {
                biased;
                Some(_) = self.tasks.join_next() => {}
                session = self.ends.next() => {
                    let handlers = Arc::clone(&self.handlers);
                    self.tasks.spawn(async move { handlers.session_ended(&session).await });
                }
            }
        }
    }

    /// Whether a request of this session is addressed to this client. Every client of a shared endpoint receives it, and
    /// the first response counts. So this client must not respond to requests to other clients.
    fn is_ours(&self, session: Option<&str>) -> bool {
        !self.shared.is_shared || session.is_some_and(|session| self.hub.has_pending_call(session))
    }

    /// Publishes a request that the application may claim. Without a subscriber it is left to other clients at once.
    fn publish_unclaimed(&self, incoming: Incoming) {
        let Incoming { method, session, params, responder } = incoming;
        let params = params.ok();
        tracing::debug!(session, method, "an agent request belongs to no pending call of this client");
        let (owned, claimed) = (Arc::clone(&self.shared.owned), session.clone());
        let hold = Box::new(move || Box::new(claimed.map(|session| owned.enter(session))) as Held);
        let (hub, of_session) = (Arc::clone(&self.hub), session.clone());
        let reported = Box::new(move |params: &Params| reported_call(&hub, of_session.as_deref(), params));
        let open = Open { responder, hold, reported };
        let request = UnclaimedRequest::new(method, session, params, open);
        let is_named = request.session_id().is_some_and(|session| self.hub.is_named(session));
        self.shared.unclaimed.add(&request, is_named);
        self.hub.publish(&Event::UnclaimedRequest(request));
    }

    /// Refuses a request whose parameters cannot be decoded, because its meaning is unknown.
    fn reject(&self, incoming: Incoming) {
        let Incoming { method, session, params, responder } = incoming;
        let Err(error) = params else { return };
        self.refuse(&method, session, &error, responder);
    }

    fn refuse(&self, method: &str, session: Option<String>, error: &Refused, responder: wire::Responder) {
        // If the agent no longer waits, there is nothing to refuse.
        let _ = responder.error(error.to_rpc());
        let method = method.chars().take(METHOD_CHARS).collect();
        self.hub.publish(&Event::RequestRejected { session_id: session, method, reason: error.to_string() });
    }

    /// Passes a request that is addressed to this client to its handler.
    fn serve(&mut self, incoming: Incoming) {
        let Incoming { method, session, params, responder } = incoming;
        let Ok(params) = params else { return };
        if session.as_deref().is_some_and(|session| self.hub.is_over(session)) {
            // The request was sent before the session ended, and the agent no longer waits for a response.
            let _ = responder.ignore();
            return;
        }
        let Some(slot) = self.shared.slots.admit(1) else {
            let error = Refused::TooMany { limit: self.shared.limits.open_requests };
            return self.refuse(&method, session, &error, responder);
        };
        let owned = session.clone().filter(|_| self.shared.is_shared);
        let owned = owned.map(|session| self.shared.owned.enter(session));
        let open = session.as_deref().and_then(|session| self.hub.open_request(session));
        let guards = (owned, open, slot);
        let (method, session): (Arc<str>, Option<Arc<str>>) = (method.into(), session.map(Into::into));
        let request = AgentRequest::new(
            Arc::clone(&method),
            session.clone(),
            Arc::clone(&params),
            Arc::<Decisions>::clone(&self.decisions),
        );
        let handlers = self.handlers.of(&request);
        if !handlers.is_empty() {
            return self.work(request, handlers, responder, guards);
        }
        if !Decisions::decides(&method) {
            // If the agent no longer waits, there is nothing to refuse.
            let _ = responder.error(wire::RpcError::method_not_found(&method));
            return;
        }
        let held = Box::new(guards);
        let request = Undecided { method: &method, session: session.as_ref(), params, held };
        self.decisions.decide(request, responder);
    }

    /// Runs the handlers of a request until they respond or leave it to another client, or the agent withdraws it. If the
    /// response cannot be delivered, the handlers release what they created for it.
    fn work(
        &mut self,
        request: AgentRequest,
        handlers: Vec<Arc<dyn RequestHandler>>,
        mut responder: wire::Responder,
        guards: Guards,
    ) {
        let (method, session) = (request.method().to_owned(), request.session_id().map(str::to_owned));
        let leaving = request.leaving();
        let response = request.dispatch(handlers.clone());
        self.tasks.spawn(async move {
            let _guards = guards;
            let response = tokio::select! {
                biased;
                () = responder.closed() => return,
                () = leaving.notified() => {
                    // If the agent no longer waits, there is nothing to leave.
                    let _ = responder.ignore();
                    return;
                }
                response = response => response,
            };
            // The connection reports whether it was delivered.
            match response {
                Ok(result) => {
                    if !responder.respond(&result) {
                        for handler in handlers {
                            handler.undelivered(&method, session.as_deref(), &result).await;
                        }
                    }
                }
                Err(error) => drop(responder.error(error.into_wire())),
            }
        });
    }
}

/// Held while an agent request is open: marks its session as one with requests of this client, and its turn as waiting,
/// and counts the request.
type Guards = (Option<OwnedSession>, Option<OpenRequest>, Admitted);
