use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::agents::Launched;
use super::envelope::{Envelope, session_of};
use super::extension::{answers_itself, takes_notification};
use super::state::{Hub, Pending};
use crate::agent::AgentAnswer;
use crate::problem::Problem;
use crate::server::Echo;

/// The response to a POST to `/v1/rpc`.
#[derive(Debug)]
pub(crate) struct Posted {
    /// The connection id, sent in a header if the server assigns ids.
    pub(crate) connection: String,
    /// The response; `None` for 202.
    pub(crate) body: Option<Value>,
}

/// One incoming client request.
struct Incoming {
    connection: String,
    id: Value,
    method: String,
    params: Value,
    echo: Echo,
}

impl Hub {
    /// Handles one message from a client.
    pub(crate) async fn post(
        self: &Arc<Self>,
        header: Option<&str>,
        envelope: Envelope,
        echo: Echo,
    ) -> Result<Posted, Problem> {
        let opens = header.is_none_or(|id| id.trim().is_empty()) && envelope.method() == Some("initialize");
        let connection = if opens && self.core.config.connection_ids.is_some() {
            // The agent is checked first, so that a rejected `initialize` leaves no connection behind.
            self.agent_for("", "initialize", envelope.params())?;
            self.new_connection()
        } else {
            self.connection(header)?
        };
        let body = match envelope {
            Envelope::Request { id, method, params } => {
                let incoming = Incoming { connection: connection.clone(), id, method, params, echo };
                self.request(incoming).await?
            }
            Envelope::Notification { method, params } => {
                self.notification(&connection, method, params).await?;
                None
            }
            Envelope::Answer { id, message } => {
                self.answer(&connection, &id, message).await?;
                None
            }
        };
        Ok(Posted { connection, body })
    }

    async fn request(self: &Arc<Self>, incoming: Incoming) -> Result<Option<Value>, Problem> {
        if answers_itself(&incoming.method) {
            let result = self.extension(&incoming.connection, &incoming.method, &incoming.params).await?;
            return Ok(self.respond(&incoming, "result", result));
        }
        let agent = self.agent_for(&incoming.connection, &incoming.method, &incoming.params)?;
        if incoming.method == "session/prompt" && self.has_ended(&incoming.params) {
            let error = json!({ "code": -32000, "message": "session already ended" });
            return Ok(self.respond(&incoming, "error", error));
        }
        self.note(&incoming.connection, &agent, &incoming.method, &incoming.params);
        let late = |_| Problem::timeout("agent did not respond within the timeout");
        let deadline = Instant::now() + self.core.config.request_timeout;
        let stream_only = incoming.echo == Echo::StreamOnly;
        // An agent that does not read its input counts as silent, too.
        let answer = timeout_at(deadline, self.hand_over(agent, incoming)).await.map_err(late)??;
        if stream_only {
            return Ok(None);
        }
        let answer = timeout_at(deadline, answer).await.map_err(late)?;
        let closed = |_| Problem::stream_error("ACP agent process response channel closed");
        answer.map(Some).map_err(closed)
    }

    /// Registers the request and writes it to the agent. The receiver gets the response.
    async fn hand_over(
        self: &Arc<Self>,
        agent: String,
        incoming: Incoming,
    ) -> Result<oneshot::Receiver<Value>, Problem> {
        let (waiter, answer) = oneshot::channel();
        let Incoming { connection, id, method, params, echo } = incoming;
        let wanted = method.clone();
        let mut message = json!({ "jsonrpc": "2.0", "id": Value::Null, "method": method });
        if !params.is_null() {
            message["params"] = params.clone();
        }
        let mut pending = Some(Pending {
            connection,
            id,
            method,
            params,
            agent: agent.clone(),
            echo,
            stderr_before: 0,
            waiter,
        });
        loop {
            let Launched { running, launch } = self.launched(&agent, &wanted).await?;
            {
                let mut state = self.lock();
                // If the agent has exited since, its successor gets the message.
                if state.agents.get(&agent).is_none_or(|slot| slot.launch != launch) {
                    continue;
                }
                let given = state.next_request();
                message["id"] = given.clone().into();
                if let Some(mut pending) = pending.take() {
                    pending.stderr_before = running.stderr_lines();
                    state.pending.insert(given, pending);
                }
            }
            // An agent with closed input is about to exit, and its exit fails the request.
            let _ = running.deliver(message).await;
            return Ok(answer);
        }
    }

