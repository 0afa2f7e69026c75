use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

/// How many responses are recorded; the oldest are dropped first.
const KEPT: usize = 65_536;

/// An agent request and the client's response to it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AgentAnswer {
    /// The method of the request.
    pub method: String,
    /// The parameters of the request.
    pub params: Value,
    /// The whole response that the agent received, with its `result` or `error`.
    pub answer: Value,
}

impl AgentAnswer {
    /// Returns the result, or null if the client responded with an error.
    pub fn result(&self) -> &Value {
        self.answer.get("result").unwrap_or(&Value::Null)
    }
}

/// All responses that the server's agents received.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    /// Guards the list; held for a push or a copy.
    list: Arc<Mutex<VecDeque<AgentAnswer>>>,
    changed: watch::Sender<u64>,
}

impl Answers {
    pub(crate) fn push(&self, answer: AgentAnswer) {
        let mut list = self.lock();
        if list.len() >= KEPT {
            list.pop_front();
        }
        list.push_back(answer);
        drop(list);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn all(&self) -> Vec<AgentAnswer> {
        self.lock().iter().cloned().collect()
    }

    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<AgentAnswer>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self { list: Arc::default(), changed: watch::Sender::new(0) }
    }
}
