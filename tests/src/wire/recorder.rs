//! Records messages.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use axum::http::HeaderMap;
use serde_json::{Map, Value, json};

use super::{Entry, Pass};

/// The maximum number of entries. Further ones are only counted.
const ENTRIES: usize = 20_000;
/// The size limit of a recorded message.
const MESSAGE_BYTES: usize = 64 << 10;
/// The headers that the protocol uses. No others are recorded, so no token is.
const HEADERS: [&str; 6] =
    ["accept", "content-type", "last-event-id", "acp-connection-id", "x-acp-connection-id", "acp-session-id"];

/// A bounded recording without secrets.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    /// Guards the entries and the number of dropped ones; held to add an entry.
    entries: Mutex<(Vec<Entry>, u64)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { begun: Instant::now(), entries: Mutex::default() }
    }
}

impl Recorder {
    /// Returns all entries so far, and the number of dropped ones.
    pub fn entries(&self) -> (Vec<Entry>, u64) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn add(&self, request: u64, pass: Pass) {
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.0.len() < ENTRIES {
            entries.0.push(Entry { ms, request, pass });
        } else {
            entries.1 += 1;
        }
    }
}

/// Returns the headers to record.
pub(super) fn kept_headers(headers: &HeaderMap) -> Map<String, Value> {
    let kept = HEADERS.iter().filter_map(|name| {
        let value = headers.get(*name)?.to_str().ok()?;
        Some(((*name).to_owned(), Value::from(value)))
    });
    kept.collect()
}

/// Returns a body or event for the recording: as JSON, as `{"text": …}` if it is not JSON, or as `{"bytes": n}` if
/// it is too large.
pub(super) fn kept_message(bytes: &[u8]) -> Value {
    if bytes.is_empty() {
        return Value::Null;
    }
    if bytes.len() > MESSAGE_BYTES {
        return json!({ "bytes": bytes.len() });
    }
    serde_json::from_slice(bytes).unwrap_or_else(|_| json!({ "text": String::from_utf8_lossy(bytes) }))
}

/// Returns a path without a token in its query.
pub(super) fn kept_path(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else { return path.to_owned() };
    let kept: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with("access_token=")).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_large_messages_are_not_recorded() {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer secret".parse().unwrap());
        headers.insert("cookie", "secret".parse().unwrap());
        headers.insert("accept", "*/*".parse().unwrap());
        assert_eq!(Value::Object(kept_headers(&headers)), serde_json::json!({ "accept": "*/*" }));
        assert_eq!(kept_path("/a?access_token=secret"), "/a");
        assert_eq!(kept_path("/a?x=1&access_token=secret&y=2"), "/a?x=1&y=2");
        assert_eq!(kept_message(&[b'1'; MESSAGE_BYTES + 1]), json!({ "bytes": 65537 }));
        assert_eq!(kept_message(b"no json"), json!({ "text": "no json" }));
    }

    #[test]
    fn a_recording_is_bounded_and_counts_what_it_dropped() {
        let recorder = Recorder::default();
        for _ in 0..ENTRIES + 3 {
            recorder.add(1, Pass::End);
        }
        let (entries, left_out) = recorder.entries();
        assert_eq!((entries.len(), left_out), (ENTRIES, 3));
    }
}
