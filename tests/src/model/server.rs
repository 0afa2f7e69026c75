//! The model's server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, Response, StatusCode, header::CONTENT_TYPE},
};
use bytes::Bytes;
use futures::stream::unfold;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    anthropic::Anthropic,
    chat::Chat,
    gemini::Gemini,
    reply::{Reply, Step},
    request::{Api, ModelRequest},
    responses::Responses,
    script::reply,
    wire::Encoder,
};

/// How many tokens each request counts as.
pub const INPUT_TOKENS: u64 = 1_200;

/// How many tokens each response counts as.
pub const OUTPUT_TOKENS: u64 = 34;

/// The largest request that is read.
const REQUEST_BYTES: usize = 64 << 20;

/// A model provider on loopback. It ends with this value.
///
/// What it answers is in the last text of the user: `say N` (N chunks `0 `, `1 ` …), `think N` (N chunks of
/// reasoning), `tool COMMAND`, `write PATH`, `read PATH`, `edit PATH`, `call TOOL JSON`, `slow N` (a chunk every 100 ms), `error STATUS`,
/// `repeat all` (the user's earlier texts), and an echo of anything else.
#[derive(Debug)]
pub struct ScriptedModel {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

/// How many responses are being streamed.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    all: usize,
    /// Those of turns, without the requests that agents make for themselves.
    turns: usize,
}

#[derive(Debug)]
struct Shared {
    /// The only key that is accepted, if any is required.
    key: Option<String>,
    /// Guards the requests so far; held for a push or a copy.
    requests: Mutex<Vec<ModelRequest>>,
    /// Requests to paths that are not served, by method and path.
    unknown: Mutex<Vec<String>>,
    arrived: Notify,
    /// Numbers responses, so that their ids differ.
    responses: AtomicU64,
    /// Responses that are being streamed now.
    streaming: watch::Sender<Open>,
}

impl ScriptedModel {
    /// Starts a model that accepts any key.
    pub async fn start() -> Self {
        Self::listen(None).await
    }

    /// Starts a model that accepts this key alone, and refuses all others with 401.
    pub async fn with_key(key: &str) -> Self {
        Self::listen(Some(key.to_owned())).await
    }

    async fn listen(key: Option<String>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            key,
            requests: Mutex::default(),
            unknown: Mutex::default(),
            arrived: Notify::new(),
            responses: AtomicU64::new(1),
            streaming: watch::Sender::default(),
        });
        let routes = Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            axum::serve(listener, routes).await.expect("the model serves");
        });
        Self { address, shared, _serving: serving }
    }

    /// `http://ADDRESS:PORT`, without a slash at the end. The APIs are below `/v1` and `/v1beta`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far, oldest first.
    pub fn requests(&self) -> Vec<ModelRequest> {
        lock(&self.shared.requests).clone()
    }

    /// The requests of turns so far, oldest first, without those that agents make for themselves.
    pub fn turns(&self) -> Vec<ModelRequest> {
        self.requests().into_iter().filter(|request| !request.is_side_request()).collect()
    }

    /// Requests to paths that are not served, by method and path.
    pub fn unknown(&self) -> Vec<String> {
        lock(&self.shared.unknown).clone()
    }

    /// Waits for the first request of a turn with this prompt.
    pub async fn asked(&self, prompt: &str) -> ModelRequest {
        loop {
            let arrived = self.shared.arrived.notified();
            let mut requests = self.turns().into_iter();
            if let Some(request) = requests.find(|request| request.prompt.contains(prompt)) {
                return request;
            }
            arrived.await;
        }
    }

    /// Waits until no response is being streamed: until agents have read or given up what they asked for.
    pub async fn idle(&self) {
        let mut streaming = self.shared.streaming.subscribe();
        // The sender lives as long as this value.
        let _ = streaming.wait_for(|open| open.all == 0).await;
    }

    /// Waits until the responses of this many turns are being streamed at the same time.
    pub async fn serves_turns(&self, count: usize) {
        let mut streaming = self.shared.streaming.subscribe();
        // The sender lives as long as this value.
        let _ = streaming.wait_for(|open| open.turns >= count).await;
    }
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let bytes = to_bytes(body, REQUEST_BYTES).await.unwrap_or_default();
    if parts.headers.contains_key("upgrade") {
        // An agent that tries a web socket first then uses HTTP.
        return json_response(StatusCode::UPGRADE_REQUIRED, &json!({ "error": { "message": "only HTTP" } }));
    }
    if path == "/" {
        // Some agents probe the address first.
        return json_response(StatusCode::OK, &json!({}));
    }
    if path.ends_with("/models") {
        return json_response(StatusCode::OK, &json!({ "object": "list", "data": [], "models": [] }));
    }
    if path.ends_with("/count_tokens") || path.ends_with(":countTokens") {
        let counted = json!({ "input_tokens": INPUT_TOKENS, "totalTokens": INPUT_TOKENS });
        return json_response(StatusCode::OK, &counted);
    }
    let Some(api) = api(&path) else {
        lock(&shared.unknown).push(format!("{} {path}", parts.method));
        return json_response(StatusCode::NOT_FOUND, &json!({ "error": { "message": "not served" } }));
    };
    let Ok(body) = serde_json::from_slice::<Value>(&bytes) else {
        return failure(api, 400, "the body is not JSON");
    };
    let stream = match api {
        Api::Gemini => path.ends_with(":streamGenerateContent"),
        _ => body["stream"] == true,
    };
    let request = ModelRequest::new(api, &path, stream, key(&parts.headers), body);
    let refused = shared.key.is_some() && request.key != shared.key;
    let reply = reply(&request);
    let encoder = encoder(&request, shared.responses.fetch_add(1, Ordering::Relaxed));
    let is_turn = !request.is_side_request();
    lock(&shared.requests).push(request);
    shared.arrived.notify_waiters();
    match reply {
        _ if refused => failure(api, 401, "the key is wrong"),
        Reply::Failure(status) => failure(api, status, &format!("scripted failure {status}")),
        Reply::Steps(steps) if stream => streamed(encoder, steps, Streaming::new(&shared, is_turn)),
        Reply::Steps(steps) => whole(encoder, &steps).await,
    }
}

