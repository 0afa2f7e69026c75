//! The sessions of the agent.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value, json};

use crate::turn::{Cancel, chunk};

/// Why a request about a session is refused that this process does not have.
pub(crate) const UNKNOWN: &str = "no such session";

/// All sessions, by id.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    table: Mutex<Table>,
    /// The folder with the history of each session as a file of lines, for later processes.
    memory: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Table {
    /// How many ids were assigned.
    issued: u64,
    sessions: BTreeMap<String, Session>,
}

/// One session.
#[derive(Debug, Clone, Default)]
struct Session {
    cwd: String,
    mode: Option<String>,
    model: Option<String>,
    /// All updates that a reload streams again.
    history: Vec<Value>,
    /// The running turn, if there is one.
    turn: Option<Arc<Cancel>>,
}

impl Sessions {
    /// Creates an empty table. With `memory`, sessions of earlier processes are loaded from this folder.
    pub(crate) fn with_memory(memory: Option<PathBuf>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Creates a session and returns its id. With `origin`, it is a copy of that session.
    pub(crate) fn create(&self, cwd: &Value, origin: Option<&str>) -> String {
        let mut table = self.table();
        table.issued += 1;
        // The process id makes ids unique across processes of the agent.
        let id = format!("stub-{}-{}", std::process::id(), table.issued);
        let mut session = origin.and_then(|id| table.sessions.get(id)).cloned().unwrap_or_default();
        session.turn = None;
        session.set_cwd(cwd);
        table.sessions.insert(id.clone(), session);
        self.write_down(&id, &[]);
        id
    }

    /// Opens a session by id and returns its history. Without a memory, an unknown id becomes a new session;
    /// with one, the result is `None`.
    pub(crate) fn open(&self, id: &str, cwd: &Value) -> Option<Vec<Value>> {
        let mut table = self.table();
        if !table.sessions.contains_key(id) {
            let history = if self.memory.is_some() { self.read_up(id)? } else { Vec::new() };
            table.sessions.insert(id.to_owned(), Session { history, ..Session::default() });
        }
        let session = table.sessions.get_mut(id)?;
        session.set_cwd(cwd);
        Some(session.history.clone())
    }

    /// Returns what the agent has said in a session, chunk by chunk.
    pub(crate) fn said(&self, id: &str) -> Vec<String> {
        let table = self.table();
        let history = table.sessions.get(id).map(|session| session.history.as_slice()).unwrap_or_default();
        let own = history.iter().filter(|update| update["sessionUpdate"] == "agent_message_chunk");
        own.filter_map(|update| Some(update["content"]["text"].as_str()?.to_owned())).collect()
    }

    fn read_up(&self, id: &str) -> Option<Vec<Value>> {
        let text = fs::read_to_string(self.memory.as_ref()?.join(id)).ok()?;
        text.lines().map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Appends to the file of a session, if there is one.
    fn write_down(&self, id: &str, updates: &[Value]) {
        let Some(memory) = &self.memory else { return };
        let lines: String = updates.iter().map(|update| format!("{update}\n")).collect();
        let file = OpenOptions::new().create(true).append(true).open(memory.join(id));
        if let Err(error) = file.and_then(|mut file| file.write_all(lines.as_bytes())) {
            eprintln!("stub-agent: cannot store the history: {error}");
        }
    }

    pub(crate) fn remove(&self, id: &str) {
        if let Some(session) = self.table().sessions.remove(id) {
            session.turn.iter().for_each(|turn| turn.cancel());
        }
    }

    pub(crate) fn list(&self) -> Value {
        let table = self.table();
        table.sessions.iter().map(|(id, session)| json!({ "sessionId": id, "cwd": session.cwd })).collect()
    }

    /// Begins a turn. The error says why it cannot begin.
    pub(crate) fn begin(&self, id: &str, prompt: &str) -> Result<Arc<Cancel>, &'static str> {
        let mut table = self.table();
        let session = table.sessions.get_mut(id).ok_or(UNKNOWN)?;
        if session.turn.is_some() {
            return Err("a turn is running in the session");
        }
        let asked = chunk("user_message_chunk", prompt);
        self.write_down(id, std::slice::from_ref(&asked));
        session.history.push(asked);
        let cancel = Arc::new(Cancel::default());
        session.turn = Some(Arc::clone(&cancel));
        Ok(cancel)
    }

    /// Ends the turn, so that the next one may begin.
    pub(crate) fn finish(&self, id: &str) {
        self.change(id, |session| session.turn = None);
    }

    /// Stores what was said, for a later reload.
    pub(crate) fn remember(&self, id: &str, said: &str) {
        self.change(id, |session| {
            let said = chunk("agent_message_chunk", said);
            self.write_down(id, std::slice::from_ref(&said));
            session.history.push(said);
        });
    }

    pub(crate) fn cancel(&self, id: &str) {
        let turn = self.table().sessions.get(id).and_then(|session| session.turn.clone());
        turn.iter().for_each(|turn| turn.cancel());
    }

    pub(crate) fn set_mode(&self, id: &str, mode: &Value) {
        self.change(id, |session| session.mode = mode.as_str().map(str::to_owned));
    }

    pub(crate) fn set_model(&self, id: &str, model: &Value) {
        self.change(id, |session| session.model = model.as_str().map(str::to_owned));
    }

    /// Returns the settings of a session in the format of `session/new`.
    pub(crate) fn settings(&self, id: &str) -> Value {
        let session = self.table().sessions.get(id).cloned().unwrap_or_default();
        let mode = session.mode.as_deref().unwrap_or("build");
        let model = session.model.as_deref().unwrap_or("stub-small");
        let modes = json!([{ "id": "build", "name": "Build" }, { "id": "plan", "name": "Plan" }]);
        let models = json!([
            { "modelId": "stub-small", "name": "Stub Small" },
            { "modelId": "stub-large", "name": "Stub Large" },
        ]);
        let options = json!([
            { "value": "stub-small", "name": "Stub Small" },
            { "value": "stub-large", "name": "Stub Large" },
        ]);
        json!({
            "modes": { "currentModeId": mode, "availableModes": modes },
            "models": { "currentModelId": model, "availableModels": models },
            "configOptions": [{
                "id": "model", "name": "Model", "category": "model", "type": "select",
                "currentValue": model, "options": options,
            }],
        })
    }

    fn change(&self, id: &str, change: impl FnOnce(&mut Session)) {
        self.table().sessions.get_mut(id).map(change);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn set_cwd(&mut self, cwd: &Value) {
        if let Some(cwd) = cwd.as_str() {
            self.cwd = cwd.to_owned();
        }
    }
}
