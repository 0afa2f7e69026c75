use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::envelope::session_of;
use super::session::metadata;
use super::state::{Hub, Slot, State};
use crate::agent::{Agent, Running};
use crate::problem::Problem;

/// A running agent and the number of its launch.
pub(super) struct Launched {
    pub(super) running: Arc<dyn Running>,
    pub(super) launch: u64,
}

impl Hub {
    /// Returns the agent that a message is sent to.
    pub(super) fn agent_for(
        &self,
        connection: &str,
        method: &str,
        params: &Value,
    ) -> Result<String, Problem> {
        let named =
            metadata(params).and_then(|meta| meta.get("agent")).and_then(Value::as_str).map(str::trim);
        let named = named.filter(|name| !name.is_empty()).map(str::to_owned);
        if matches!(method, "initialize" | "session/new") {
            let name = named.or_else(|| self.core.config.default_agent.clone());
            return self.known(name.ok_or_else(|| {
                Problem::invalid_request(format!(
                    "{method} requires params._meta[\"sandboxagent.dev\"].agent"
                ))
            })?);
        }
        let state = self.lock();
        let session = session_of(params);
        if let Some(session) = session.and_then(|id| state.sessions.get(id)) {
            return Ok(session.agent.clone());
        }
        let given = params.get("agent").and_then(Value::as_str).map(str::to_owned).or(named);
        let may_fall_back =
            session.is_none() || matches!(method, "session/load" | "session/resume" | "session/fork");
        let own = || state.connections.get(connection)?.agents.first().cloned();
        let name = given.or_else(|| may_fall_back.then(own).flatten());
        drop(state);
        self.known(name.ok_or_else(|| {
            let why = match session {
                Some(id) => format!("when sessionId '{id}' is unknown"),
                None => "when params.sessionId is absent".to_owned(),
            };
            Problem::invalid_request(format!("{method} requires params.agent {why}"))
        })?)
    }

    /// Kills the running agent with this name. Returns whether there was one.
    pub(crate) fn kill_agent(&self, name: &str) -> bool {
        // The lock is released first, because a scripted agent reports its exit immediately.
        let running = self.lock().running(name);
        running.map(|running| running.kill()).is_some()
    }

    fn known(&self, name: String) -> Result<String, Problem> {
        if self.core.recipe(&name).is_some() { Ok(name) } else { Err(Problem::unsupported_agent(name)) }
    }

    /// Returns the running agent with this name and launches it if necessary. An agent launched for anything
    /// but an `initialize` is initialised like its predecessor.
    pub(super) async fn launched(self: &Arc<Self>, name: &str, method: &str) -> Result<Launched, Problem> {
        let agent = self.core.recipe(name).ok_or_else(|| Problem::unsupported_agent(name))?;
        let (cell, launch, initialize) = {
            let mut state = self.lock();
            let slot = state.slot(name);
            let initialize = slot.initialize.clone().filter(|_| method != "initialize");
            (Arc::clone(&slot.running), slot.launch, initialize)
        };
        let running = cell
            .get_or_try_init(|| self.launch(agent, name.to_owned(), launch, initialize))
            .await
            .cloned()?;
        Ok(Launched { running, launch })
    }

    async fn launch(
        self: &Arc<Self>,
        agent: Arc<dyn Agent>,
        name: String,
        launch: u64,
        initialize: Option<Value>,
    ) -> Result<Arc<dyn Running>, Problem> {
        let hub = Arc::downgrade(self);
        let sink = move |output| {
            if let Some(hub) = hub.upgrade() {
                hub.output(&name, launch, output);
            }
        };
        let launched = self.core.launch(&*agent, sink).await;
        let running = launched
            .map_err(|error| Problem::stream_error(format!("failed to start agent process: {}", error.0)))?;
        if let Some(params) = initialize {
            // A client initialised the previous agent. This one is initialised in the same way, so that the
            // client need not notice.
            let message = json!({
                "jsonrpc": "2.0", "id": format!("runtime_req_{launch}"), "method": "initialize", "params": params,
            });
            // The exit of a dead agent is reported separately.
            let _ = running.deliver(message).await;
        }
        Ok(running)
    }
}

impl State {
    /// Returns the slot of an agent and creates it on first use.
    pub(super) fn slot(&mut self, name: &str) -> &mut Slot {
        let launch = if self.agents.contains_key(name) { 0 } else { self.next_launch() };
        self.agents.entry(name.to_owned()).or_insert_with(|| Slot {
            launch,
            running: Arc::default(),
            initialize: None,
        })
    }

    /// Replaces the cell of an exited agent and returns the old one. The parameters of its `initialize` are
    /// preserved.
    pub(super) fn renew(&mut self, name: &str) -> Arc<OnceCell<Arc<dyn Running>>> {
        let launch = self.next_launch();
        let slot = self.slot(name);
        slot.launch = launch;
        std::mem::take(&mut slot.running)
    }
}
