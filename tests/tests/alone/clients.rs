//! What a client of the SDK costs in bytes of memory, also beside many others on one shared endpoint.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use acp_http_client::http_client_builder;
use sandbox_agent_sdk::{SandboxAgentClient, ServerKind};
use sdk_tests::{eventually, within};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

use super::memory::{KIB, allocated};

/// An idle client may cost so much more than an open stream of reqwest, however many share its endpoint.
const IDLE: isize = 60 * KIB;

/// So many sessions of other clients may cost a client so much in all.
const SESSIONS: usize = 150;
const OTHERS: isize = 64 * KIB;

/// How many clients share the endpoint. Each handshake is an event for all of them, so that 1,000 take minutes in a debug
/// build: `CLIENTS=1000` measures that many.
fn counts() -> Vec<usize> {
    let asked = std::env::var("CLIENTS").ok().and_then(|count| count.parse().ok());
    asked.map_or_else(|| vec![1, 100, 200], |count| vec![1, count])
}

pub(super) async fn an_idle_client_costs_little_more_than_a_bare_stream() {
    for count in counts() {
        let server = Arc::new(Server::default());
        let url = server.clone().start().await;
        // Connections of POSTs are closed, so that only the streams are left.
        let http = http_client_builder().pool_max_idle_per_host(0).build().unwrap();
        let bare = async || {
            let endpoint = format!("{url}/v1/rpc");
            http.get(endpoint).header("accept", "text/event-stream").send().await.unwrap()
        };
        let ours = async || {
            let options = SandboxAgentClient::builder(&url).agent("mock").server(ServerKind::Shared);
            let options = options.auto_connect(false).auto_authenticate(false).http_client(http.clone());
            let client = options.build().unwrap();
            within("the connection", client.connect()).await.unwrap();
            client
        };
        // What the process allocates once is not counted.
        drop((bare().await, ours().await));
        server.settled(0).await;

        let before = allocated();
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            streams.push(bare().await);
        }
        server.settled(count).await;
        let bare = (allocated() - before) / count as isize;
        drop(streams);
        server.settled(0).await;

        let before = allocated();
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            clients.push(ours().await);
        }
        server.settled(count).await;
        let ours = (allocated() - before) / count as isize;
        eprintln!("an idle client ({count} on one endpoint): {ours} bytes, a bare stream: {bare} bytes");
        assert!(ours - bare <= IDLE, "{count} clients: {ours} bytes each, a bare stream {bare}");

        let mut readers: Vec<_> = clients.iter().map(SandboxAgentClient::events).collect();
        let before = allocated();
        for number in 0..SESSIONS {
            (0..3).for_each(|_| server.update(number));
            // Every client has seen every update.
            for events in &mut readers {
                for _ in 0..3 {
                    within("an update", events.next()).await.unwrap();
                }
            }
        }
        server.settled(count).await;
        let others = (allocated() - before) / count as isize;
        eprintln!("{SESSIONS} sessions of others ({count} clients): {others} bytes for each client");
        assert!(others <= OTHERS, "{count} clients: the sessions of others cost each {others} bytes");
        drop(clients);
        server.settled(0).await;
    }
}

/// A shared endpoint: every response is echoed on every stream, with a number.
struct Server {
    /// How many connections there are.
    open: AtomicUsize,
    /// Guards the number and the text of the last event; held for sending.
    last: Mutex<(u64, Arc<str>)>,
    events: broadcast::Sender<Arc<str>>,
}

impl Default for Server {
    fn default() -> Self {
        Self { open: AtomicUsize::new(0), last: Mutex::default(), events: broadcast::channel(1024).0 }
    }
}

impl Server {
    async fn start(self: Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let server = self.clone();
                tokio::spawn(async move {
                    server.open.fetch_add(1, Ordering::SeqCst);
                    let _ = server.serve(socket).await;
                    server.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        url
    }

    /// Waits until so many connections are left, and what was dropped is freed by the tasks that owned it.
    async fn settled(&self, count: usize) {
        let is_settled = || self.open.load(Ordering::SeqCst) == count && self.events.is_empty();
        eventually("the other connections to close", is_settled).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    async fn serve(&self, mut socket: TcpStream) -> std::io::Result<()> {
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
        if request.starts_with(b"GET") {
            drop(request);
            return self.stream(socket).await;
        }
        let text = String::from_utf8_lossy(&request);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let id = serde_json::from_str::<Value>(body).unwrap_or_default()["id"].clone();
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": 1}}).to_string();
        self.send(&answer);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        socket.write_all(format!("{head}content-length: {}\r\n\r\n{answer}", answer.len()).as_bytes()).await
    }

    /// Sends an update of another client's session.
    fn update(&self, session: usize) {
        let content = json!({"type": "text", "text": "some words of another client's agent"});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let params = json!({"sessionId": format!("session {session}"), "update": update});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string());
    }

    fn send(&self, message: &str) {
        let mut last = self.last.lock().unwrap();
        last.0 += 1;
        last.1 = format!("id: {}\ndata: {message}\n\n", last.0).into();
        // Without a stream there is no reader to send it to.
        let _ = self.events.send(last.1.clone());
    }

    /// A stream begins with the last event, which is the echo that the client waits for if it was sent before.
    async fn stream(&self, mut socket: TcpStream) -> std::io::Result<()> {
        let (first, mut events) = {
            let last = self.last.lock().unwrap();
            (last.1.clone(), self.events.subscribe())
        };
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n: open\n\n";
        socket.write_all(format!("{head}{first}").as_bytes()).await?;
        drop(first);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Ok(event) => socket.write_all(event.as_bytes()).await?,
                    Err(_) => return Ok(()),
                },
                // Until the client closes it.
                closed = socket.readable() => {
                    closed?;
                    if socket.try_read(&mut [0]).is_ok_and(|read| read == 0) {
                        return Ok(());
                    }
                }
            }
        }
    }
}
