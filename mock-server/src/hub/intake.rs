use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::envelope::session_of;
use super::extension::advertise;
use super::session::{Session, metadata};
use super::state::{Asked, Hub, Pending, State};
use super::termination::{Termination, exit_message};
use crate::agent::{Exit, Output, Running};
use crate::server::Echo;
use crate::stream::Log;

/// The JSON-RPC code of a request that failed with its agent, and of a prompt to an ended session.
const SESSION_ENDED: i64 = -32000;

impl Hub {
    /// Handles output of one launch of an agent, or its exit. Output of an earlier launch is ignored.
    pub(super) fn output(&self, agent: &str, launch: u64, output: Output) {
        let mut state = self.lock();
        if state.agents.get(agent).is_none_or(|slot| slot.launch != launch) {
            return;
        }
        match output {
            Output::Line(line) => self.line(&mut state, agent, &line),
            Output::Exited(exit) => {
                let gone = Self::exit(&mut state, agent, &exit);
                // The agent may produce output when it is dropped, so the lock is released first.
                drop(state);
                drop(gone);
            }
        }
    }

    /// Ends one session and notifies the clients. Returns whether it was active.
    pub(super) fn end(&self, id: &str, termination: &Termination) -> bool {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(id) else { return false };
        let agent = session.agent.clone();
        if !session.end(termination.clone()) {
            return false;
        }
        let notice = termination.notification(id).to_string();
        publish_raw(&state.audience(&agent, Some(id)), notice.as_bytes());
        true
    }

    fn line(&self, state: &mut State, agent: &str, line: &[u8]) {
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        match crate::json::from_slice::<Value>(line) {
            Ok(Value::Object(message)) => self.message(state, agent, message, line),
            // Valid JSON that is not a message is forwarded unchanged.
            Ok(_) => publish_raw(&state.audience(agent, None), line),
            Err(error) => {
                let raw = String::from_utf8_lossy(line);
                let params = json!({ "error": error.to_string(), "raw": raw });
                let notice =
                    json!({ "jsonrpc": "2.0", "method": "_sandboxagent/agent/unparsed", "params": params });
                publish_raw(&state.audience(agent, None), notice.to_string().as_bytes());
            }
        }
    }

    fn message(&self, state: &mut State, agent: &str, mut message: Map<String, Value>, line: &[u8]) {
        let method = message.get("method").and_then(Value::as_str).map(str::to_owned);
        let params = message.get("params").cloned().unwrap_or(Value::Null);
        match (method, message.get("id").cloned()) {
            (Some(method), Some(id)) => {
                let connection = state.asked_connection(agent, session_of(&params));
                let given = state.next_asked();
                message.insert("id".to_owned(), given.clone().into());
                let asked = Asked {
                    connection: connection.clone(),
                    agent: Some((agent.to_owned(), id)),
                    method,
                    params,
                };
                state.asked.insert(given, asked);
                state.publish(&connection, &Value::Object(message));
            }
            (Some(_), None) => {
                if let Some(session) = session_of(&params) {
                    let known = state.sessions.entry(session.to_owned());
                    known.or_insert_with(|| Session::new(agent, "/")).observe(&params["update"]);
                }
                publish_raw(&state.audience(agent, session_of(&params)), line);
            }
            (None, Some(Value::String(id))) if state.pending.contains_key(&id) => {
                if let Some(pending) = state.pending.remove(&id) {
                    settle(state, pending, message);
                }
            }
            // The response to a request of the server itself.
            (None, Some(Value::String(id))) if id.starts_with("runtime_req_") => {}
            // A response without a pending request is forwarded like any other line.
            (None, _) => publish_raw(&state.audience(agent, None), line),
        }
    }

    /// Ends every active session of the agent, then fails its pending requests. Returns the exited agent.
    fn exit(state: &mut State, agent: &str, exit: &Exit) -> Arc<OnceCell<Arc<dyn Running>>> {
        let gone = state.renew(agent);
        let prompts: HashMap<String, u64> = state.prompts(agent);
        // The lines of stderr of the turn are those since its prompt.
        let termination_of = |session: Option<&str>| {
            let before = session.and_then(|id| prompts.get(id));
            Termination::by_exit(exit, before.map(|before| exit.stderr.total_lines.saturating_sub(*before)))
        };
        let ended: Vec<(String, Termination)> = state
            .sessions
            .iter_mut()
            .filter(|(_, session)| session.agent == agent)
            .map(|(id, session)| (id, session, termination_of(Some(id))))
            .filter_map(|(id, session, end)| session.end(end.clone()).then(|| (id.clone(), end)))
            .collect();
        for (id, termination) in ended {
            let notice = termination.notification(&id).to_string();
            publish_raw(&state.audience(agent, Some(&id)), notice.as_bytes());
        }
        state.asked.retain(|_, asked| asked.agent.as_ref().is_none_or(|(name, _)| name != agent));
        let mut lost: Vec<String> = state
            .pending
            .iter()
            .filter(|(_, pending)| pending.agent == agent)
            .map(|(id, _)| id.clone())
            .collect();
        // Ids increase with time, so the oldest request fails first.
        lost.sort_by_key(|id| (id.len(), id.clone()));
        for id in lost {
            if let Some(pending) = state.pending.remove(&id) {
                let error = json!({
                    "code": SESSION_ENDED,
                    "message": exit_message(exit),
                    "data": { "terminationInfo": termination_of(session_of(&pending.params)).info() },
                });
                let response = Map::from_iter([
                    ("jsonrpc".to_owned(), json!("2.0")),
                    ("id".to_owned(), Value::Null),
                    ("error".to_owned(), error),
                ]);
                settle(state, pending, response);
            }
        }
        gone
    }
}

