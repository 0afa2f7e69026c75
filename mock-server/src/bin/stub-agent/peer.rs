//! The client on the other side of the pipes.

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

/// Writes to standard output and settles the agent's own requests.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Numbers the agent's own requests.
    next_id: AtomicU64,
    /// Who waits for the answer to which of them.
    waiting: Mutex<HashMap<String, mpsc::Sender<Value>>>,
}

impl Peer {
    /// Prints one message as a line.
    pub(crate) fn send(&self, message: &Value) {
        self.print(&format!("{message}\n"));
    }

    /// Prints any text. A client that is gone is noticed by the end of the input, not here.
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

    /// Sends a request of the agent's own and waits for the whole answer.
    pub(crate) fn ask(&self, method: &str, params: Value) -> Value {
        let id = format!("stub-{}", self.next_id.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, answer) = mpsc::channel();
        self.waiting().insert(id.clone(), sender);
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        answer.recv().unwrap_or_default()
    }

    /// Hands an answer to whoever waits for it.
    pub(crate) fn settle(&self, answer: Value) {
        let waiter = answer["id"].as_str().and_then(|id| self.waiting().remove(id));
        match waiter {
            Some(waiter) => drop(waiter.send(answer)),
            None => eprintln!("stub-agent: an answer nobody waits for: {}", answer["id"]),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Value>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
