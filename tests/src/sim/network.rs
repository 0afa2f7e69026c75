//! A model of the network between the client and the server.
#![allow(clippy::disallowed_methods, reason = "a run is bounded, and so is what its network holds")]

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use acp_http_client::{HttpSendError, HttpSender};
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http_body::{Body, Frame};
use reqwest::{Method, Request, Response};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant},
};

use super::{
    fate::{Delivery, Fate},
    ledger::StreamKey,
    plan::Model,
    random::Random,
    server::{Cursor, Handled, Headers, Next, Reply, Server},
    world::World,
};

/// The header that names the program which sent a request, where there are several.
pub(super) const PROGRAM: &str = "x-program";
/// How often a server sends a comment on a stream without events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a stream that stalls is silent before it ends.
const STALL: Duration = Duration::from_secs(120);
/// How long a connection hangs before it breaks.
const HANG: Duration = Duration::from_secs(90);

/// Takes the client's HTTP requests to the model server.
#[derive(Debug, Clone)]
pub(super) struct Network {
    world: Arc<World>,
    server: Arc<Server>,
}

impl Network {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { world: server.world.clone(), server }
    }

    async fn post(self, request: Request) -> Result<Response, HttpSendError> {
        let headers = headers(&request);
        let http: http::Request<reqwest::Body> = request.try_into().map_err(|_| lost())?;
        if !self.world.is_over() && self.world.random("upload").per_mille(self.world.plan.faults.post / 5) {
            self.world.note(|| "network: an upload is cut".to_owned());
            self.world.disturb();
            return Err(lost());
        }
        let bytes = Upload::read(&mut http.into_body());
        let message = bytes.as_ref().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
        let Some(message) = message else { return Err(lost()) };
        let label = label(&message);
        let delivery = Delivery::draw(&self.world, &label, self.world.plan.echo);
        self.world.note(|| {
            format!("network: {label}: {:?}, out {:?}, back {:?}", delivery.fate, delivery.out, delivery.back)
        });
        let Delivery { fate, out, back, .. } = delivery;
        self.check_cancels(&message, fate);
        if !self.server.is_up() || fate == Fate::Refused {
            return Err(not_sent());
        }
        match fate {
            Fate::LostBefore => {
                tokio::time::sleep(out).await;
                return Err(lost());
            }
            Fate::Status(status) => {
                tokio::time::sleep(out).await;
                return Ok(plain(status, delivery.place));
            }
            _ => {}
        }
        let (sender, receiver) = oneshot::channel();
        // The message is on its way, whether the client still waits or not.
        let (server, world) = (self.server.clone(), self.world.clone());
        let headers = Headers { accept: fate == Fate::Accepted, ..headers };
        tokio::spawn(async move {
            tokio::time::sleep(out).await;
            if !server.is_up() {
                return;
            }
            let reply = match server.handle(&message, &headers) {
                Handled::Now(reply) => Some(reply),
                Handled::Later(reply) => reply.await.ok(),
            };
            world.note(|| {
                format!("network: {label} is answered: {:?}", reply.as_ref().map(|reply| reply.status))
            });
            let _ = sender.send(reply);
        });
        match fate {
            Fate::LostAfter => {
                tokio::time::sleep(out + back).await;
                Err(lost())
            }
            Fate::Hangs => {
                tokio::time::sleep(HANG).await;
                self.world.disturb();
                Err(lost())
            }
            Fate::GaveUp(status) => {
                tokio::time::sleep(out + back).await;
                Ok(plain(status, delivery.place))
            }
            _ => {
                let reply = receiver.await.ok().flatten().ok_or_else(lost)?;
                tokio::time::sleep(back).await;
                Ok(respond(reply, (fate == Fate::CutBody).then_some(delivery.place)))
            }
        }
    }

    /// A prompt is not sent after it was cancelled or dropped. Takes note of cancels that are lost.
    fn check_cancels(&self, message: &Value, fate: Fate) {
        let mut ledger = self.world.ledger();
        match message["method"].as_str() {
            Some("session/prompt") if self.world.plan.memory.is_none() => {
                let tag = message["params"]["prompt"][0]["text"].as_str().unwrap_or_default();
                let cancelled = ledger.turns.get(tag).is_some_and(|turn| turn.cancelled);
                drop(ledger);
                if cancelled {
                    self.world.fail(format!("{tag} was sent after it was cancelled"));
                }
            }
            Some("session/cancel") if fate != Fate::Arrives => {
                ledger.lost_cancels.extend(message["params"]["sessionId"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    async fn get(self, request: Request) -> Result<Response, HttpSendError> {
        let headers = headers(&request);
        let text =
            |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (last_event_id, stream) = (text("last-event-id"), text("acp-session-id"));
        let name = stream.clone().unwrap_or_else(|| "connection".to_owned());
        let mut random = self.world.random(&format!("get {name}"));
        let silence = self.world.silence();
        tokio::time::sleep(random.millis(self.world.plan.latency)).await;
        if !self.world.is_over() && random.per_mille(self.world.plan.faults.open) {
            match random.below(5) {
                0 => return Ok(plain(503, 0)),
                1 => return Err(not_sent()),
                2 => {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    return Err(lost());
                }
                3 => return Ok(plain(502, 0)),
                _ => tokio::time::sleep(random.millis(5_000)).await,
            }
        }
        let repeats = !self.world.is_over() && random.per_mille(self.world.plan.faults.repeat);
        let repeat = if repeats { random.between(1, 5) } else { 0 };
        drop(silence);
        let cursor = self.server.open(stream, last_event_id.as_deref(), &headers, repeat);
        self.world.note(|| {
            let outcome = cursor.as_ref().map(|_| "open").map_err(|status| *status);
            format!("network: stream {name} behind {last_event_id:?}: {outcome:?}")
        });
        let cursor = match cursor {
            Ok(cursor) => cursor,
            Err(0) => return Err(not_sent()),
            Err(status) => return Ok(plain(status, 0)),
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let network = self.clone();
        tokio::spawn(Pump { network, cursor, sender, random, name }.run());
        let response = http::Response::builder()
            .status(200)
            .header("content-type", "text/event-stream")
            .body(reqwest::Body::wrap(Download(receiver)));
        response.map(Response::from).map_err(|_| lost())
    }
}

impl HttpSender for Network {
    fn send(&self, request: Request) -> BoxFuture<'static, Result<Response, HttpSendError>> {
        let network = self.clone();
        match *request.method() {
            Method::GET => Box::pin(network.get(request)),
            Method::POST => Box::pin(network.post(request)),
            _ => Box::pin(async move { Ok(plain(network.server.delete(), 0)) }),
        }
    }
}

/// Brings the events of a stream to the client until something breaks.
struct Pump {
    network: Network,
    cursor: Cursor,
    sender: mpsc::UnboundedSender<io::Result<Bytes>>,
    random: Random,
    name: String,
}

impl Pump {
    async fn run(mut self) {
        let changes = self.network.server.changes();
        let mut swapped = None;
        let mut last_sent = Instant::now();
        while !self.sender.is_closed() {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            let next = match swapped.take() {
                Some(event) => event,
                None => self.network.server.next(&mut self.cursor),
            };
            match next {
                Next::Gone => break,
                Next::Nothing => {
                    let woken = async {
                        tokio::select! {
                            biased;
                            () = self.sender.closed() => {}
                            () = changed => {}
                        }
                    };
                    if tokio::time::timeout_at(last_sent + KEEP_ALIVE, woken).await.is_err() {
                        last_sent = Instant::now();
                        let _ = self.sender.send(Ok(Bytes::from_static(b": \n\n")));
                    }
                }
                Next::Event { index, bytes } => {
                    last_sent = Instant::now();
                    if self.swaps()
                        && let next @ Next::Event { .. } = self.network.server.next(&mut self.cursor)
                    {
                        swapped = Some(Next::Event { index, bytes });
                        let Next::Event { index, bytes } = next else { break };
                        self.network.world.note(|| format!("network: u{index} overtakes its neighbour"));
                        self.network.world.disturb();
                        if !self.event(index, &bytes).await {
                            break;
                        }
                        continue;
                    }
                    if !self.event(index, &bytes).await {
                        break;
                    }
                }
            }
        }
        // A server detects after a while that the reader has disconnected.
        let late = !self.network.world.is_over() && self.random.per_mille(200);
        let delay = if late { self.random.millis(3_000) } else { Duration::ZERO };
        let Self { network, cursor, sender, .. } = self;
        drop(sender);
        tokio::time::sleep(delay).await;
        network.server.leave(&cursor);
    }

    /// Some released servers number two producers independently.
    fn swaps(&mut self) -> bool {
        let plan = &self.network.world.plan;
        plan.model == Model::Released
            && self.network.server.has_begun(&self.cursor)
            && !self.network.world.is_over()
            && self.random.per_mille(plan.faults.swap)
    }

    /// Brings one event; whether the stream is still whole.
    async fn event(&mut self, index: usize, bytes: &Bytes) -> bool {
        let (world, random) = (&self.network.world, &mut self.random);
        let faults = &world.plan.faults;
        let mut latency =
            if random.per_mille(500) { Duration::ZERO } else { random.millis(world.plan.latency) };
        let disturbed = !world.is_over();
        if disturbed && random.per_mille(faults.slow_event) {
            latency += random.millis(6_000);
        }
        if !latency.is_zero() {
            let _silence = (latency > Duration::from_secs(1)).then(|| world.silence());
            tokio::time::sleep(latency).await;
        }
        if disturbed && random.per_mille(faults.stall) {
            world.note(|| format!("network: stream {} stalls before u{index}", self.name));
            let _silence = world.silence();
            let _ = tokio::time::timeout(STALL, self.sender.closed()).await;
            return false;
        }
        if disturbed && random.per_mille(faults.cut) {
            let place = random.index(bytes.len() + 1);
            world.note(|| format!("network: stream {} is cut after {place} bytes of u{index}", self.name));
            world.disturb();
            if place == bytes.len() {
                world.bring(index);
            }
            let _ = self.sender.send(Ok(bytes.slice(..place)));
            if random.per_mille(500) {
                let _ = self.sender.send(Err(broken()));
            }
            return false;
        }
        world.bring(index);
        if random.per_mille(100) {
            let place = random.index(bytes.len());
            let _ = self.sender.send(Ok(bytes.slice(..place)));
            tokio::task::yield_now().await;
            self.sender.send(Ok(bytes.slice(place..))).is_ok()
        } else {
            self.sender.send(Ok(bytes.clone())).is_ok()
        }
    }
}

/// The body of a response, as it comes in.
struct Download(mpsc::UnboundedReceiver<io::Result<Bytes>>);

impl Body for Download {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }
}

/// Reads request bodies, which are in memory.
struct Upload;

impl Upload {
    fn read(body: &mut reqwest::Body) -> Option<Bytes> {
        let mut bytes = BytesMut::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            match Pin::new(&mut *body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => bytes.extend_from_slice(&frame.into_data().ok()?),
                Poll::Ready(None) => return Some(bytes.freeze()),
                Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
            }
        }
    }
}

fn headers(request: &Request) -> Headers {
    let names = ["acp-connection-id", "x-acp-connection-id"];
    let connection = names.iter().find_map(|name| request.headers().get(*name)?.to_str().ok());
    let bootstrap = request.url().query().is_some();
    let program = request.headers().get(PROGRAM).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Headers { connection: connection.map(str::to_owned), bootstrap, program, accept: false }
}

/// What a message is, without the ids that differ from run to run.
fn label(message: &Value) -> String {
    let params = &message["params"];
    let session = params["sessionId"].as_str().unwrap_or_default();
    match message["method"].as_str() {
        Some("session/prompt") => {
            format!("prompt {}", params["prompt"][0]["text"].as_str().unwrap_or_default())
        }
        Some("session/set_mode") => format!("set_mode {}", params["modeId"].as_str().unwrap_or_default()),
        Some(method) => format!("{method} {session}"),
        None => format!("answer {}", message["id"]),
    }
}

fn respond(reply: Reply, cut: Option<u64>) -> Response {
    let mut builder = http::Response::builder().status(reply.status);
    if let Some(connection) = reply.connection {
        // Either name will do: the client takes the one of its dialect.
        builder =
            builder.header("acp-connection-id", connection.clone()).header("x-acp-connection-id", connection);
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    if let Some(body) = reply.body {
        builder = builder.header("content-type", "application/json");
        let bytes = Bytes::from(body);
        match cut {
            Some(place) => {
                let place = usize::try_from(place).unwrap_or(0) % bytes.len();
                let _ = sender.send(Ok(bytes.slice(..place)));
                let _ = sender.send(Err(broken()));
            }
            None => drop(sender.send(Ok(bytes))),
        }
    }
    Response::from(builder.body(reqwest::Body::wrap(Download(receiver))).unwrap())
}

/// A response without a message, from a proxy.
fn plain(status: u16, random: u64) -> Response {
    let mut builder = http::Response::builder().status(status);
    if matches!(status, 429 | 503) && random % 2 == 1 {
        builder = builder.header("retry-after", (random % 7).to_string());
    }
    Response::from(builder.body(reqwest::Body::from("")).unwrap())
}

fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

fn lost() -> HttpSendError {
    HttpSendError::Lost(Arc::new(broken()))
}

fn not_sent() -> HttpSendError {
    HttpSendError::NotSent(Arc::new(io::Error::from(io::ErrorKind::ConnectionRefused)))
}

/// The stream that an event came from, as the ledger names it.
pub(super) fn stream_key(source: &acp_http_client::EventSource) -> StreamKey {
    match source {
        acp_http_client::EventSource::Session(session) => Some(session.to_string()),
        _ => None,
    }
}
