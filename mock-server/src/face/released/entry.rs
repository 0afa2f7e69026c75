use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::agent::{Exit, Output, Running};
use crate::server::Echo;
use crate::stream::Log;

/// Agents without an entry that were asked to stop. They are dropped when they exit, and killed with the
/// table.
pub(super) type Orphans = Arc<Mutex<Vec<(u64, Arc<dyn Running>)>>>;

/// One server id: its agent and all output of the agent.
///
/// Dropping the last handle only closes the agent's input, as in the released server.
pub(super) struct Entry {
    pub(super) agent: String,
    pub(super) created_at: u64,
    pub(super) line: Arc<Line>,
    pub(super) running: Arc<dyn Running>,
    pub(super) orphans: Orphans,
    pub(super) number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.line.exit().is_none() {
            let orphan = (self.number, Arc::clone(&self.running));
            self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(orphan);
        }
        self.line.abandon();
        self.running.close_input();
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Entry").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// The output of an agent, and the requests that wait for it.
pub(super) struct Line {
    pub(super) log: Arc<Log>,
    /// Guards waiters and exit; held for a lookup and for publishing, never across an await.
    state: Mutex<State>,
    exited: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// Waiting POSTs by the JSON text of their id.
    waiters: HashMap<String, Waiter>,
    exit: Option<Exit>,
    /// Whether the entry is gone, so that the streams end with the agent.
    abandoned: bool,
}

struct Waiter {
    answer: oneshot::Sender<Value>,
    echo: Echo,
}

impl Line {
    pub(super) fn new(log: Arc<Log>) -> Self {
        Self { log, state: Mutex::default(), exited: watch::Sender::new(false) }
    }

    /// Handles output of the agent, or its exit.
    pub(super) fn output(&self, output: Output) {
        match output {
            Output::Line(line) => self.print(&line),
            Output::Exited(exit) => self.end(exit),
        }
    }

    fn print(&self, line: &[u8]) {
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let mut state = self.lock();
        let value = match crate::json::from_slice::<Value>(line) {
            Ok(value) => sorted(value),
            Err(error) => {
                let params = json!({ "error": error.to_string(), "raw": String::from_utf8_lossy(line) });
                let notice =
                    json!({ "jsonrpc": "2.0", "method": "_adapter/invalid_stdout", "params": params });
                self.log.publish(notice.to_string());
                return;
            }
        };
        let waiter = match (value.get("method"), value.get("id")) {
            (None, Some(id)) => state.waiters.remove(&id.to_string()),
            _ => None,
        };
        if waiter.as_ref().is_none_or(|waiter| waiter.echo != Echo::BodyOnly) {
            self.log.publish(value.to_string());
        }
        if let Some(waiter) = waiter {
            // The POST may have been aborted; the stream carries the response anyway.
            let _ = waiter.answer.send(value);
        }
    }

    fn end(&self, exit: Exit) {
        let mut state = self.lock();
        let params = json!({ "code": exit.status.code(), "success": exit.status.success() });
        let notice = json!({ "jsonrpc": "2.0", "method": "_adapter/agent_exited", "params": params });
        self.log.publish(notice.to_string());
        state.exit = Some(exit);
        if state.abandoned {
            self.log.finish();
        }
        drop(state);
        self.exited.send_replace(true);
    }

    /// Waits for the response to the request with this id. Evicts an earlier waiter with the same id.
    pub(super) fn wait(&self, id: &Value, echo: Echo) -> oneshot::Receiver<Value> {
        let (answer, receiver) = oneshot::channel();
        self.lock().waiters.insert(id.to_string(), Waiter { answer, echo });
        receiver
    }

    /// Removes the waiter with this id, even if another request has replaced it.
    pub(super) fn forget(&self, id: &Value) {
        self.lock().waiters.remove(&id.to_string());
    }

    /// Returns how the agent exited, if it has.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.lock().exit.clone()
    }

    /// Waits until the agent has exited.
    pub(super) async fn exited(&self) {
        let mut exited = self.exited.subscribe();
        // The sender lives as long as this value.
        let _ = exited.wait_for(|exited| *exited).await;
    }

    /// Makes the streams end with the agent, or now if it has exited.
    fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        if state.exit.is_some() {
            self.log.finish();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sorts the keys of every object alphabetically, as the released server writes messages that pass through
/// it.
pub(super) fn sorted(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let mut members: Vec<_> = members.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            members.sort_by(|left, right| left.0.cmp(&right.0));
            Value::Object(members.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value: Value = serde_json::from_str(r#"{"b":[{"z":1,"a":2}],"a":{"y":1,"x":2}}"#).unwrap();
        assert_eq!(sorted(value).to_string(), r#"{"a":{"x":2,"y":1},"b":[{"a":2,"z":1}]}"#);
    }
}
