//! What the agent asks: of people, and of the tools it may use.

use std::collections::HashSet;
use std::sync::Arc;

use acp_http_client as wire;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::ends::Ends;
use self::waiting_room::{Asked, NAMING, WaitingRoom};
use super::hub::{Hub, Whose};
use super::pump::{Shared, wait_until};
use crate::ask::{ELICITATION, REQUEST_QUESTION, ReplyListener};
use crate::{
    AgentTools, Event, Origin, PermissionDecision, PermissionPolicy, PermissionRequest, QuestionRequest,
};

mod ends;
mod waiting_room;

/// Of how many sessions that this client has never named it is told one by one that nobody answers them.
const WARNED: usize = 64;

/// Gives what the agent asks to whoever answers it. Nothing here waits.
#[derive(Debug)]
pub(super) struct Asking {
    /// It stands first, so that no handle of the connection outlives what waits in the room: that may be another
    /// client's, and is not to be answered as it is dropped.
    ends: Arc<Ends>,
    hub: Arc<Hub>,
    policy: PermissionPolicy,
    tools: AgentTools,
    /// Where the sessions of other clients are seen too: what tells them from ours.
    shared: Option<Arc<Shared>>,
    /// Whether there is another client, as far as is known.
    has_neighbour: bool,
    /// What is asked by sessions of which it is not known yet whose they are.
    room: WaitingRoom,
    /// The sessions this client has never named of which was told that nobody answers them.
    warned: HashSet<Option<String>>,
    /// The tools at work, and those that end with their session. They end with the connection.
    at_work: JoinSet<()>,
}

/// Who is asked.
enum Who {
    ThisClient,
    Another,
    /// The answer that names a session of this client may still be on its way.
    Unknown,
}

impl Asking {
    /// `shared` is given where other clients use the same endpoint.
    pub(super) fn new(
        wire: &wire::AcpHttpClient,
        hub: Arc<Hub>,
        policy: PermissionPolicy,
        tools: AgentTools,
        shared: Option<Arc<Shared>>,
    ) -> Self {
        let ends = Arc::new(Ends::new(wire.clone()));
        hub.listen(&ends);
        Self {
            ends,
            hub,
            policy,
            tools,
            shared,
            has_neighbour: false,
            room: WaitingRoom::default(),
            warned: HashSet::new(),
            at_work: JoinSet::new(),
        }
    }

    pub(super) fn ask(&mut self, request: &wire::AgentRequest, responder: wire::Responder) {
        let asked = match Asked::new(request, responder) {
            Ok(asked) => asked,
            // Whose request it is cannot be seen either.
            Err((error, responder)) => {
                let _ = match self.shared {
                    Some(_) => responder.ignore(),
                    None => responder.error(wire::RpcError::invalid_params(error)),
                };
                return;
            }
        };
        match self.who(asked.session()) {
            Who::ThisClient => self.give(asked),
            Who::Another => self.leave(asked),
            Who::Unknown => self.room.enter(asked),
        }
    }

    /// Hears an answer to another client, which may name a session of that one.
    pub(super) fn overhear(&mut self, answer: &wire::Json, origin: Origin) {
        if self.shared.is_none() {
            return;
        }
        self.has_neighbour |= origin == Origin::Live;
        let answer = answer.to_value().unwrap_or_default();
        if let Some(session) = answer.pointer("/result/sessionId").and_then(Value::as_str) {
            self.hub.leave_to_others(session);
        }
    }

    /// The connection has ended: nobody can use a tool any more.
    pub(super) fn end(&self) {
        self.tools.close();
    }

    /// Does what is due, and tidies up. It is never done itself.
    pub(super) async fn tidy(&mut self) -> std::convert::Infallible {
        loop {
            let naming = self.room.since().filter(|_| !self.has_neighbour).map(|since| since + NAMING);
            tokio::select! {
                Some(_) = self.at_work.join_next() => {}
                session = self.ends.next() => {
                    let tools = self.tools.clone();
                    self.at_work.spawn(async move { tools.end_session(&session).await });
                }
                () = opened(self.shared.as_deref()) => self.look_again(),
                () = wait_until(naming) => self.give_up_waiting(),
            }
        }
    }

    /// Who is asked by a session. Every client of an endpoint that is shared sees what is asked, and the first answer
    /// counts: what another one is asked must not be answered here.
    fn who(&self, session: Option<&str>) -> Who {
        let (Some(shared), Some(session)) = (&self.shared, session) else { return Who::ThisClient };
        match (self.hub.whose(session), shared.openings.since()) {
            (Some(Whose::Ours), _) => Who::ThisClient,
            (None, Some(_)) => Who::Unknown,
            // One that was there before this client began to make one is not the one it makes.
            (Some(Whose::Unknown { since }), Some(began)) if since > began => Who::Unknown,
            _ => Who::Another,
        }
    }

