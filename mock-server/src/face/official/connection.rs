use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde_json::{Value, json};
use tokio::sync::{OnceCell, oneshot};

use super::mailbox::Mailbox;
use super::message::{is_session_scoped, method_of, session_of};
use crate::agent::{Output, Running};
use crate::server::Core;
use crate::stream::Tap;

/// How many session streams may be open for sessions that the agent has not created yet.
const UNCONFIRMED: usize = 16;

/// All connections.
pub(crate) struct Connections {
    pub(super) core: Arc<Core>,
    /// Guards the map only.
    all: Mutex<HashMap<String, Arc<Connection>>>,
    count: AtomicU64,
}

/// Why a stream cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Another reader has it open.
    Held,
    /// The session is unknown, and too many readers wait for unknown sessions.
    Unknown,
}

impl Connections {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core, all: Mutex::default(), count: AtomicU64::new(0) })
    }

    /// Starts an agent for a new connection and passes it the `initialize`. The receiver gets the response,
    /// or an error if the agent exits.
    pub(super) async fn open(
        self: &Arc<Self>,
        agent: &str,
        message: Value,
    ) -> Option<(Arc<Connection>, oneshot::Receiver<Value>)> {
        let recipe = self.core.recipe(agent)?;
        let number = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        let (answer, receiver) = oneshot::channel();
        let state = State {
            connection: Some(Mailbox::new(&self.core, true)),
            sessions: HashMap::new(),
            known: HashSet::new(),
            pending: HashMap::new(),
            asked: HashSet::new(),
            initialize: Some((message.get("id").cloned().unwrap_or(Value::Null), answer)),
        };
        let connection = Arc::new(Connection {
            id: format!("acp-connection-{number}"),
            core: Arc::clone(&self.core),
            connections: Arc::downgrade(self),
            running: OnceCell::new(),
            state: Mutex::new(state),
        });
        let sink = {
            let connection = Arc::downgrade(&connection);
            move |output| {
                if let Some(connection) = connection.upgrade() {
                    connection.output(output);
                }
            }
        };
        let running = self.core.launch(&*recipe, sink).await.ok()?;
        let running = connection.running.get_or_init(|| std::future::ready(running)).await;
        self.lock().insert(connection.id.clone(), Arc::clone(&connection));
        // The exit of a dead agent drops the waiter.
        let _ = running.deliver(message).await;
        Some((connection, receiver))
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Connection>> {
        self.lock().get(id).cloned()
    }

    /// Publishes a value on the connection stream of `id`. Returns whether the connection exists.
    pub(crate) fn emit(&self, id: &str, value: &Value) -> bool {
        self.get(id).map(|connection| connection.publish(value)).is_some()
    }

    /// Ends a connection and its agent. Its streams end once they are drained.
    pub(super) fn close(&self, id: &str) -> bool {
        let Some(connection) = self.lock().remove(id) else { return false };
        connection.finish();
        if let Some(running) = connection.running.get() {
            running.kill();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Connection>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connections").finish_non_exhaustive()
    }
}

/// One connection: an agent, a mailbox for the connection and one for each session.
pub(super) struct Connection {
    pub(super) id: String,
    core: Arc<Core>,
    connections: Weak<Connections>,
    running: OnceCell<Arc<dyn Running>>,
    /// Guards mailboxes and pending requests; held to route one message, never across an await.
    state: Mutex<State>,
}

struct State {
    connection: Option<Mailbox>,
    sessions: HashMap<String, Mailbox>,
    /// Sessions that the agent has created.
    known: HashSet<String>,
    /// Pending client requests by the JSON text of their id: method and session.
    pending: HashMap<String, (String, Option<String>)>,
    /// Ids of pending session-scoped agent requests.
    asked: HashSet<String>,
    /// The pending `initialize`.
    initialize: Option<(Value, oneshot::Sender<Value>)>,
}

impl Connection {
    /// Passes one message of the client to the agent.
    pub(super) async fn deliver(&self, message: Value) {
        if let (Some(method), Some(id)) = (method_of(&message), message.get("id")) {
            let session = session_of(&message).map(str::to_owned);
            self.lock().pending.insert(id.to_string(), (method.to_owned(), session));
        } else if let Some(id) = message.get("id") {
            self.lock().asked.remove(&id.to_string());
        }
        if let Some(running) = self.running.get() {
            // The exit of a dead agent ends the connection.
            let _ = running.deliver(message).await;
        }
    }

    /// Whether this is a response to an agent request about a session.
    pub(super) fn answers_session_request(&self, message: &Value) -> bool {
        let id = message.get("id").map(Value::to_string);
        id.is_some_and(|id| self.lock().asked.contains(&id))
    }

    /// Puts a message on the connection stream.
    pub(super) fn publish(&self, message: &Value) {
        self.lock().to_connection(message);
    }

    /// Opens the connection stream, or that of a session.
    pub(super) fn read(self: &Arc<Self>, session: Option<&str>) -> Result<Tap, Unreadable> {
        let mut state = self.lock();
        let Some(session) = session else {
            let tap = state.connection.as_ref().and_then(|mailbox| mailbox.read(&self.core, || {}));
            return tap.ok_or(Unreadable::Held);
        };
        if !state.sessions.contains_key(session) {
            let confirmed = state.known.contains(session);
            let waiting = state.sessions.values().filter(|mailbox| !mailbox.confirmed).count();
            if !confirmed && waiting >= UNCONFIRMED {
                return Err(Unreadable::Unknown);
            }
            state.sessions.insert(session.to_owned(), Mailbox::new(&self.core, confirmed));
        }
        let mailbox = state.sessions.get(session).cloned().ok_or(Unreadable::Unknown)?;
        drop(state);
        let (connection, name) = (Arc::downgrade(self), session.to_owned());
        let forget = move || {
            if let Some(connection) = connection.upgrade() {
                connection.lock().sessions.retain(|id, mailbox| *id != name || mailbox.confirmed);
            }
        };
        mailbox.read(&self.core, forget).ok_or(Unreadable::Held)
    }

    fn output(&self, output: Output) {
        match output {
            Output::Line(line) => {
                let line = line.trim_ascii();
                if line.is_empty() {
                    return;
                }
                let message = crate::json::from_slice(line).unwrap_or_else(|error| {
                    let params = json!({ "error": error.to_string(), "raw": String::from_utf8_lossy(line) });
                    json!({ "jsonrpc": "2.0", "method": "_sandboxagent/agent/unparsed", "params": params })
                });
                self.lock().route(&self.core, message);
            }
            Output::Exited(_) => {
                self.finish();
                if let Some(connections) = self.connections.upgrade() {
                    connections.close(&self.id);
                }
            }
        }
    }

    /// Ends the streams once they are drained.
    fn finish(&self) {
        let mut state = self.lock();
        state.initialize = None;
        for mailbox in state.sessions.values().chain(&state.connection) {
            mailbox.finish();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts a message of the agent on its stream.
    fn route(&mut self, core: &Core, message: Value) {
        let id = message.get("id").map(Value::to_string);
        match (method_of(&message), id) {
            (Some(method), id) => {
                let session = session_of(&message).filter(|_| !method.starts_with("$/"));
                if let (Some(_), Some(id)) = (session, id) {
                    self.asked.insert(id);
                }
                match session.map(str::to_owned) {
                    Some(session) => self.session(core, &session).put(&message),
                    None => self.to_connection(&message),
                }
            }
            (None, Some(_)) => self.response(core, message),
            (None, None) => self.to_connection(&message),
        }
    }

    fn response(&mut self, core: &Core, message: Value) {
        let id = message.get("id").cloned().unwrap_or(Value::Null);
        if self.initialize.as_ref().is_some_and(|(own, _)| *own == id) {
            if let Some((_, answer)) = self.initialize.take() {
                // The client may be gone; then the connection is never used.
                let _ = answer.send(message);
            }
            return;
        }
        let pending = self.pending.remove(&id.to_string());
        if let Some(named) = message.pointer("/result/sessionId").and_then(Value::as_str) {
            self.known.insert(named.to_owned());
        }
        let Some((method, session)) = pending else { return self.to_connection(&message) };
        let Some(session) = session.filter(|_| is_session_scoped(&method)) else {
            return self.to_connection(&message);
        };
        let ends = matches!(method.as_str(), "session/close" | "session/delete");
        let succeeded = message.get("error").is_none();
        match self.sessions.get(&session) {
            Some(mailbox) if !ends || mailbox.is_held() => mailbox.put(&message),
            _ => self.to_connection(&message),
        }
        if ends && succeeded {
            self.known.remove(&session);
            if let Some(mailbox) = self.sessions.remove(&session) {
                mailbox.finish();
            }
        } else if succeeded {
            self.session(core, &session);
        }
    }

    /// Returns the mailbox of a session that the agent has created, and creates it if necessary.
    fn session(&mut self, core: &Core, session: &str) -> &Mailbox {
        self.known.insert(session.to_owned());
        let mailbox = self.sessions.entry(session.to_owned()).or_insert_with(|| Mailbox::new(core, true));
        mailbox.confirmed = true;
        mailbox
    }

    fn to_connection(&self, message: &Value) {
        if let Some(mailbox) = &self.connection {
            mailbox.put(message);
        }
    }
}
