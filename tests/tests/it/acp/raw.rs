//! A server that is written byte by byte: what it sends, and what it does with a request, are up to the test.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

/// A request as it was received.
#[derive(Debug, Clone)]
pub(super) struct Received {
    pub(super) method: String,
    /// The lines of the head behind the first one.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    /// The body as JSON, `null` if it is none.
    pub(super) body: Value,
}

impl Received {
    pub(super) fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    /// A whole response: status, headers, body.
    Response(u16, Vec<(String, String)>, String),
    /// The event stream.
    Stream,
    /// No response, and the connection stays open.
    Hang,
    /// The connection is closed after so many bytes of the body were read.
    CloseAfter(usize),
    /// Nothing more is read after so many bytes of the body, and the connection stays open.
    StopAfter(usize),
}

impl Reply {
    pub(super) fn status(status: u16) -> Self {
        Self::Response(status, Vec::new(), String::new())
    }

    /// A response to a JSON-RPC request.
    pub(super) fn result(request: &Value, result: Value) -> Self {
        let body = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
        Self::Response(200, vec![("content-type".into(), "application/json".into())], body.to_string())
    }

    pub(super) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        if let Self::Response(_, headers, _) = &mut self {
            headers.push((name.to_owned(), value.into()));
        }
        self
    }
}

type Behaviour = Arc<dyn Fn(&str, &Value) -> Reply + Send + Sync>;

#[derive(Default)]
struct State {
    /// What the event stream consists of so far.
    stream: Mutex<Vec<u8>>,
    grown: Notify,
    received: Mutex<Vec<Received>>,
    open: AtomicUsize,
    most: AtomicUsize,
    stopped: AtomicUsize,
}

/// A server on its own port.
pub(super) struct RawServer {
    pub(super) url: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl RawServer {
    /// Starts it. The behaviour is a function of the HTTP method and the body.
    pub(super) async fn start(behaviour: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let (shared, behaviour): (_, Behaviour) = (state.clone(), Arc::new(behaviour));
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (state, behaviour) = (shared.clone(), behaviour.clone());
                tokio::spawn(async move {
                    let open = state.open.fetch_add(1, Ordering::AcqRel) + 1;
                    state.most.fetch_max(open, Ordering::AcqRel);
                    let _ = serve(&state, &behaviour, socket).await;
                    state.open.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        Self { url, state, task }
    }

    /// One that responds to every request with an empty object and to everything else with 202.
    pub(super) async fn obliging() -> Self {
        Self::start(|method, body| match method {
            "GET" => Reply::Stream,
            "POST" if body["method"].is_string() && !body["id"].is_null() => {
                Reply::result(body, result(body))
            }
            _ => Reply::status(202),
        })
        .await
    }

    /// Sends these bytes on the event stream, and on any that is opened later.
    pub(super) fn send(&self, bytes: impl AsRef<[u8]>) {
        self.state.stream.lock().unwrap().extend_from_slice(bytes.as_ref());
        self.state.grown.notify_waiters();
    }

    /// Sends a message as an event without an id.
    pub(super) fn event(&self, message: &Value) {
        self.send(format!("data: {message}\n\n"));
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// How many messages are not read to their end.
    pub(super) fn stopped(&self) -> usize {
        self.state.stopped.load(Ordering::Acquire)
    }

    /// How many connections were open at once.
    pub(super) fn most_connections(&self) -> usize {
        self.state.most.load(Ordering::Acquire)
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A result that fits the request.
pub(super) fn result(body: &Value) -> Value {
    match body["method"].as_str() {
        Some("initialize") => json!({"protocolVersion": 1, "agentCapabilities": {}}),
        Some("session/new") => json!({"sessionId": "s"}),
        Some("session/prompt") => json!({"stopReason": "end_turn"}),
        _ => json!({}),
    }
}

async fn serve(state: &State, behaviour: &Behaviour, socket: TcpStream) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let head = read_head(&mut socket).await?;
        let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let method = String::from_utf8_lossy(lines.next().unwrap_or_default());
        let method = method.split(' ').next().unwrap_or_default().to_owned();
        let headers: Vec<_> = lines
            .filter_map(|line| {
                let colon = line.iter().position(|byte| *byte == b':')?;
                let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
                Some((name, line[colon + 1..].trim_ascii().to_vec()))
            })
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.map_or(0, |(_, value)| String::from_utf8_lossy(value).parse().unwrap());
        // A body that is not read to its end is not known when the behaviour is chosen.
        let reply = behaviour(&method, &Value::Null);
        if let Reply::CloseAfter(limit) | Reply::StopAfter(limit) = reply
            && length > limit
        {
            let mut part = vec![0; limit];
            socket.read_exact(&mut part).await?;
            if matches!(reply, Reply::StopAfter(_)) {
                state.stopped.fetch_add(1, Ordering::AcqRel);
                std::future::pending::<()>().await;
            }
            return Ok(());
        }
        let mut body = vec![0; length];
        socket.read_exact(&mut body).await?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let reply = behaviour(&method, &body);
        state.received.lock().unwrap().push(Received { method, headers, body });
        match reply {
            Reply::Response(status, headers, body) => respond(&mut socket, status, &headers, &body).await?,
            Reply::Stream => return stream(state, &mut socket).await,
            Reply::Hang => {
                let mut byte = [0];
                while socket.read(&mut byte).await? > 0 {}
                return Ok(());
            }
            Reply::CloseAfter(_) | Reply::StopAfter(_) => respond(&mut socket, 202, &[], "").await?,
        }
    }
}

async fn read_head(socket: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    Ok(head)
}

async fn respond(
    socket: &mut BufReader<TcpStream>,
    status: u16,
    headers: &[(String, String)],
    body: &str,
) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body.as_bytes()).await?;
    socket.flush().await
}

async fn stream(state: &State, socket: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    socket
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        .await?;
    let mut sent = 0;
    loop {
        let grown = state.grown.notified();
        tokio::pin!(grown);
        grown.as_mut().enable();
        let part = state.stream.lock().unwrap()[sent..].to_vec();
        sent += part.len();
        socket.write_all(&part).await?;
        socket.flush().await?;
        if part.is_empty() {
            grown.await;
        }
    }
}
