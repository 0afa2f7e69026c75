//! What a connection costs in bytes of memory, by a counting allocator.

use std::{
    alloc::System,
    convert::Infallible,
    fmt::Write,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use acp_http_client::{
    AcpHttpClient, Dialect, EventId, HttpSendError, HttpSender, http, http_client_builder, reqwest,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame};
use sdk_tests::{eventually, handshake, within};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub(super) const KIB: isize = 1024;

/// How many bytes are allocated.
pub(super) fn allocated() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// An idle connection may cost so much more than an open stream of reqwest.
const IDLE: isize = 40 * KIB;

pub(super) async fn an_idle_connection_costs_little_more_than_a_bare_stream() {
    const COUNT: usize = 50;
    let (url, open) = streaming_server().await;
    // Connections of POSTs are closed, so that only the streams are left.
    let http = http_client_builder().pool_max_idle_per_host(0).build().unwrap();
    let settled = async |count: usize| {
        eventually("the other connections to close", || open.load(Ordering::SeqCst) == count).await;
        // What was dropped is freed by the tasks that owned it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    let bare = async || {
        let endpoint = format!("{url}/v1/rpc");
        http.get(endpoint).header("accept", "text/event-stream").send().await.unwrap()
    };
    let ours = async |dialect: Dialect| {
        let builder = AcpHttpClient::builder(&url).dialect(dialect).http_client(http.clone());
        let client = builder.build().unwrap();
        let request = client.request::<Value>("initialize", &json!({}));
        within("the handshake", request.into_future()).await.unwrap();
        client
    };
    // What the process allocates once is not counted.
    drop((bare().await, ours(Dialect::RPC).await));
    settled(0).await;

    let before = allocated();
    let mut streams = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        streams.push(bare().await);
    }
    settled(COUNT).await;
    let bare = (allocated() - before) / COUNT as isize;
    drop(streams);
    settled(0).await;
    for dialect in [Dialect::RPC, Dialect::AUTO] {
        let (before, name) = (allocated(), dialect.name());
        let mut clients = Vec::with_capacity(COUNT);
        for _ in 0..COUNT {
            clients.push(ours(dialect.clone()).await);
        }
        settled(COUNT).await;
        let ours = (allocated() - before) / COUNT as isize;
        eprintln!("an idle connection ({name}): {ours} bytes, a bare stream: {bare} bytes");
        assert!(ours - bare <= IDLE, "{name}: {ours} bytes, a bare stream {bare}");
        drop(clients);
        settled(0).await;
    }
}

/// What the events of other clients may cost a client in all, and what ten times as many may add.
const OTHERS: isize = 96 * KIB;
const GROWTH: isize = 16 * KIB;

pub(super) async fn the_traffic_of_others_costs_a_client_no_memory() {
    for dialect in [Dialect::RPC, Dialect::AUTO] {
        let name = dialect.name();
        let mut first = 0;
        // 1,000 clients pass too. Each handshake is an event for all of them, which takes minutes in a debug build.
        for (clients, events) in [(1, 3_000), (1, 30_000), (200, 100)] {
            let each = cost_of_others(&dialect, clients, events).await;
            eprintln!("{events} events of others ({name}, {clients} clients): {each} bytes for each client");
            assert!(each <= OTHERS, "{name}: {events} events of others cost {each} bytes");
            if events == 3_000 {
                first = each;
            }
            assert!(each <= first + GROWTH, "{name}: {first} bytes for 3,000 events, {each} for {events}");
        }
    }
}

/// How much more memory each of some clients of one endpoint has after so many events of others.
async fn cost_of_others(dialect: &Dialect, clients: usize, events: usize) -> isize {
    let endpoint = Endpoint::default();
    let mut running = Vec::with_capacity(clients);
    for _ in 0..clients {
        let builder = AcpHttpClient::builder("http://endpoint").dialect(dialect.clone());
        // As clients of a shared endpoint do: the requests of others are left to them.
        let builder = builder.http_sender(endpoint.clone()).all_agent_requests(true);
        let (builder, mut requests) = builder.agent_requests();
        let client = builder.build().unwrap();
        let ignoring = tokio::spawn(async move {
            while let Some((_, responder)) = requests.next().await {
                responder.ignore();
            }
        });
        within("the handshake", handshake(&client)).await.unwrap();
        running.push((client, ignoring));
    }
    eventually("the streams", || endpoint.0.lock().unwrap().streams.len() == clients).await;
    // The echo of an own response ends the backlog.
    for (client, _) in &running {
        within("a request", client.request::<Value>("_x/own", &json!({})).into_future()).await.unwrap();
    }
    // Every event was taken, and only the tasks of the connection run.
    let idle = || {
        let last = EventId::from(endpoint.0.lock().unwrap().events);
        let is_idle = |client: &AcpHttpClient| {
            client.last_event_id() == Some(last.clone()) && client.diagnostics().tasks == 2
        };
        running.iter().all(|(client, _)| is_idle(client))
    };
    eventually("the responses", idle).await;
    let before = allocated();
    for number in 0..events {
        endpoint.emit(|id| foreign(number, id));
        if number % 100 == 99 {
            eventually("the events", idle).await;
        }
    }
    eventually("the events", idle).await;
    let each = (allocated() - before) / clients as isize;
    for (client, ignoring) in running {
        within("the close", client.close()).await;
        ignoring.await.unwrap();
    }
    each
}

