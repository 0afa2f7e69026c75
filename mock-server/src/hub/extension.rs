use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::envelope::session_of;
use super::session::{META, metadata};
use super::state::{Hub, unknown_client};
use super::termination::Termination;
use crate::problem::Problem;

/// How many sessions one page of `session/list` holds.
const PAGE: usize = 200;

/// The requests that the server handles itself, and advertises.
const METHODS: [(&str, &str); 8] = [
    ("sessionDetach", "_sandboxagent/session/detach"),
    ("sessionTerminate", "_sandboxagent/session/terminate"),
    ("sessionListModels", "_sandboxagent/session/list_models"),
    ("sessionSetMetadata", "_sandboxagent/session/set_metadata"),
    ("agentList", "_sandboxagent/agent/list"),
    ("agentInstall", "_sandboxagent/agent/install"),
    ("sessionList", "_sandboxagent/session/list"),
    ("sessionGet", "_sandboxagent/session/get"),
];

/// Whether the server handles a request itself.
pub(super) fn answers_itself(method: &str) -> bool {
    method == "session/list" || METHODS.iter().any(|(_, own)| *own == method)
}

/// Whether a notification is meant for the server.
pub(super) fn takes_notification(method: &str) -> bool {
    METHODS.iter().any(|(name, own)| {
        *own == method && matches!(*name, "sessionDetach" | "sessionTerminate" | "sessionSetMetadata")
    })
}

/// Adds the server's capabilities to those that an agent returned.
pub(super) fn advertise(response: &mut Map<String, Value>) {
    let capabilities = response.get_mut("result").and_then(|result| result.get_mut("agentCapabilities"));
    let Some(Value::Object(capabilities)) = capabilities else { return };
    let mut extensions = Map::new();
    for (name, _) in METHODS {
        extensions.insert(name.to_owned(), true.into());
    }
    for name in ["sessionEndedNotification", "sessionAgentMeta"] {
        extensions.insert(name.to_owned(), true.into());
    }
    let mut methods: Vec<Value> = METHODS.iter().map(|(_, method)| (*method).into()).collect();
    methods.insert(2, "_sandboxagent/session/ended".into());
    extensions.insert("methods".to_owned(), methods.into());
    let meta = capabilities.entry("_meta").or_insert_with(|| json!({}));
    if !meta.is_object() {
        *meta = json!({});
    }
    if !meta.get(META).is_some_and(Value::is_object) {
        meta[META] = json!({});
    }
    meta[META]["extensions"] = extensions.into();
}

impl Hub {
    /// Handles a request of the server itself and returns the result.
    pub(super) async fn extension(
        self: &Arc<Self>,
        connection: &str,
        method: &str,
        params: &Value,
    ) -> Result<Value, Problem> {
        let needs = |name: &str| Problem::invalid_request(format!("{method} requires params.{name}"));
        match method {
            "session/list" => Ok(self.list(params)),
            "_sandboxagent/session/list" => Ok(json!({ "sessions": self.session_infos() })),
            "_sandboxagent/session/get" => {
                let alias = params.get("session_id").and_then(Value::as_str);
                let id = session_of(params).or(alias).ok_or_else(|| needs("sessionId"))?;
                self.session_info(id).ok_or_else(|| unknown_client(id))
            }
            "_sandboxagent/session/detach" => {
                let id = session_of(params).ok_or_else(|| needs("sessionId"))?;
                if let Some(connection) = self.lock().connections.get_mut(connection) {
                    connection.attached.remove(id);
                }
                Ok(json!({}))
            }
            "_sandboxagent/session/terminate" => {
                self.terminate(session_of(params).ok_or_else(|| needs("sessionId"))?).await
            }
            "_sandboxagent/session/set_metadata" => {
                let id = session_of(params).ok_or_else(|| needs("sessionId"))?;
                let given = params.get("metadata").and_then(Value::as_object).or_else(|| metadata(params));
                let given = given.ok_or_else(|| needs("metadata"))?;
                let mut state = self.lock();
                state.sessions.get_mut(id).ok_or_else(|| unknown_client(id))?.merge(given);
                Ok(json!({}))
            }
            "_sandboxagent/session/list_models" => self.list_models(params),
            "_sandboxagent/agent/list" => Ok(json!({ "agents": self.control.agent_infos() })),
            _ => {
                let name = params.get("agent").and_then(Value::as_str).ok_or_else(|| needs("agent"))?;
                self.control.install(name, params)
            }
        }
    }

    /// Cancels the session's running turn and ends the session. The agent continues.
    async fn terminate(&self, id: &str) -> Result<Value, Problem> {
        let running = {
            let state = self.lock();
            let active = state.sessions.get(id).filter(|session| session.termination.is_none());
            active.and_then(|session| state.running(&session.agent))
        };
        if let Some(running) = running {
            let params = json!({ "sessionId": id });
            let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
            // An agent that has died has nothing to cancel.
            let _ = running.deliver(cancel).await;
        }
        let terminated = self.end(id, &Termination::by_request());
        Ok(json!({
            "terminated": terminated,
            "alreadyEnded": !terminated,
            "reason": "terminated",
            "terminatedBy": "daemon",
        }))
    }

    fn list(&self, params: &Value) -> Value {
        let state = self.lock();
        let cwd = params.get("cwd").and_then(Value::as_str);
        let cursor =
            params.get("cursor").and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0);
        let fitting: Vec<_> =
            state.sessions.iter().filter(|(_, session)| cwd.is_none_or(|cwd| session.is_in(cwd))).collect();
        let page: Vec<Value> =
            fitting.iter().skip(cursor).take(PAGE).map(|(id, session)| session.entry(id)).collect();
        let end = cursor.saturating_add(page.len());
        let next = if end < fitting.len() { Value::String(end.to_string()) } else { Value::Null };
        json!({ "sessions": page, "nextCursor": next })
    }

    fn list_models(&self, params: &Value) -> Result<Value, Problem> {
        let state = self.lock();
        let session = session_of(params).and_then(|id| state.sessions.get(id));
        let given = params.get("agent").and_then(Value::as_str);
        let agent = session.map(|session| session.agent.as_str()).or(given).ok_or_else(|| {
            Problem::invalid_request(
                "_sandboxagent/session/list_models requires params.sessionId or params.agent",
            )
        })?;
        if self.core.recipe(agent).is_none() {
            return Err(Problem::unsupported_agent(agent));
        }
        let models: &[&str] = match agent {
            "claude" => &["default", "sonnet", "opus", "haiku"],
            "amp" => &["amp-default"],
            "codex" | "opencode" => &[],
            _ => &["mock"],
        };
        let available: Vec<Value> = models
            .iter()
            .map(|id| {
                json!({
                    "modelId": id, "name": null, "description": null, "defaultVariant": null, "variants": [],
                })
            })
            .collect();
        let current = session.and_then(|session| session.model()).or(models.first().copied());
        Ok(json!({ "availableModels": available, "currentModelId": current }))
    }
}
