//! A proxy on the loopback between a client and a server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use acp_http_client::http_client_builder;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, Response, StatusCode, header},
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::{
    Pass, Recorder,
    event_lines::EventLines,
    recorder::{kept_headers, kept_message, kept_path},
};
use crate::within;

/// The size limit of a request.
const REQUEST_BYTES: usize = 32 << 20;

/// Forwards everything in both directions, and can hold back the events of the server.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    http: reqwest::Client,
    recorder: Option<Recorder>,
    requests: AtomicU64,
    /// Whether events are forwarded.
    open: watch::Sender<bool>,
    /// The number of POSTs that got a response, and the method of the last one.
    answered: watch::Sender<(u64, String)>,
}

impl Proxy {
    /// Starts a proxy for the server at this URL.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(upstream: impl Into<String>) -> Self {
        Self::before(upstream.into(), None).await
    }

    /// Starts a proxy that records messages.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn recording(upstream: impl Into<String>) -> Self {
        Self::before(upstream.into(), Some(Recorder::default())).await
    }

    async fn before(upstream: String, recorder: Option<Recorder>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            upstream,
            http: http_client_builder().build().expect("an HTTP client"),
            recorder,
            requests: AtomicU64::new(0),
            open: watch::Sender::new(true),
            answered: watch::Sender::default(),
        });
        let router = Router::new().fallback(pass).with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("the proxy serves") });
        Self { address, shared, _serving: serving }
    }

    /// Returns the URL for clients.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the recorder, if this proxy records.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.shared.recorder.as_ref()
    }

    /// Returns the response statuses of the recorded POSTs with this method, in order; `None` without a response.
    pub fn statuses(&self, method: &str) -> Vec<Option<u16>> {
        let entries = self.recorder().map(|recorder| recorder.entries().0).unwrap_or_default();
        let status_of = |number: u64| {
            entries.iter().find_map(|entry| match entry.pass {
                Pass::Response { status, .. } if entry.request == number => Some(status),
                _ => None,
            })
        };
        let posts = entries.iter().filter(
            |entry| matches!(&entry.pass, Pass::Request { message, .. } if message["method"] == method),
        );
        posts.map(|entry| status_of(entry.request)).collect()
    }

    /// Returns the recorded responses of the client to agent requests, in order.
    pub fn answers(&self) -> Vec<Value> {
        let entries = self.recorder().map(|recorder| recorder.entries().0).unwrap_or_default();
        let answers = entries.into_iter().filter_map(|entry| match entry.pass {
            Pass::Request { message, .. } if message.get("method").is_none() => {
                message.get("result").cloned()
            }
            _ => None,
        });
        answers.collect()
    }

    /// Returns the path of the first recorded POST, without its query.
    pub fn endpoint(&self) -> Option<String> {
        let entries = self.recorder()?.entries().0;
        entries.into_iter().find_map(|entry| match entry.pass {
            Pass::Request { verb, path, .. } if verb == "POST" => {
                Some(path.split('?').next().unwrap_or_default().to_owned())
            }
            _ => None,
        })
    }

    /// Holds back events: the proxy stops reading the server's stream.
    pub fn shut(&self) {
        self.shared.open.send_replace(false);
    }

    /// Forwards events again.
    pub fn open(&self) {
        self.shared.open.send_replace(true);
    }

    /// Waits until the server has responded to a POST with this method.
    ///
    /// # Panics
    /// If that times out.
    pub async fn answered(&self, method: &str) {
        let mut answered = self.shared.answered.subscribe();
        let done = answered.wait_for(|(_, last)| last == method);
        within("a response of the server", done).await.expect("the proxy is running");
    }
}

impl Shared {
    fn record(&self, request: u64, pass: impl FnOnce() -> Pass) {
        if let Some(recorder) = &self.recorder {
            recorder.add(request, pass());
        }
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let number = shared.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, REQUEST_BYTES).await else {
        return refusal(StatusCode::PAYLOAD_TOO_LARGE);
    };
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    shared.record(number, || Pass::Request {
        verb: parts.method.to_string(),
        path: kept_path(path),
        headers: kept_headers(&parts.headers),
        message: kept_message(&body),
    });
    let method = method_of(&body);
    let url = format!("{}{path}", shared.upstream);
    let onward = shared.http.request(parts.method, url).headers(end_to_end(&parts.headers)).body(body);
    let Ok(answer) = onward.send().await else { return refusal(StatusCode::BAD_GATEWAY) };
    let (status, headers) = (answer.status(), answer.headers().clone());
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = if media.starts_with("text/event-stream") {
        shared.record(number, || response(status, &headers, Value::Null));
        Body::from_stream(held(shared, number, answer.bytes_stream()))
    } else {
        let Ok(bytes) = answer.bytes().await else { return refusal(StatusCode::BAD_GATEWAY) };
        shared.record(number, || response(status, &headers, kept_message(&bytes)));
        shared.answered.send_modify(|(count, last)| {
            *count += 1;
            *last = method;
        });
        Body::from(bytes)
    };
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    *answer.headers_mut() = end_to_end(&headers);
    answer
}

/// Forwards the events of a stream while the proxy is open.
fn held<E>(
    shared: Arc<Shared>,
    number: u64,
    bytes: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
) -> impl Stream<Item = Result<Bytes, E>> + Send + 'static
where
    E: Send + 'static,
{
    let open = shared.open.subscribe();
    let state = (Box::pin(bytes), open, EventLines::default(), shared);
    futures::stream::unfold(state, move |(mut bytes, mut open, mut lines, shared)| async move {
        // The sender lives in the shared state, so waiting cannot fail.
        let _ = open.wait_for(|open| *open).await;
        let next = bytes.next().await;
        match &next {
            Some(Ok(_)) if shared.recorder.is_none() => {}
            Some(Ok(chunk)) => {
                for (id, data) in lines.push(chunk) {
                    shared.record(number, || Pass::Event { id, message: kept_message(data.as_bytes()) });
                }
            }
            _ => shared.record(number, || Pass::End),
        }
        Some((next?, (bytes, open, lines, shared)))
    })
}

fn response(status: StatusCode, headers: &HeaderMap, message: Value) -> Pass {
    Pass::Response { status: status.as_u16(), headers: kept_headers(headers), message }
}

fn refusal(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer
}

/// Returns the JSON-RPC method of a body; empty without one.
fn method_of(body: &[u8]) -> String {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    message["method"].as_str().unwrap_or_default().to_owned()
}

/// Returns the end-to-end headers.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    const HOP_BY_HOP: [HeaderName; 4] =
        [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH];
    let mut headers = headers.clone();
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers
}