    /// Leaves a request to the client whose session asks.
    fn leave(&mut self, asked: Asked) {
        self.has_neighbour = true;
        if let Some(session) = asked.session() {
            self.hub.leave_to_others(session);
        }
        asked.leave();
    }

    /// A session was made, or was not: whoever has waited for its name may have it now.
    fn look_again(&mut self) {
        for (since, asked) in self.room.leave() {
            match self.who(asked.session()) {
                Who::ThisClient => self.give(asked),
                Who::Another => self.leave(asked),
                Who::Unknown => self.room.stay(since, asked),
            }
        }
    }

    /// The agent may answer the call that makes the session only when it was answered itself. Where nothing was ever seen
    /// of another client, it is this one that is asked.
    fn give_up_waiting(&mut self) {
        let due = Instant::now();
        for (since, asked) in self.room.leave() {
            match self.who(asked.session()) {
                Who::Another => self.leave(asked),
                Who::Unknown if since + NAMING > due => self.room.stay(since, asked),
                _ => self.give(asked),
            }
        }
    }

    /// Gives a request to whoever answers it.
    fn give(&mut self, asked: Asked) {
        if asked.session().is_some_and(|session| self.hub.is_deserted(session)) {
            // It was asked before the session ended, and whoever asked is gone.
            return asked.leave();
        }
        let place = asked.place.clone().filter(|_| self.shared.is_some());
        let Asked { method, params, size, responder, .. } = asked;
        match &*method {
            "session/request_permission" => {
                let listener = self.reply_listener(&method, &params);
                self.permission(PermissionRequest::new(params, size, responder, listener), place.as_deref());
            }
            ELICITATION | REQUEST_QUESTION => {
                let listener = self.reply_listener(&method, &params);
                let request = QuestionRequest::new(&method, params, size, responder, listener);
                let session = request.session_id().map(str::to_owned);
                // One that nobody sees is dropped here, which cancels it.
                if self.hub.publish_at(&Event::Question(request), place.as_deref()) == 0 {
                    self.warn(session);
                }
            }
            method => match self.tools.answer(method, &params) {
                Some(answer) => {
                    let session = params.get("sessionId").and_then(Value::as_str).map(str::to_owned);
                    self.work((session, method), answer, responder);
                }
                None => drop(responder.error(wire::RpcError::method_not_found(method))),
            },
        }
    }

    /// Has whoever sees everything see what is answered.
    fn reply_listener(&self, method: &str, params: &Value) -> ReplyListener {
        let Some(session) = params.get("sessionId").and_then(Value::as_str).map(str::to_owned) else {
            return Box::new(|_| ());
        };
        let tool_call = params.pointer("/toolCall/toolCallId").or_else(|| params.get("toolCallId"));
        let mut payload = json!({ "method": method });
        if let Some(tool_call) = tool_call {
            payload["toolCallId"] = tool_call.clone();
        }
        let hub = Arc::downgrade(&self.hub);
        Box::new(move |answer| {
            if let (Some(hub), Some(answer)) = (hub.upgrade(), answer.as_object()) {
                answer.iter().for_each(|(name, value)| payload[name] = value.clone());
                hub.replied(&session, payload);
            }
        })
    }

    fn permission(&mut self, request: PermissionRequest, place: Option<&str>) {
        let decision = self.policy.decide(&request);
        if decision != PermissionDecision::Ask {
            self.hub.note(&Event::Permission(request.clone()), place);
        }
        if request.obey(&decision) {
            return;
        }
        if self.hub.publish_at(&Event::Permission(request.clone()), place) > 0 {
            return;
        }
        let session = request.session_id().map(str::to_owned);
        // The agent may have taken it back meanwhile.
        let _ = request.refuse();
        self.warn(session);
    }

    /// Tells that nobody answers what a session asks, once for each session.
    fn warn(&mut self, session: Option<String>) {
        let known = session.as_deref().and_then(|session| self.hub.warn_of(session));
        let first = known.unwrap_or_else(|| {
            // An agent can make up any number of sessions.
            self.warned.len() < WARNED && self.warned.insert(session.clone())
        });
        if first {
            tracing::warn!(
                session,
                "what this session asks is refused because nobody is there to answer: subscribe to its events, or set a policy"
            );
        }
    }

    /// Lets a tool work, for as long as somebody wants its answer. What it has made for one that is not wanted any more
    /// is taken back.
    fn work(
        &mut self,
        (session, method): (Option<String>, &str),
        answer: impl Future<Output = Result<Value, crate::RpcError>> + Send + 'static,
        mut responder: wire::Responder,
    ) {
        let (tools, method) = (self.tools.clone(), method.to_owned());
        self.at_work.spawn(async move {
            let answer = tokio::select! {
                biased;
                () = responder.closed() => return,
                answer = answer => answer,
            };
            // Whether it still arrives is the connection's to tell.
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

/// Waits until a session was made, or was not.
async fn opened(shared: Option<&Shared>) {
    match shared {
        Some(shared) => shared.openings.over().await,
        None => std::future::pending().await,
    }
}
