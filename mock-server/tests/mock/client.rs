//! A small independent client, which cannot share bugs with the crates that the server tests.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use mock_server::MockServer;
use serde_json::{Value, json};

/// How long a test waits for something that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// How long a test waits to be sure that nothing happens.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

/// The parameters of an `initialize` for the agent `mock`.
pub(crate) fn initialize_params() -> Value {
    json!({
        "protocolVersion": 1,
        "clientCapabilities": {},
        "_meta": { "sandboxagent.dev": { "agent": "mock" } },
    })
}

pub(crate) fn request(id: impl Into<Value>, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
}

pub(crate) fn prompt(id: impl Into<Value>, session: &str, text: &str) -> Value {
    let blocks = json!([{ "type": "text", "text": text }]);
    request(id, "session/prompt", json!({ "sessionId": session, "prompt": blocks }))
}

pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
}

impl Client {
    pub(crate) fn new(server: &MockServer) -> Self {
        Self::at(format!("{}/v1/rpc", server.url()))
    }

    pub(crate) fn at(url: String) -> Self {
        let http = crate::http_client::builder().redirect(reqwest::redirect::Policy::none());
        Self { http: http.build().unwrap(), url }
    }

    /// Sends one message.
    pub(crate) async fn send(&self, message: &Value) -> reqwest::Result<reqwest::Response> {
        let post = self.http.post(&self.url).header("content-type", "application/json");
        post.body(message.to_string()).send().await
    }

    /// Sends one message and returns status and body.
    pub(crate) async fn post(&self, message: Value) -> (u16, Value) {
        let response = tokio::time::timeout(SOON, self.send(&message)).await.unwrap().unwrap();
        let status = response.status().as_u16();
        let body = response.bytes().await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Sends one request and returns its result.
    pub(crate) async fn result(&self, message: Value) -> Value {
        let (status, body) = self.post(message).await;
        assert_eq!(status, 200, "{body}");
        body.get("result").unwrap_or_else(|| panic!("no result in {body}")).clone()
    }

    /// Initialises and creates a session.
    pub(crate) async fn session(&self) -> String {
        self.result(request("init", "initialize", initialize_params())).await;
        let meta = json!({ "sandboxagent.dev": { "agent": "mock" } });
        let params = json!({ "cwd": "/", "mcpServers": [], "_meta": meta });
        let result = self.result(request("new", "session/new", params)).await;
        result["sessionId"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn get(&self, last_event_id: Option<u64>) -> reqwest::Response {
        let mut get = self.http.get(&self.url).header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            get = get.header("last-event-id", id.to_string());
        }
        tokio::time::timeout(SOON, get.send()).await.unwrap().unwrap()
    }

    /// Opens the stream.
    pub(crate) async fn stream(&self, last_event_id: Option<u64>) -> Events {
        let response = self.get(last_event_id).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events::new(response)
    }
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<u64>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or(Value::Null)
    }
}

/// Reads events whose lines end with line feeds. Tests of other line endings use [`Events::bytes`].
pub(crate) struct Events {
    body: BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    buffer: Vec<u8>,
}

impl Events {
    pub(crate) fn new(response: reqwest::Response) -> Self {
        Self { body: response.bytes_stream().boxed(), buffer: Vec::new() }
    }

    /// Returns the next event; `None` after a clean end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|window| window == b"\n\n") {
                let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(event) = parse(&String::from_utf8_lossy(&frame)) {
                    return Some(event);
                }
            }
            let chunk = tokio::time::timeout(SOON, self.body.next()).await.expect("an event in time")?;
            self.buffer.extend_from_slice(&chunk.expect("a whole stream"));
        }
    }

    /// Returns the next events up to and including the one that `last` accepts.
    pub(crate) async fn until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("another event");
            let done = last(&event.json());
            events.push(event);
            if done {
                return events;
            }
        }
    }

    /// Returns the next events up to and including the response to `id`.
    pub(crate) async fn until_response(&mut self, id: &str) -> Vec<Event> {
        self.until(|message| message.get("method").is_none() && message["id"] == id).await
    }

    /// Returns whether nothing arrives for a while.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        self.buffer.is_empty() && tokio::time::timeout(QUIET, self.body.next()).await.is_err()
    }

    /// Returns all bytes up to the end of the stream, and how it ended.
    pub(crate) async fn bytes(mut self) -> (Vec<u8>, Result<(), reqwest::Error>) {
        loop {
            match tokio::time::timeout(SOON, self.body.next()).await.expect("the stream to end") {
                None => return (self.buffer, Ok(())),
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return (self.buffer, Err(error)),
            }
        }
    }

    /// Returns at least `count` bytes of the stream, which may stay open.
    pub(crate) async fn at_least(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            let chunk = tokio::time::timeout(SOON, self.body.next()).await.expect("bytes in time");
            self.buffer.extend_from_slice(&chunk.expect("an open stream").expect("a whole chunk"));
        }
        std::mem::take(&mut self.buffer)
    }
}

/// Returns the ids of events.
pub(crate) fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().filter_map(|event| event.id).collect()
}

fn parse(frame: &str) -> Option<Event> {
    let field = |name: &str| {
        let mut lines = frame.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    Some(Event { id: field("id").and_then(|id| id.parse().ok()), data: field("data")?.to_owned() })
}