/// An event of another client: each client has its own ids.
fn foreign(number: usize, event_id: u64) -> String {
    let session = format!("session-of-another-client-{number}");
    let message = match number % 4 {
        0 => {
            json!({"jsonrpc": "2.0", "id": format!("request-{number}"), "method": "session/request_permission",
            "params": {"sessionId": session, "toolCall": {"toolCallId": "t"}, "options": []}})
        }
        1 => {
            json!({"jsonrpc": "2.0", "id": format!("response-{number}"), "result": {"stopReason": "end_turn"}})
        }
        2 => json!({"jsonrpc": "2.0", "method": "_x/note", "params": {"sessionId": session}}),
        _ => {
            json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "words"}}}})
        }
    };
    let mut text = String::new();
    write!(text, "id: {event_id}\ndata: {message}\n\n").unwrap();
    text
}

/// A shared endpoint without a network: every stream brings the same events, and echoes every response.
#[derive(Clone, Default)]
struct Endpoint(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    events: u64,
    streams: Vec<mpsc::UnboundedSender<Bytes>>,
}

impl Endpoint {
    fn emit(&self, event: impl FnOnce(u64) -> String) {
        let mut shared = self.0.lock().unwrap();
        shared.events += 1;
        let bytes = Bytes::from(event(shared.events));
        shared.streams.retain(|stream| stream.send(bytes.clone()).is_ok());
    }
}

impl HttpSender for Endpoint {
    fn send(
        &self,
        request: reqwest::Request,
    ) -> BoxFuture<'static, Result<reqwest::Response, HttpSendError>> {
        let endpoint = self.clone();
        Box::pin(async move {
            let response = http::Response::builder();
            let response = match *request.method() {
                http::Method::GET => {
                    #[expect(clippy::disallowed_methods, reason = "the test writes a known number of events")]
                    let (sender, receiver) = mpsc::unbounded_channel();
                    let mut shared = endpoint.0.lock().unwrap();
                    shared.streams.push(sender);
                    let body = reqwest::Body::wrap(Stream(receiver));
                    response.header("content-type", "text/event-stream").body(body)
                }
                http::Method::POST => {
                    let message: Value = serde_json::from_slice(&read(request)).unwrap();
                    let answer =
                        json!({"jsonrpc": "2.0", "id": message["id"], "result": {"protocolVersion": 1}});
                    endpoint.emit(|id| format!("id: {id}\ndata: {answer}\n\n"));
                    response.header("content-type", "application/json").body(answer.to_string().into())
                }
                _ => response.status(204).body(reqwest::Body::from("")),
            };
            Ok(response.unwrap().into())
        })
    }
}

/// The body of a request. It is there at once.
fn read(request: reqwest::Request) -> Vec<u8> {
    let mut body = http::Request::try_from(request).unwrap().into_body();
    let mut bytes = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
        bytes.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    bytes
}

struct Stream(mpsc::UnboundedReceiver<Bytes>);

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// A server that keeps event streams open and answers POSTs; and how many connections it has.
async fn streaming_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let open = Arc::new(AtomicUsize::new(0));
    let count = open.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let count = count.clone();
            tokio::spawn(async move {
                count.fetch_add(1, Ordering::SeqCst);
                let _ = serve(socket).await;
                count.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (url, open)
}

async fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    let mut request = Vec::new();
    let is_whole = |request: &[u8]| match request.first() {
        Some(b'P') => request.ends_with(b"}"),
        _ => request.ends_with(b"\r\n\r\n"),
    };
    while !is_whole(&request) {
        if socket.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&request).into_owned();
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    if request.starts_with(b"GET") {
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: open\n\n").await?;
        drop((request, text));
        // Until the client closes it.
        return socket.read(&mut [0]).await.map(drop);
    }
    let id = serde_json::from_str::<Value>(body).unwrap_or_default()["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": 1}}).to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    socket.write_all(format!("{head}content-length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).await
}
