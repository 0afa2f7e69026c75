//! What the agent asks: of people, and of the tools it may use.

use std::collections::HashSet;
use std::sync::Arc;

use acp_http_client as wire;
use serde_json::Value;
use tokio::task::JoinSet;

use super::calls::ended;
use super::hub::Hub;
use crate::ask::{ELICITATION, REQUEST_QUESTION};
use crate::{AgentTools, Event, PermissionPolicy, PermissionRequest, QuestionRequest};

/// How many sessions are remembered that were warned about.
const WARNED: usize = 1024;

/// Gives what the agent asks to whoever answers it. Nothing here waits.
#[derive(Debug)]
pub(super) struct Asking {
    wire: wire::AcpHttpClient,
    hub: Arc<Hub>,
    policy: PermissionPolicy,
    tools: AgentTools,
    /// Whether the sessions of other clients are seen here too.
    has_neighbours: bool,
    /// The sessions whose permissions were refused because nobody was there.
    warned: HashSet<Option<String>>,
    /// The tools at work. They end with the connection.
    at_work: JoinSet<()>,
    /// Those who wait for the end of a session that has asked something.
    watchers: JoinSet<String>,
    watched: HashSet<String>,
}

impl Asking {
    pub(super) fn new(
        wire: wire::AcpHttpClient,
        hub: Arc<Hub>,
        policy: PermissionPolicy,
        tools: AgentTools,
        has_neighbours: bool,
    ) -> Self {
        Self {
            wire,
            hub,
            policy,
            tools,
            has_neighbours,
            warned: HashSet::new(),
            at_work: JoinSet::new(),
            watchers: JoinSet::new(),
            watched: HashSet::new(),
        }
    }

    pub(super) fn ask(&mut self, request: &wire::AgentRequest, responder: wire::Responder) {
        let params = request.params().to_value();
        let session = params.get("sessionId").and_then(Value::as_str);
        if self.has_neighbours && session.is_some_and(|session| !self.hub.is_known(session)) {
            // Every client of an endpoint that is shared sees it, and the first answer counts.
            responder.ignore();
            return;
        }
        if let Some(session) = session {
            self.watch(session);
        }
        match request.method() {
            "session/request_permission" => self.permission(PermissionRequest::new(params, responder)),
            method @ (ELICITATION | REQUEST_QUESTION) => {
                let request = QuestionRequest::new(method, params, responder);
                self.hub.publish(&Event::Question(request));
            }
            method => match self.tools.answer(method, &params) {
                Some(answer) => self.work(answer, responder),
                None => drop(responder.error(wire::RpcError::method_not_found(method))),
            },
        }
    }

    /// The connection has ended: nobody can use a tool any more.
    pub(super) fn end(&self) {
        self.tools.close();
    }

    /// Tidies up after whatever is done. It is never done itself.
    pub(super) async fn tidy(&mut self) -> std::convert::Infallible {
        loop {
            tokio::select! {
                Some(session) = self.watchers.join_next() => {
                    if let Ok(session) = session {
                        self.watched.remove(&session);
                    }
                }
                Some(_) = self.at_work.join_next() => {}
                else => std::future::pending().await,
            }
        }
    }

    fn permission(&mut self, request: PermissionRequest) {
        if request.obey(&self.policy.decide(&request)) {
            return;
        }
        if self.hub.publish(&Event::Permission(request.clone())) > 0 {
            return;
        }
        let session = request.session_id().map(str::to_owned);
        // The agent may have taken it back meanwhile.
        let _ = request.refuse();
        if self.warned.len() >= WARNED {
            self.warned.clear();
        }
        if self.warned.insert(session.clone()) {
            tracing::warn!(
                session,
                "permissions of this session are refused because nobody is there to give them: subscribe to its events, or set a policy"
            );
        }
    }

    /// Lets a tool work, for as long as somebody wants its answer.
    fn work(
        &mut self,
        answer: impl Future<Output = Result<Value, crate::RpcError>> + Send + 'static,
        mut responder: wire::Responder,
    ) {
        self.at_work.spawn(async move {
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                () = responder.closed() => return,
            };
            // Whether it still arrives is the connection's to tell.
            match answer {
                Ok(result) => responder.respond(&result),
                Err(error) => responder.error(error.into_wire()),
            };
        });
    }

    /// Waits for the end of a session that asks something: nobody can be answered then, and what it runs is ended.
    fn watch(&mut self, session: &str) {
        if !self.watched.insert(session.to_owned()) {
            return;
        }
        let mut end = self.hub.watch_end(session);
        let (wire, tools, session) = (self.wire.clone(), self.tools.clone(), session.to_owned());
        self.watchers.spawn(async move {
            ended(&mut end).await;
            wire.forget_agent_requests(Some(&session));
            tools.end_session(&session).await;
            session
        });
    }
}
