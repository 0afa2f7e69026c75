use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

/// How many answers are kept; the oldest go first.
const KEPT: usize = 65_536;

/// A request an agent made of the client, and what the client said.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AgentAnswer {
    /// The method of the request.
    pub method: String,
    /// The parameters of the request.
    pub params: Value,
    /// The whole answer as the agent got it, with its `result` or `error`.
    pub answer: Value,
}

impl AgentAnswer {
    /// The result, or null if the client answered with an error.
    pub fn result(&self) -> &Value {
        self.answer.get("result").unwrap_or(&Value::Null)
    }
}

/// Every answer an agent of the server was given.
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
