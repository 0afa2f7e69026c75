use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, oneshot};

use super::session::Session;
use crate::agent::Running;
use crate::control::ControlPlane;
use crate::problem::Problem;
use crate::server::{Core, Echo};
use crate::stream::{Framing, Log, Seat, Tap};

/// The name of the single connection of a server without connection ids.
const THE_CONNECTION: &str = "";

/// The state of `/v1/rpc`.
pub(crate) struct Hub {
    pub(super) core: Arc<Core>,
    /// Lists and installs agents.
    pub(super) control: ControlPlane,
    /// Guards everything below. Held for lookups and publishing, never across an await.
    state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connections: BTreeMap<String, Connection>,
    /// Running agents by name.
    pub(super) agents: BTreeMap<String, Slot>,
    pub(super) sessions: BTreeMap<String, Session>,
    /// Pending client requests, by the id that the agent received.
    pub(super) pending: HashMap<String, Pending>,
    /// Pending agent requests, by the id that the client received.
    pub(super) asked: HashMap<String, Asked>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    connections: u64,
    requests: u64,
    asked: u64,
    launches: u64,
}

/// One client connection, or the single one.
pub(super) struct Connection {
    pub(super) log: Arc<Log>,
    /// The slot of its single reader, if the server assigns connection ids.
    seat: Seat,
    /// The agents that it was initialised with; the first is its default.
    pub(super) agents: Vec<String>,
    /// The sessions whose messages it receives.
    pub(super) attached: BTreeSet<String>,
}

/// One agent by name. The cell is replaced when the agent exits.
pub(super) struct Slot {
    pub(super) launch: u64,
    pub(super) running: Arc<OnceCell<Arc<dyn Running>>>,
    /// The parameters of the last `initialize`, repeated to an agent that is launched again.
    pub(super) initialize: Option<Value>,
}

/// A pending client request.
pub(super) struct Pending {
    pub(super) connection: String,
    /// The client's id.
    pub(super) id: Value,
    pub(super) method: String,
    pub(super) params: Value,
    pub(super) agent: String,
    pub(super) echo: Echo,
    /// How many lines the agent had written to stderr when it got the request.
    pub(super) stderr_before: u64,
    pub(super) waiter: oneshot::Sender<Value>,
}

/// A pending agent request.
pub(super) struct Asked {
    pub(super) connection: String,
    /// The agent and its id; `None` for a request that a test created.
    pub(super) agent: Option<(String, Value)>,
    pub(super) method: String,
    pub(super) params: Value,
}

impl Hub {
    /// Creates an empty hub. Without connection ids it has the single connection from the start.
    pub(crate) fn new(core: Arc<Core>, control: ControlPlane) -> Arc<Self> {
        let mut state = State::default();
        if core.config.connection_ids.is_none() {
            state.connections.insert(THE_CONNECTION.to_owned(), Connection::new(core.new_log()));
        }
        Arc::new(Self { core, control, state: Mutex::new(state) })
    }

    /// Returns the connection of a request, by its header.
    pub(super) fn connection(&self, header: Option<&str>) -> Result<String, Problem> {
        if self.core.config.connection_ids.is_none() {
            return Ok(THE_CONNECTION.to_owned());
        }
        let header = header.map(str::trim).filter(|id| !id.is_empty());
        let Some(id) = header else {
            let name = self.core.config.connection_ids.as_deref().unwrap_or_default().to_lowercase();
            return Err(Problem::invalid_request(format!("missing {name} header")));
        };
        if self.lock().connections.contains_key(id) { Ok(id.to_owned()) } else { Err(unknown_client(id)) }
    }

    /// Creates a connection, for the first `initialize` of a client.
    pub(super) fn new_connection(&self) -> String {
        let log = self.core.new_log();
        let mut state = self.lock();
        state.counters.connections += 1;
        let id = format!("acp_conn_{}", state.counters.connections);
        state.connections.insert(id.clone(), Connection::new(log));
        id
    }

    /// Opens the stream of a connection after the id `seen`. A connection with an id has one stream at a
    /// time; the single connection of a server without ids has any number.
    pub(crate) fn stream(&self, header: Option<&str>, seen: u64) -> Result<Tap, Problem> {
        let id = self.connection(header)?;
        let state = self.lock();
        let connection = state.connections.get(&id).ok_or_else(|| unknown_client(&id))?;
        let log = Arc::clone(&connection.log);
        let position = log.position_after(seen);
        if id == THE_CONNECTION {
            return Ok(Tap::open(&self.core, log, position, Framing::Numbered));
        }
        let taken = || Problem::conflict("connection already has an open event stream");
        let seated = connection.seat.take(|| {}).ok_or_else(taken)?;
        Ok(Tap::open(&self.core, log, position, Framing::Numbered).seated(seated))
    }

