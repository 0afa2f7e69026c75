//! The client at the other end of the pipes.

use std::{
    collections::HashMap,
    io::Write,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use serde_json::{Value, json};

/// Writes to standard output and resolves the agent's own requests.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// The id of the next request.
    next_id: AtomicU64,
    /// The pending requests by id.
    waiting: Mutex<HashMap<String, mpsc::Sender<Value>>>,
}

impl Peer {
    /// Prints one message as a line.
    pub(crate) fn send(&self, message: &Value) {
        self.print(&format!("{message}\n"));
    }

    /// Prints any text. A disconnected client is detected by the end of the input, not here.
    pub(crate) fn print(&self, text: &str) {
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    }

    pub(crate) fn answer(&self, id: &Value, result: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
    }

    pub(crate) fn refuse(&self, id: &Value, code: i64, message: &str) {
        let error = json!({ "code": code, "message": message });
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    pub(crate) fn update(&self, session: &str, update: Value) {
        let params = json!({ "sessionId": session, "update": update });
        self.send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }));
    }

    /// Sends a request to the client and waits for the whole response.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let id = format!("stub-{}", self.next_id.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, answer) = mpsc::channel();
        self.waiting().insert(id.clone(), sender);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        answer.recv().unwrap_or_default()
    }

    /// Passes a response to the pending request.
    pub(crate) fn settle(&self, answer: Value) {
        let waiter = answer["id"].as_str().and_then(|id| self.waiting().remove(id));
        match waiter {
            Some(waiter) => drop(waiter.send(answer)),
            None => eprintln!("stub-agent: response to an unknown request: {}", answer["id"]),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Value>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
