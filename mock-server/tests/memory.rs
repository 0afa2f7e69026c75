//! The memory of the server is bounded. A separate program, so that other tests do not affect the measurement.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod http_client;

use std::time::Duration;

use mock_server::{Fault, MockServer, Script, Step};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Far more than the replay buffer and all other buffers need, and far less than what is sent.
const BOUND: usize = 32 << 20;

/// How many events there are before a flood, and how many after its last update.
const BEFORE: u64 = 2;
const AFTER: u64 = 1;

const SOON: Duration = Duration::from_secs(300);

/// Returns the peak memory of this process in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

async fn flooding(updates: usize, bytes: usize) -> MockServer {
    let flood = Script::steps(vec![Step::Flood { updates, bytes }]);
    MockServer::builder().agent("mock", flood).default_agent("mock").request_timeout(SOON).start().await
}

async fn post(server: &MockServer, message: Value) -> Value {
    let http = crate::http_client::builder().build().unwrap();
    let post = http.post(format!("{}/v1/rpc", server.url())).header("content-type", "application/json");
    let response = tokio::time::timeout(SOON, post.body(message.to_string()).send()).await.unwrap().unwrap();
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// Creates a session and waits for the end of its flood.
async fn flood(server: &MockServer) {
    let request = |id: u32, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    post(server, request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }))).await;
    let made = post(server, request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }))).await;
    let prompt = json!([{ "type": "text", "text": "go" }]);
    let params = json!({ "sessionId": made["result"]["sessionId"], "prompt": prompt });
    let done = post(server, request(3, "session/prompt", params)).await;
    assert_eq!(done["result"]["stopReason"], "end_turn", "{done}");
}

/// Opens the stream on a plain socket, so that nothing reads ahead of the test.
async fn stream(server: &MockServer) -> TcpStream {
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    socket.write_all(b"GET /v1/rpc HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    socket
}

async fn read(socket: &mut TcpStream, buffer: &mut [u8]) -> usize {
    let count = tokio::time::timeout(SOON, socket.read(buffer)).await.expect("bytes in time").unwrap();
    assert!(count > 0, "the stream stays open");
    count
}

#[tokio::test]
async fn a_flood_without_a_reader_fills_only_the_replay_buffer() {
    const UPDATES: usize = 200_000;
    const BYTES: usize = 256;
    let server = flooding(UPDATES, BYTES).await;
    let before = peak();
    flood(&server).await;
    let growth = peak() - before;
    assert_eq!(server.last_event_id(), BEFORE + UPDATES as u64 + AFTER);
    assert!(growth < BOUND, "{growth} bytes more for {} bytes of updates", UPDATES * BYTES);
}

#[tokio::test]
async fn a_reader_that_stops_reading_during_a_flood_uses_no_memory_and_sees_a_gap() {
    const UPDATES: usize = 50_000;
    const BYTES: usize = 1024;
    let server = flooding(UPDATES, BYTES).await;
    let mut socket = stream(&server).await;
    let mut buffer = vec![0; 65_536];
    read(&mut socket, &mut buffer[..64]).await;
    let before = peak();
    flood(&server).await;
    let last = server.last_event_id();
    let mut text = String::new();
    let mut ids = Vec::new();
    while ids.last() != Some(&last) {
        let count = read(&mut socket, &mut buffer).await;
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        ids.extend(text[..whole].lines().filter_map(|line| line.strip_prefix("id: ")?.parse::<u64>().ok()));
        text.drain(..whole);
    }
    let growth = peak() - before;
    assert!(ids.is_sorted_by(|left, right| left < right), "in order and without duplicates");
    let missing = last - ids.len() as u64;
    assert!(
        missing > UPDATES as u64 / 2,
        "only {missing} updates were dropped for a reader that stood still"
    );
    assert!(growth < BOUND, "{growth} bytes more for {} bytes of updates", UPDATES * BYTES);
}

#[tokio::test]
async fn an_unterminated_event_of_any_size_uses_no_memory() {
    const SIZE: usize = 1 << 30;
    let server = MockServer::builder().fault(Fault::UnterminatedEvent { bytes: SIZE }).start().await;
    let before = peak();
    let mut socket = stream(&server).await;
    let mut buffer = vec![0; 1 << 20];
    let mut seen = 0;
    while seen < SIZE {
        seen += read(&mut socket, &mut buffer).await;
    }
    let growth = peak() - before;
    assert!(growth < BOUND, "{growth} bytes more for an event of {SIZE} bytes");
}
