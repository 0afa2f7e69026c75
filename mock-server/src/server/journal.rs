use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use axum::http::HeaderMap;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

/// One received request.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    /// The HTTP method, in upper case.
    pub method: String,
    /// The path, as sent.
    pub path: String,
    /// The query without its question mark; empty if there was none.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body; empty if the server did not read it.
    pub body: Bytes,
    /// When the request was recorded.
    pub at: SystemTime,
}

impl RecordedRequest {
    /// Returns a header as text; `None` if it is absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the body as JSON; `None` if it is not JSON.
    pub fn json(&self) -> Option<Value> {
        crate::json::from_slice(&self.body).ok()
    }

    /// Returns the JSON-RPC method in the body, if it has one.
    pub fn rpc_method(&self) -> Option<String> {
        Some(self.json()?.get("method")?.as_str()?.to_owned())
    }
}

/// All received requests, up to a limit; the oldest are dropped first.
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

    /// Returns a copy of all requests, oldest first.
    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.lock().iter().cloned().collect()
    }

    /// Removes all requests.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Returns a receiver that is notified about every new request.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecordedRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
