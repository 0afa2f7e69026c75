use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::http::HeaderMap;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The HTTP verb, in capitals.
    pub method: String,
    /// The path, as sent.
    pub path: String,
    /// The query without its question mark; empty when there was none.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; empty when the server never read it.
    pub body: Bytes,
    /// When the request was recorded.
    pub at: SystemTime,
}

impl RecordedRequest {
    /// One header as text; none when it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON; none when it is not.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The JSON-RPC method in the body, if it has one.
    pub fn rpc_method(&self) -> Option<String> {
        Some(self.json()?.get("method")?.as_str()?.to_owned())
    }
}

/// Every request the server saw, up to a limit; the oldest go first.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Guards the list; held for a push or a copy.
    requests: Mutex<VecDeque<RecordedRequest>>,
    limit: usize,
    changed: watch::Sender<u64>,
}

impl Journal {
    pub(crate) fn new(limit: usize) -> Self {
        Self { requests: Mutex::default(), limit, changed: watch::Sender::new(0) }
    }

    /// Adds one request.
    pub(crate) fn record(&self, request: RecordedRequest) {
        if self.limit == 0 {
            return;
        }
        let mut requests = self.lock();
        if requests.len() >= self.limit {
            requests.pop_front();
        }
        requests.push_back(request);
        drop(requests);
        self.changed.send_modify(|count| *count += 1);
    }

    /// A copy of all requests, oldest first.
    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.lock().iter().cloned().collect()
    }

    /// Forgets all requests.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Rings on every new request.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecordedRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
