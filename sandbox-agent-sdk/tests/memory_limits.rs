//! How much memory a hostile server can make a client use. A separate program, so that no other test's memory is
//! counted.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::time::Duration;
use std::{fs, io};

use mock_server::MockServer;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::{ClientTimeouts, Error, Event, NewSession, SandboxAgentClient, ServerKind};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

const MIB: usize = 1024 * 1024;

/// A list of zeros of so many bytes: every two bytes of it become a value.
fn dense(bytes: usize) -> String {
    format!("[{}0]", "0,".repeat(bytes / 2))
}

/// Runs one attack and gives what the process holds more at its peak, in MiB.
async fn peak<T>(attack: impl Future<Output = T>) -> (T, u64) {
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory_high_water();
    let result = tokio::time::timeout(Duration::from_secs(120), attack).await.expect("it hangs");
    (result, (memory_high_water() - before) / 1024)
}

#[tokio::test]
async fn dense_bodies_of_any_kind_stay_within_bounds() {
    // A health response of 60 MB.
    let url = answering(format!(r#"{{"status":"ok","dense":{}}}"#, dense(60_000_000))).await;
    let (result, held) = peak(ControlPlane::new(&url).unwrap().health().check()).await;
    assert!(matches!(result, Err(Error::MessageTooLarge { .. })), "{:?}", result.err());
    assert!(held < 100, "health: {held} MiB");

    // Lists of sessions of 60 MB, and of 8 MB that would take half a gigabyte.
    for (bytes, is_text_too_large) in [(60_000_000, true), (8_000_000, false)] {
        let client = connect(&listing(bytes).await).await;
        let (result, held) = peak(client.list_sessions(ListSessions::all()).all()).await;
        match result.unwrap_err() {
            Error::MessageTooLarge { .. } => assert!(is_text_too_large, "{bytes}"),
            Error::DecodedTooLarge { .. } => assert!(!is_text_too_large, "{bytes}"),
            other => panic!("{bytes}: {other}"),
        }
        // The body is a message of the connection, which may have 64 MiB, and is copied once.
        assert!(held < 2 * bytes as u64 / MIB as u64 + 50, "a list of {bytes} bytes: {held} MiB");
    }

    let server = MockServer::start().await;
    let client = connect(&server.url()).await;
    let mut events = client.events();
    let session = client.new_session(NewSession::in_dir("/")).await.unwrap();
    let paths = server.requests().into_iter().map(|request| request.path);
    let endpoint = paths.filter_map(|path| Some(path.strip_prefix("/v1/acp/")?.to_owned())).next().unwrap();

    // A notification of 8 MB with values inside a string that the parser would decode too.
    let hidden = json!({"$serde_json::private::RawValue": dense(8_000_000)});
    let (_, held) = peak(async {
        assert!(
            server.emit_to(&endpoint, json!({"jsonrpc": "2.0", "method": "_x/hidden", "params": hidden}))
        );
        while !matches!(events.next().await.unwrap(), Event::Malformed { .. }) {}
    })
    .await;
    assert!(held < 100, "hidden values: {held} MiB, server included");

    // Six permission requests of 10 MB, which nothing reads.
    let text = "x".repeat(10 * MIB);
    let (_, held) = peak(async {
        for number in 0..6 {
            let params = json!({"sessionId": session.id(), "options": [], "text": text});
            let request = json!({"jsonrpc": "2.0", "id": number, "method": "session/request_permission", "params": params});
            assert!(server.emit_to(&endpoint, request));
        }
        // Behind them, so that all were seen.
        assert!(server.emit_to(&endpoint, json!({"jsonrpc": "2.0", "method": "_x/behind"})));
        loop {
            match events.next().await.unwrap() {
                Event::Other { method, .. } if method == "_x/behind" => break,
                _ => {}
            }
        }
    })
    .await;
    assert!(held < 400, "requests: {held} MiB, server included");
}

async fn connect(url: &str) -> SandboxAgentClient {
    let times = ClientTimeouts::default().disconnect(Duration::from_millis(100));
    let options = SandboxAgentClient::builder(url).agent("mock").server(ServerKind::PerAgent);
    let client = options.timeouts(times).auto_connect(false).build().unwrap();
    client.connect().await.unwrap();
    client
}

/// A server that gives every request the same body.
async fn answering(body: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let body: bytes::Bytes = body.into();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let start = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            // A client that hangs up is what the test is about.
            let _ = stream.write_all(start.as_bytes()).await;
            let _ = stream.write_all(&body).await;
        }
    });
    url
}

/// A server whose agent lists its sessions with so many bytes. The mock server would decode the list itself, so that its
/// memory would be counted too.
async fn listing(bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let list: bytes::Bytes = format!(r#""result":{{"sessions":[],"dense":{}}}}}"#, dense(bytes)).into();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, list.clone()));
        }
    });
    url
}

/// Serves one request of a connection.
async fn serve(stream: TcpStream, list: bytes::Bytes) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Ok(());
        }
    }
    if head.starts_with("GET") {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await?;
        return std::future::pending().await;
    }
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let method = message["method"].as_str().unwrap_or_default();
    let result = match method {
        "initialize" => {
            r#""result":{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"list":{}}}}}"#
                .into()
        }
        method if method.ends_with("list") => list,
        _ => {
            return stream
                .write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .await;
        }
    };
    let start = format!(r#"{{"jsonrpc":"2.0","id":{},"#, message["id"]);
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{start}",
        start.len() + result.len()
    );
    stream.write_all(head.as_bytes()).await?;
    // A client may hang up.
    stream.write_all(&result).await
}

/// The most memory this process ever had, in KiB.
fn memory_high_water() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
