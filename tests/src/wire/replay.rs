//! A server that replays a capture.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Response, StatusCode},
};
use bytes::Bytes;
use futures::stream::unfold;
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::{Capture, Entry, Pass, capture::without_secrets};

/// The size limit of a request.
const REQUEST_BYTES: usize = 32 << 20;

/// Replays a capture in its order: a message is sent only after all earlier messages were received or sent.
#[derive(Debug)]
pub struct Replay {
    address: SocketAddr,
    tape: Arc<Tape>,
    _serving: JoinSet<()>,
}

#[derive(Debug)]
struct Tape {
    entries: Vec<Entry>,
    /// Guards the completed entries; held for a lookup or a change.
    done: Mutex<Done>,
    /// The index of the first entry that is not completed.
    position: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Done {
    marks: Vec<bool>,
    /// Maps the request ids of the recorded client to those of this client.
    ids: HashMap<String, Value>,
    /// Requests that are not in the recording.
    unexpected: Vec<String>,
}

impl Replay {
    /// Starts the server.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn start(capture: &Capture) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let entries = capture.entries.clone();
        let done = Done { marks: vec![false; entries.len()], ..Done::default() };
        let tape = Arc::new(Tape { entries, done: Mutex::new(done), position: watch::Sender::new(0) });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&tape));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("the replay is served") });
        Self { address, tape, _serving: serving }
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requests that are not in the recording.
    pub fn unexpected(&self) -> Vec<String> {
        self.tape.done().unexpected.clone()
    }

    /// Returns how many entries were replayed, and the total number.
    pub fn progress(&self) -> (usize, usize) {
        (*self.tape.position.borrow(), self.tape.entries.len())
    }
}

impl Tape {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a request in the recording and returns its number there.
    fn received(&self, key: &str, message: &Value) -> Option<u64> {
        let mut done = self.done();
        let found = self.entries.iter().enumerate().find(|(index, entry)| {
            !done.marks[*index] && matches!(&entry.pass, Pass::Request { verb, path, message, .. } if self::key(verb, path, message) == key)
        });
        let Some((index, entry)) = found else {
            done.unexpected.push(key.to_owned());
            return None;
        };
        done.marks[index] = true;
        if let Pass::Request { message: recorded, .. } = &entry.pass
            && let (Some(was), Some(is)) = (recorded.get("id"), message.get("id"))
        {
            done.ids.insert(was.to_string(), is.clone());
        }
        self.advance(&done);
        Some(entry.request)
    }

    /// Returns the next message that the server sent for a request.
    fn next_of(&self, request: u64, after: usize) -> Option<(usize, &Entry)> {
        let sent = |entry: &Entry| entry.request == request && !matches!(entry.pass, Pass::Request { .. });
        self.entries.iter().enumerate().skip(after).find(|(_, entry)| sent(entry))
    }

    async fn turn_of(&self, index: usize) {
        // `self` holds the sender, so waiting cannot fail.
        let _ = self.position.subscribe().wait_for(|position| *position >= index).await;
    }

    fn sent(&self, index: usize) {
        let mut done = self.done();
        done.marks[index] = true;
        self.advance(&done);
    }

    fn advance(&self, done: &Done) {
        let position = done.marks.iter().position(|mark| !mark).unwrap_or(done.marks.len());
        self.position.send_replace(position);
    }

    /// Returns the text of a message to send. A message that was not JSON becomes its original text.
    fn text_of(&self, message: &Value) -> String {
        match message.as_object().filter(|members| members.len() == 1).and_then(|members| members.get("text"))
        {
            Some(Value::String(text)) => text.clone(),
            _ => self.addressed(message).to_string(),
        }
    }

    /// Replaces the recorded request ids in a message by those of this client.
    fn addressed(&self, message: &Value) -> Value {
        let mut message = message.clone();
        let is_answer = message.get("method").is_none();
        if let Some(id) = message.get_mut("id").filter(|_| is_answer)
            && let Some(known) = self.done().ids.get(&id.to_string())
        {
            *id = known.clone();
        }
        message
    }
}

/// Completes the remaining entries of a request when its client disconnects, so that no other request waits for them.
struct Leave(Arc<Tape>, u64);

impl Drop for Leave {
    fn drop(&mut self) {
        let mut done = self.0.done();
        for (index, entry) in self.0.entries.iter().enumerate() {
            done.marks[index] |= entry.request == self.1;
        }
        self.0.advance(&done);
    }
}

/// Returns the key that identifies a request.
fn key(verb: &str, path: &str, message: &Value) -> String {
    let kind = match (message.get("method").and_then(Value::as_str), message.get("id")) {
        (Some(method), _) => method,
        (None, Some(_)) => "answer",
        (None, None) => "",
    };
    format!("{verb} {} {kind}", without_secrets(path))
}

async fn answer(State(tape): State<Arc<Tape>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, REQUEST_BYTES).await.unwrap_or_default();
    let message = serde_json::from_slice(&body).unwrap_or_default();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let Some(number) = tape.received(&key(parts.method.as_str(), path, &message), &message) else {
        return Response::builder()
            .status(StatusCode::SERVICE_UNAVAILABLE)
            .body(Body::empty())
            .expect("an answer");
    };
    let leave = Leave(Arc::clone(&tape), number);
    let Some((index, Entry { pass: Pass::Response { status, headers, message }, .. })) =
        tape.next_of(number, 0)
    else {
        // The recording has no response.
        return std::future::pending().await;
    };
    tape.turn_of(index).await;
    let events = headers
        .get("content-type")
        .is_some_and(|media| media.as_str().is_some_and(|media| media.starts_with("text/event-stream")));
    let body = match message {
        _ if events => Body::from_stream(stream(Arc::clone(&tape), number, index + 1, leave)),
        Value::Null => Body::empty(),
        message => Body::from(tape.text_of(message)),
    };
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(*status).expect("a status that was sent");
    for (name, value) in headers {
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
        if let (Ok(name), Some(value)) = (HeaderName::try_from(name.as_str()), value) {
            answer.headers_mut().insert(name, value);
        }
    }
    tape.sent(index);
    answer
}

/// Streams the events of one request.
fn stream(
    tape: Arc<Tape>,
    number: u64,
    after: usize,
    leave: Leave,
) -> impl futures::Stream<Item = Result<Bytes, std::convert::Infallible>> + Send + 'static {
    unfold((tape, after, leave), move |(tape, after, leave)| async move {
        let Some((index, entry)) = tape.next_of(number, after) else {
            // The recording ended before the stream did.
            return std::future::pending().await;
        };
        tape.turn_of(index).await;
        let event = match &entry.pass {
            Pass::Event { id, message } => {
                let data = tape.text_of(message);
                let id = id.as_ref().map(|id| format!("id: {id}\n")).unwrap_or_default();
                Bytes::from(format!("event: message\n{id}data: {data}\n\n"))
            }
            _ => {
                tape.sent(index);
                return None;
            }
        };
        tape.sent(index);
        Some((Ok(event), (tape, index + 1, leave)))
    })
}