impl State {
    /// Returns the sessions with a running prompt, and how many lines of stderr the agent had written before it.
    fn prompts(&self, agent: &str) -> HashMap<String, u64> {
        let prompts = self.pending.values().filter(|pending| pending.agent == agent);
        let prompts = prompts.filter(|pending| pending.method == "session/prompt");
        prompts
            .filter_map(|pending| Some((session_of(&pending.params)?.to_owned(), pending.stderr_before)))
            .collect()
    }

    /// Returns the logs that receive a message of this agent about this session.
    fn audience(&self, agent: &str, session: Option<&str>) -> Vec<Arc<Log>> {
        if let Some(only) = self.only_connection() {
            return vec![only];
        }
        let concerned = self.connections.values().filter(|connection| match session {
            Some(session) => connection.attached.contains(session),
            None => connection.agents.iter().any(|name| name == agent),
        });
        concerned.map(|connection| Arc::clone(&connection.log)).collect()
    }

    /// Returns the connection that receives an agent request about this session. Preferred is one with a
    /// pending prompt, then an attached one, then one that was initialised with the agent.
    fn asked_connection(&self, agent: &str, session: Option<&str>) -> String {
        let prompting = self.pending.values().find(|pending| {
            pending.method == "session/prompt" && session.is_some() && session_of(&pending.params) == session
        });
        let attached = || {
            let mut all = self.connections.iter();
            all.find(|(_, connection)| session.is_some_and(|id| connection.attached.contains(id)))
        };
        let initialised = || {
            let mut all = self.connections.iter();
            all.find(|(_, connection)| connection.agents.iter().any(|name| name == agent))
        };
        prompting
            .map(|pending| pending.connection.clone())
            .or_else(|| attached().or_else(initialised).map(|(id, _)| id.clone()))
            .unwrap_or_default()
    }

    /// Returns the log of the single connection, if the server assigns no ids.
    fn only_connection(&self) -> Option<Arc<Log>> {
        self.connections.get("").map(|connection| Arc::clone(&connection.log))
    }
}

/// Delivers the response to a request: first on the stream, then to the waiting POST.
fn settle(state: &mut State, pending: Pending, mut response: Map<String, Value>) {
    response.insert("id".to_owned(), pending.id.clone());
    if pending.method == "initialize" {
        advertise(&mut response);
    }
    remember(state, &pending, &response);
    let response = Value::Object(response);
    if pending.echo != Echo::BodyOnly {
        state.publish(&pending.connection, &response);
    }
    // The POST may have been aborted; the stream carries the response anyway.
    let _ = pending.waiter.send(response);
}

/// Records which session a response created, revived or removed.
fn remember(state: &mut State, pending: &Pending, response: &Map<String, Value>) {
    let result = response.get("result");
    if pending.method == "initialize" && result.is_some() {
        state.slot(&pending.agent).initialize = Some(pending.params.clone());
    }
    let own = result.and_then(session_of).or_else(|| session_of(&pending.params)).map(str::to_owned);
    let Some(id) = own else { return };
    let cwd = pending.params.get("cwd").and_then(Value::as_str);
    if result.is_some() {
        match pending.method.as_str() {
            "session/new" | "session/fork" | "session/load" | "session/resume" => {
                let session = state.sessions.entry(id.clone());
                let session = session.or_insert_with(|| Session::new(&pending.agent, cwd.unwrap_or("/")));
                session.revive(cwd);
                if pending.method == "session/new"
                    && let Some(meta) = metadata(&pending.params)
                {
                    session.merge(meta);
                }
                if let Some(connection) = state.connections.get_mut(&pending.connection) {
                    connection.attached.insert(id.clone());
                }
            }
            "session/delete" => {
                state.sessions.remove(&id);
                return;
            }
            _ => {}
        }
    }
    if let Some(session) = state.sessions.get_mut(&id) {
        session.count();
    }
}

/// Publishes one line unchanged. A carriage return inside would end the event, so such a line is serialized
/// again.
fn publish_raw(logs: &[Arc<Log>], line: &[u8]) {
    let rewritten = match line.contains(&b'\r') {
        true => crate::json::from_slice::<Value>(line).map(|value| value.to_string().into_bytes()).ok(),
        false => None,
    };
    let data = bytes::Bytes::from(rewritten.unwrap_or_else(|| line.to_vec()));
    for log in logs {
        log.publish(data.clone());
    }
}
