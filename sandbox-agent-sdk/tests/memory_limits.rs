//! How much memory a hostile server can make a client use. A separate program, so that no other test's memory is
//! counted.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::session::ListSessions;
use sandbox_agent_sdk::{ClientTimeouts, Error, Event, NewSession, SandboxAgentClient, ServerKind};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

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

    // A list of sessions of 8 MB that would take half a gigabyte.
    let script = Script::default().on_request(|method, _| {
        let list = || json!({"sessions": [], "dense": vec![0; 4_000_000]});
        (method == "session/list").then(|| vec![Step::Finish(list())])
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = connect(&server).await;
    // The mock server decodes the list itself, so that its memory would be counted too.
    let error = client.list_sessions(ListSessions::all()).all().await.unwrap_err();
    assert!(matches!(error, Error::DecodedTooLarge { .. }), "{error}");

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

async fn connect(server: &MockServer) -> SandboxAgentClient {
    let times = ClientTimeouts::default().disconnect(Duration::from_millis(100));
    let options = SandboxAgentClient::builder(server.url()).agent("mock").server(ServerKind::PerAgent);
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

/// The most memory this process ever had, in KiB.
fn memory_high_water() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
