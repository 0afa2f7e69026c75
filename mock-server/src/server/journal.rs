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

    /// Returns about how much memory it takes.
    fn size(&self) -> usize {
        let headers =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        self.body.len() + self.path.len() + self.query.len() + headers
    }

    /// Returns the JSON-RPC method in the body, if it has one.
    pub fn rpc_method(&self) -> Option<String> {
        Some(self.json()?.get("method")?.as_str()?.to_owned())
    }
}

#[derive(Debug, Default)]
struct Recorded {
    requests: VecDeque<RecordedRequest>,
    bytes: usize,
}

/// How many bytes the recorded requests take at most: they are recorded before their token is checked.
const MAX_BYTES: usize = 256 << 20;

/// All received requests, up to a limit; the oldest are dropped first.
#[derive(Debug)]
pub(crate) struct Journal {
    /// Guards the list; held for a push or a copy.
    recorded: Mutex<Recorded>,
    limit: usize,
    max_bytes: usize,
    changed: watch::Sender<u64>,
}

impl Journal {
    pub(crate) fn new(limit: usize) -> Self {
        Self { recorded: Mutex::default(), limit, max_bytes: MAX_BYTES, changed: watch::Sender::new(0) }
    }

    /// Adds one request.
    pub(crate) fn record(&self, request: RecordedRequest) {
        if self.limit == 0 {
            return;
        }
        let mut recorded = self.lock();
        recorded.bytes += request.size();
        recorded.requests.push_back(request);
        // The newest one is recorded at any size, so that a test can wait for it.
        while recorded.requests.len() > 1
            && (recorded.requests.len() > self.limit || recorded.bytes > self.max_bytes)
        {
            let oldest = recorded.requests.pop_front().map_or(0, |oldest| oldest.size());
            recorded.bytes -= oldest;
        }
        drop(recorded);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Returns a copy of all requests, oldest first.
    pub(crate) fn all(&self) -> Vec<RecordedRequest> {
        self.lock().requests.iter().cloned().collect()
    }

    /// Removes all requests.
    pub(crate) fn clear(&self) {
        *self.lock() = Recorded::default();
    }

    /// Returns a receiver that is notified about every new request.
    pub(crate) fn bell(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_in_number_and_bytes() {
        let request = |size: usize| RecordedRequest {
            method: "POST".to_owned(),
            path: String::new(),
            query: String::new(),
            headers: HeaderMap::new(),
            body: vec![0; size].into(),
            at: SystemTime::UNIX_EPOCH,
        };
        let mut journal = Journal::new(3);
        journal.max_bytes = 100;
        let sizes =
            |journal: &Journal| journal.all().iter().map(|request| request.body.len()).collect::<Vec<_>>();
        for (size, expected) in [
            (10, vec![10]),
            (20, vec![10, 20]),
            (70, vec![10, 20, 70]),
            (1, vec![20, 70, 1]),
            (10, vec![70, 1, 10]),
        ] {
            journal.record(request(size));
            assert_eq!(sizes(&journal), expected);
        }
        journal.record(request(90));
        assert_eq!(sizes(&journal), [10, 90]);
        journal.record(request(101));
        assert_eq!(sizes(&journal), [101]);
        journal.clear();
        journal.record(request(100));
        assert_eq!(sizes(&journal), [100]);
    }
}
