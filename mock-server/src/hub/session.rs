use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::termination::Termination;

/// The key of the server's metadata.
pub(crate) const META: &str = "sandboxagent.dev";

/// One session in the server's records.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) agent: String,
    cwd: String,
    title: Option<String>,
    model: Option<String>,
    mode: Option<String>,
    /// The metadata as received, key by key.
    stored: Map<String, Value>,
    created_at: u64,
    updated_at: u64,
    /// The time that an agent reported in a `session_info_update`, unchanged.
    agent_time: Option<String>,
    event_count: u64,
    /// Set when the session has ended.
    pub(crate) termination: Option<Termination>,
    /// Set when the server shut down while the session was active.
    suspended: bool,
}

impl Session {
    /// Creates a session of `agent`.
    pub(crate) fn new(agent: &str, cwd: &str) -> Self {
        let now = now();
        Self {
            agent: agent.to_owned(),
            cwd: cwd.to_owned(),
            title: None,
            model: None,
            mode: None,
            stored: Map::new(),
            created_at: now,
            updated_at: now,
            agent_time: None,
            event_count: 0,
            termination: None,
            suspended: false,
        }
    }

    /// Merges metadata key by key. `title`, `model` and `mode` take effect; null clears the latter two.
    pub(crate) fn merge(&mut self, metadata: &Map<String, Value>) {
        for (key, value) in metadata {
            let text = value.as_str().map(str::to_owned);
            match key.as_str() {
                "title" => self.title = text.or(self.title.take()),
                "model" => self.model = text,
                "mode" => self.mode = text,
                _ => {}
            }
            self.stored.insert(key.clone(), value.clone());
        }
        self.updated_at = now();
    }

    /// Counts one event of the session.
    pub(crate) fn count(&mut self) {
        self.event_count += 1;
        self.updated_at = now();
    }

    /// Applies an agent's update to the session.
    pub(crate) fn observe(&mut self, update: &Value) {
        self.count();
        match update.get("sessionUpdate").and_then(Value::as_str) {
            Some("session_info_update") => {
                if let Some(title) = update.get("title").and_then(Value::as_str) {
                    self.title = Some(title.to_owned());
                }
                if let Some(time) = update.get("updatedAt").and_then(Value::as_str) {
                    self.agent_time = Some(time.to_owned());
                }
            }
            Some("current_mode_update") => {
                if let Some(mode) = update.get("currentModeId").and_then(Value::as_str) {
                    self.mode = Some(mode.to_owned());
                }
            }
            _ => {}
        }
    }

    /// Ends the session. The first end wins. Returns whether this was the first.
    pub(crate) fn end(&mut self, termination: Termination) -> bool {
        if self.termination.is_some() {
            return false;
        }
        self.termination = Some(termination);
        self.count();
        true
    }

    /// Makes an ended session active again, in `cwd` if given.
    pub(crate) fn revive(&mut self, cwd: Option<&str>) {
        self.termination = None;
        self.suspended = false;
        if let Some(cwd) = cwd {
            self.cwd = cwd.to_owned();
        }
    }

    /// Marks an active session as suspended.
    pub(crate) fn suspend(&mut self) -> bool {
        let active = self.termination.is_none() && !self.suspended;
        self.suspended |= active;
        active
    }

    /// Returns the hint of the current model.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the session is in this directory.
    pub(crate) fn is_in(&self, cwd: &str) -> bool {
        self.cwd == cwd
    }

    /// Returns the entry of `GET /v1/sessions` and of `_sandboxagent/session/{get,list}`.
    pub(crate) fn info(&self, id: &str) -> Value {
        let stored = |camel: &str, snake: &str| {
            self.stored.get(camel).or_else(|| self.stored.get(snake)).and_then(Value::as_str)
        };
        let mut info = json!({
            "sessionId": id,
            "agent": self.agent,
            "agentMode": self.mode.as_deref().unwrap_or("build"),
            "permissionMode": stored("permissionMode", "permission_mode").unwrap_or("default"),
            "ended": self.termination.is_some(),
            "eventCount": self.event_count,
            "createdAt": self.created_at,
            "updatedAt": self.updated_at,
            "directory": self.cwd,
        });
        let optional = [
            ("model", self.model.as_deref()),
            ("nativeSessionId", stored("nativeSessionId", "native_session_id")),
            ("title", self.title.as_deref()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                info[name] = value.into();
            }
        }
        if self.suspended {
            info["status"] = "suspended".into();
        }
        if let Some(termination) = &self.termination {
            info["terminationInfo"] = termination.info();
        }
        info
    }

    /// Returns the entry of `session/list`.
    pub(crate) fn entry(&self, id: &str) -> Value {
        let mut meta = self.stored.clone();
        meta.insert("agent".to_owned(), self.agent.clone().into());
        meta.insert("createdAt".to_owned(), self.created_at.into());
        meta.insert("updatedAt".to_owned(), self.updated_at.into());
        meta.insert("ended".to_owned(), self.termination.is_some().into());
        meta.insert("eventCount".to_owned(), self.event_count.into());
        if let Some(model) = &self.model {
            meta.insert("model".to_owned(), model.clone().into());
        }
        if let Some(termination) = &self.termination {
            meta.insert("terminationInfo".to_owned(), termination.info());
        }
        let mut entry = json!({ "sessionId": id, "cwd": self.cwd });
        if let Some(title) = &self.title {
            entry["title"] = title.clone().into();
        }
        if let Some(time) = &self.agent_time {
            entry["updatedAt"] = time.clone().into();
        }
        entry["_meta"] = json!({ META: meta });
        entry
    }
}

/// Returns the server's metadata in `params._meta`, if it is an object.
pub(crate) fn metadata(params: &Value) -> Option<&Map<String, Value>> {
    params.get("_meta")?.get(META)?.as_object()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