fn api(path: &str) -> Option<Api> {
    if path.ends_with("/chat/completions") {
        Some(Api::OpenAiChat)
    } else if path.ends_with("/responses") {
        Some(Api::OpenAiResponses)
    } else if path.ends_with("/messages") {
        Some(Api::Anthropic)
    } else if path.ends_with(":generateContent") || path.ends_with(":streamGenerateContent") {
        Some(Api::Gemini)
    } else {
        None
    }
}

fn key(headers: &HeaderMap) -> Option<String> {
    let value = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = value("authorization").map(|value| value.trim_start_matches("Bearer "));
    value("x-api-key").or(value("x-goog-api-key")).or(bearer).map(str::to_owned)
}

fn encoder(request: &ModelRequest, number: u64) -> Box<dyn Encoder> {
    let id = format!("scripted-{number}");
    let model = request.body["model"].as_str().unwrap_or("scripted").to_owned();
    match request.api {
        Api::OpenAiChat => Box::new(Chat { id, model, calls: 0 }),
        Api::OpenAiResponses => {
            Box::new(Responses { id, model, sequence: 0, output: Vec::new(), open: None })
        }
        Api::Anthropic => Box::new(Anthropic { id, model, blocks: 0, open: None, called: false }),
        Api::Gemini => Box::new(Gemini { model }),
    }
}

/// Counts a response as being streamed for as long as it lives.
struct Streaming {
    shared: Arc<Shared>,
    is_turn: bool,
}

impl Streaming {
    fn new(shared: &Arc<Shared>, is_turn: bool) -> Self {
        shared.streaming.send_modify(|open| {
            open.all += 1;
            open.turns += usize::from(is_turn);
        });
        Self { shared: Arc::clone(shared), is_turn }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.shared.streaming.send_modify(|open| {
            open.all -= 1;
            open.turns -= usize::from(self.is_turn);
        });
    }
}

fn streamed(encoder: Box<dyn Encoder>, steps: Vec<Step>, streaming: Streaming) -> Response<Body> {
    enum At {
        Begin,
        Step(usize),
        Over,
    }
    let state = (encoder, steps, At::Begin, streaming);
    let events = unfold(state, |(mut encoder, steps, at, streaming)| async move {
        let (text, next) = match at {
            At::Begin => (encoder.begin(), At::Step(0)),
            At::Step(index) => match steps.get(index) {
                Some(step) => {
                    if let Step::Pause(pause) = step {
                        tokio::time::sleep(*pause).await;
                    }
                    (encoder.step(step), At::Step(index + 1))
                }
                None => (encoder.end(), At::Over),
            },
            At::Over => return None,
        };
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), (encoder, steps, next, streaming)))
    });
    let response = Response::builder().header(CONTENT_TYPE, "text/event-stream");
    response.body(Body::from_stream(events)).expect("a response")
}

async fn whole(mut encoder: Box<dyn Encoder>, steps: &[Step]) -> Response<Body> {
    for step in steps {
        if let Step::Pause(pause) = step {
            tokio::time::sleep(*pause).await;
        }
    }
    json_response(StatusCode::OK, &encoder.whole(steps))
}

fn failure(api: Api, status: u16, message: &str) -> Response<Body> {
    let kind = match status {
        401 => "authentication_error",
        429 => "rate_limit_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    };
    let body = match api {
        Api::OpenAiChat | Api::OpenAiResponses => {
            json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
        }
        Api::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
        Api::Gemini => {
            let name = match status {
                401 => "UNAUTHENTICATED",
                429 => "RESOURCE_EXHAUSTED",
                500.. => "INTERNAL",
                _ => "INVALID_ARGUMENT",
            };
            json!({ "error": { "code": status, "message": message, "status": name } })
        }
    };
    json_response(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body)
}

fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    response.body(Body::from(body.to_string())).expect("a response")
}

/// What is behind these locks is whole between any two uses.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
