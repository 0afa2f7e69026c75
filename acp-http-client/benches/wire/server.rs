//! A server that does as little as possible, on a thread of its own.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::broadcast,
};

/// Starts it and gives its URL. A prompt streams this many updates to every open stream, and then its answer.
pub(crate) fn start(updates: usize) -> String {
    let (url, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            url.send(format!("http://{}", listener.local_addr().unwrap())).unwrap();
            let (streams, _) = broadcast::channel(16);
            let flood: Arc<str> = (2..updates + 2).map(update).collect::<String>().into();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                tokio::spawn(serve(socket, streams.clone(), flood.clone(), updates));
            }
        });
    });
    started.recv().unwrap()
}

fn update(id: usize) -> String {
    let text = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s-1", "update": {
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "some words "}}}});
    format!("event: message\nid: {id}\ndata: {text}\n\n")
}

async fn serve(mut socket: TcpStream, streams: broadcast::Sender<Arc<str>>, flood: Arc<str>, updates: usize) {
    let mut buffer = Vec::new();
    while let Some((head, body)) = request(&mut socket, &mut buffer).await {
        if head.starts_with("GET") {
            return stream(socket, streams.subscribe()).await;
        }
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer =
            json!({"jsonrpc": "2.0", "id": message["id"], "result": {"stopReason": "end_turn"}}).to_string();
        if message["method"] == "session/prompt" {
            let _ = streams.send(flood.clone());
            let _ = streams.send(format!("event: message\nid: {}\ndata: {answer}\n\n", updates + 2).into());
        } else if message["method"] == "initialize" {
            // The stream may open a moment later: what it begins with tells the client that it is there.
            let _ = streams.send("".into());
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let response = format!("{head}content-length: {}\r\n\r\n{answer}", answer.len());
        if socket.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn stream(mut socket: TcpStream, mut events: broadcast::Receiver<Arc<str>>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let first = "event: message\nid: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"_bench/open\"}\n\n";
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