    /// Closes a connection. Agents and sessions remain.
    ///
    /// On a shared endpoint only the open streams end: the replay buffer and pending agent requests remain
    /// for the other clients. A connection with an id ends completely, and agents that wait for its responses
    /// get an error.
    pub(crate) async fn close(&self, header: Option<&str>) -> Result<(), Problem> {
        let id = match self.connection(header) {
            Ok(id) => id,
            Err(problem) if problem.status() == 404 => return Ok(()),
            Err(problem) => return Err(problem),
        };
        let orphans: Vec<_> = {
            let mut state = self.lock();
            if id == THE_CONNECTION {
                if let Some(connection) = state.connections.get_mut(&id) {
                    connection.log.end_streams();
                }
                return Ok(());
            }
            if let Some(connection) = state.connections.remove(&id) {
                connection.log.close();
            }
            let ids: Vec<String> = state
                .asked
                .iter()
                .filter(|(_, asked)| asked.connection == id)
                .map(|(id, _)| id.clone())
                .collect();
            let agents: Vec<_> = ids.iter().filter_map(|id| state.asked.remove(id)?.agent).collect();
            agents.into_iter().filter_map(|(agent, id)| Some((state.running(&agent)?, id))).collect()
        };
        for (agent, id) in orphans {
            let error = json!({ "code": -32001, "message": "no attached ACP client for session request" });
            // An agent that has died needs no response.
            let _ = agent.deliver(json!({ "jsonrpc": "2.0", "id": id, "error": error })).await;
        }
        Ok(())
    }

    /// Publishes any text on every connection, like an agent.
    pub(crate) fn emit(&self, data: &Bytes) {
        let state = self.lock();
        for connection in state.connections.values() {
            connection.log.publish(data.clone());
        }
    }

    /// Publishes a request without an agent on every connection and returns its id.
    pub(crate) fn emit_request(&self, mut request: Value) -> String {
        let mut state = self.lock();
        let id = state.next_asked();
        request["jsonrpc"] = "2.0".into();
        request["id"] = id.clone().into();
        let asked = Asked {
            connection: state.connections.keys().next().cloned().unwrap_or_default(),
            agent: None,
            method: request.get("method").and_then(Value::as_str).unwrap_or_default().to_owned(),
            params: request.get("params").cloned().unwrap_or(Value::Null),
        };
        state.asked.insert(id.clone(), asked);
        for connection in state.connections.values() {
            connection.log.publish(request.to_string());
        }
        id
    }

    /// Returns the newest event id of the single connection, or of the busiest one.
    pub(crate) fn last_event_id(&self) -> u64 {
        self.lock().connections.values().map(|connection| connection.log.last_id()).max().unwrap_or(0)
    }

    /// Returns all sessions in the format of `GET /v1/sessions`, sorted by id.
    pub(crate) fn session_infos(&self) -> Vec<Value> {
        self.lock().sessions.iter().map(|(id, session)| session.info(id)).collect()
    }

    /// Returns one session in the format of `GET /v1/sessions/{id}`.
    pub(crate) fn session_info(&self, id: &str) -> Option<Value> {
        self.lock().sessions.get(id).map(|session| session.info(id))
    }

    /// Marks every active session as suspended. Returns how many there were.
    pub(crate) fn suspend_sessions(&self) -> usize {
        self.lock().sessions.values_mut().map(|session| usize::from(session.suspend())).sum()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl Connection {
    fn new(log: Arc<Log>) -> Self {
        Self { log, seat: Seat::default(), agents: Vec::new(), attached: BTreeSet::new() }
    }
}

impl State {
    pub(super) fn next_request(&mut self) -> String {
        self.counters.requests += 1;
        format!("srv_req_{}", self.counters.requests)
    }

    pub(super) fn next_asked(&mut self) -> String {
        self.counters.asked += 1;
        format!("agent_req_{}", self.counters.asked)
    }

    pub(super) fn next_launch(&mut self) -> u64 {
        self.counters.launches += 1;
        self.counters.launches
    }

    /// Returns the running agent with this name.
    pub(super) fn running(&self, agent: &str) -> Option<Arc<dyn Running>> {
        self.agents.get(agent)?.running.get().cloned()
    }

    /// Publishes `message` on one connection.
    pub(super) fn publish(&self, connection: &str, message: &Value) {
        if let Some(connection) = self.connections.get(connection) {
            connection.log.publish(message.to_string());
        }
    }
}

/// The problem of an unknown connection, with the message of the early extension server.
pub(super) fn unknown_client(id: &str) -> Problem {
    Problem::new(axum::http::StatusCode::NOT_FOUND, "client_not_found", "ACP client not found")
        .detail("unknown ACP client id")
        .with("sessionId", id)
}