    async fn notification(
        self: &Arc<Self>,
        connection: &str,
        method: String,
        params: Value,
    ) -> Result<(), Problem> {
        if takes_notification(&method) {
            self.extension(connection, &method, &params).await?;
            return Ok(());
        }
        if method == "$/cancel_request" {
            self.cancel_request(connection, &params).await;
            return Ok(());
        }
        let agent = self.agent_for(connection, &method, &params)?;
        self.note(connection, &agent, &method, &params);
        if method == "initialize" {
            self.launched(&agent, &method).await?;
        }
        // A stopped agent is not started for a notification.
        let running = self.lock().running(&agent);
        let Some(running) = running else { return Ok(()) };
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if !params.is_null() {
            message["params"] = params;
        }
        // A notification has no response; an exited agent loses it.
        let _ = running.deliver(message).await;
        Ok(())
    }

    /// Forwards the cancellation of a client request, under the id that the agent knows. Ignored if the
    /// response was already sent.
    async fn cancel_request(&self, connection: &str, params: &Value) {
        let wanted = params.get("requestId").unwrap_or(&Value::Null);
        let found = {
            let state = self.lock();
            let mut all = state.pending.iter();
            let found = all.find(|(_, pending)| pending.connection == connection && pending.id == *wanted);
            found.and_then(|(id, pending)| Some((id.clone(), state.running(&pending.agent)?)))
        };
        if let Some((id, running)) = found {
            let params = json!({ "requestId": id });
            // An agent that has died has already failed the request.
            let _ = running
                .deliver(json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params }))
                .await;
        }
    }

    /// Passes the response to an agent request to the agent. The first response wins.
    async fn answer(
        &self,
        connection: &str,
        id: &Value,
        mut message: Map<String, Value>,
    ) -> Result<(), Problem> {
        let unknown = || Problem::invalid_request(format!("unknown agent request id {id}"));
        let (asked, running) = {
            let mut state = self.lock();
            let asked = id.as_str().and_then(|id| state.asked.remove(id)).ok_or_else(unknown)?;
            if asked.connection != connection {
                return Err(Problem::permission_denied("agent request belongs to another connection"));
            }
            let running = asked.agent.as_ref().and_then(|(agent, _)| state.running(agent));
            (asked, running)
        };
        match (asked.agent, running) {
            (Some((_, own_id)), Some(running)) => {
                message.insert("id".to_owned(), own_id);
                // An agent that has died needs no response.
                let _ = running.deliver(Value::Object(message)).await;
            }
            (Some(_), None) => {}
            (None, _) => self.core.answers.push(AgentAnswer {
                method: asked.method,
                params: asked.params,
                answer: Value::Object(message),
            }),
        }
        Ok(())
    }

    /// Responds to a request without an agent.
    fn respond(&self, incoming: &Incoming, member: &str, value: Value) -> Option<Value> {
        let response = json!({ "jsonrpc": "2.0", "id": incoming.id, member: value });
        if incoming.echo != Echo::BodyOnly {
            self.lock().publish(&incoming.connection, &response);
        }
        (incoming.echo != Echo::StreamOnly).then_some(response)
    }

    fn has_ended(&self, params: &Value) -> bool {
        let state = self.lock();
        let session = session_of(params).and_then(|id| state.sessions.get(id));
        session.is_some_and(|session| session.termination.is_some())
    }

    /// Records the effects of a client's request: attached sessions, initialised agents, model hints.
    fn note(&self, connection: &str, agent: &str, method: &str, params: &Value) {
        let mut state = self.lock();
        if method == "initialize"
            && let Some(connection) = state.connections.get_mut(connection)
            && !connection.agents.iter().any(|name| name == agent)
        {
            connection.agents.push(agent.to_owned());
        }
        let Some(id) = session_of(params) else { return };
        if let Some(connection) = state.connections.get_mut(connection) {
            connection.attached.insert(id.to_owned());
        }
        let hint = match method {
            "session/set_model" => params.get("modelId").map(|model| ("model", model)),
            "session/set_mode" => params.get("modeId").map(|mode| ("mode", mode)),
            _ => None,
        };
        if let (Some(session), Some((key, value))) = (state.sessions.get_mut(id), hint) {
            session.merge(&Map::from_iter([(key.to_owned(), value.clone())]));
        }
    }
}
