//! A minimal server on a separate thread.

use std::{
    fmt::Write,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

/// Starts it and returns its URL. A prompt streams the update this many times to every open stream. Every response is
/// echoed on the streams, except below [`silent`].
pub(crate) fn start(count: usize, update: &Value) -> String {
    let params = json!({"sessionId": "s-1", "update": update});
    let update = json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string();
    let (url, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            url.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
            let log = Log { last: Mutex::default(), streams: broadcast::channel(16).0 };
            let flood = Arc::new(Flood { update, count, log });
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                tokio::spawn(serve(socket, flood.clone()));
            }
        });
    });
    started.recv().unwrap()
}

/// The URL of the same server without echoes.
#[allow(dead_code, reason = "one of the two benchmarks uses it")]
pub(crate) fn silent(url: &str) -> String {
    format!("{url}/silent")
}

/// The update that is streamed for a prompt: a chunk of the agent's message.
pub(crate) fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

/// What a prompt is answered with.
struct Flood {
    update: String,
    count: usize,
    log: Log,
}

/// The events of the server.
struct Log {
    /// Guards the number and the text of the last event; held for sending.
    last: Mutex<(usize, Arc<str>)>,
    streams: broadcast::Sender<Arc<str>>,
}

impl Log {
    /// Numbers events and sends them to every stream. A stream that opens later begins with the last of them.
    fn send<'a>(&self, events: impl Iterator<Item = &'a str>) {
        let mut last = self.last.lock().unwrap();
        let mut text = String::new();
        let mut begin = 0;
        for event in events {
            last.0 += 1;
            begin = text.len();
            write!(text, "event: message\nid: {}\ndata: {event}\n\n", last.0).unwrap();
        }
        if text.is_empty() {
            return;
        }
        last.1 = text[begin..].into();
        let _ = self.streams.send(text.into());
    }

    fn subscribe(&self) -> (Arc<str>, broadcast::Receiver<Arc<str>>) {
        let last = self.last.lock().unwrap();
        (last.1.clone(), self.streams.subscribe())
    }
}

async fn serve(mut socket: TcpStream, flood: Arc<Flood>) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = request(&mut socket, &mut buffer).await {
        if head.starts_with("GET") {
            return stream(socket, &flood.log).await;
        }
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer =
            json!({"jsonrpc": "2.0", "id": message["id"], "result": {"stopReason": "end_turn"}}).to_string();
        let updates = if message["method"] == "session/prompt" { flood.count } else { 0 };
        let updates = std::iter::repeat_n(flood.update.as_str(), updates);
        let echo = (!head.starts_with("POST /SILENT")).then_some(answer.as_str());
        flood.log.send(updates.chain(echo));
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let response = format!("{head}content-length: {}\r\n\r\n{answer}", answer.len());
        if socket.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn stream(mut socket: TcpStream, log: &Log) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let (first, mut events) = log.subscribe();
    if socket.write_all(format!("{head}{first}").as_bytes()).await.is_err() {
        return;
    }
    while let Ok(text) = events.recv().await {
        if socket.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads one request: its head, and the body that `content-length` announces.
async fn request(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                let body = buffer[end + 4..end + 4 + length].to_vec();
                buffer.drain(..end + 4 + length);
                return Some((head.to_ascii_uppercase(), body));
            }
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}
