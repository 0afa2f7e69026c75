//! Tests that need a separate process, because they count tasks, file descriptors and memory.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "alone/clients.rs"]
mod clients;
#[path = "alone/memory.rs"]
mod memory;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use acp_http_client::AcpHttpClient;
use mock_server::Step;
use sdk_tests::{acp_server, client, eventually, handshake, prompt, session, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// One test, so that nothing else runs beside it.
#[tokio::test]
async fn nothing_is_left_behind() {
    memory::an_idle_connection_costs_little_more_than_a_bare_stream().await;
    memory::the_traffic_of_others_costs_a_client_no_memory().await;
    clients::an_idle_client_costs_little_more_than_a_bare_stream().await;
    a_thousand_connections_leave_nothing().await;
    ten_thousand_dropped_requests_leave_an_empty_table().await;
    an_endless_event_takes_no_more_than_its_limit().await;
}

async fn a_thousand_connections_leave_nothing() {
    let server = acp_server(|_| vec![]).record(16).start().await;
    let http = acp_http_client::http_client_builder().pool_max_idle_per_host(0).build().unwrap();
    let cycle = async |count: usize| {
        for number in 0..count {
            let client = client(&server).http_client(http.clone()).build().unwrap();
            handshake(&client).await.unwrap();
            if number % 2 == 0 {
                within("the close", client.close()).await;
            }
        }
        eventually("the streams to close", || server.open_streams() == 0).await;
    };
    cycle(10).await;
    let settled = std::cell::Cell::new((usize::MAX, usize::MAX));
    eventually("the machinery to settle", || {
        let now = (open_files(), tasks());
        settled.replace(now) == now
    })
    .await;
    let (files, alive) = settled.get();
    cycle(1_000).await;
    eventually("tasks and files to be back where they were", || {
        open_files() <= files + 2 && tasks() <= alive + 2
    })
    .await;
}

async fn ten_thousand_dropped_requests_leave_an_empty_table() {
    let server = acp_server(|_| vec![Step::Hang]).record(16).start().await;
    let client = client(&server).build().unwrap();
    let id = session(&client).await;
    for number in 0..10_000 {
        let mut request = Box::pin(prompt(&client, &id, "hang"));
        // Some are dropped unsent, some while they are being sent, some while they wait.
        if number % 100 == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(2), &mut request).await;
        } else if number % 2 == 0 {
            let _ = futures::poll!(&mut request);
        }
    }
    assert!(client.diagnostics().pending.is_empty());
    within("the client to be as good as new", handshake(&client)).await.unwrap();
    within("the close", client.close()).await;
}

async fn an_endless_event_takes_no_more_than_its_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(AtomicU64::new(0));
    let server = tokio::spawn(endless_server(listener, sent.clone()));
    let before = resident_kib();
    let client = AcpHttpClient::new(&url).unwrap();
    handshake(&client).await.unwrap();
    let mut peak = 0;
    eventually("the event to be given up", || {
        peak = peak.max(resident_kib());
        client.diagnostics().oversize == 1 && client.diagnostics().reconnects >= 1
    })
    .await;
    let limit_kib = 64 << 10;
    assert!(sent.load(Ordering::SeqCst) < 1 << 30, "the whole gibibyte was taken");
    // A growing buffer is copied on its way to the limit, so twice the limit is the most there can be.
    assert!(peak < before + 2 * limit_kib + (16 << 10), "{} MiB more", (peak - before) >> 10);
    drop(client);
    server.abort();
}

/// Answers every POST, and gives the first stream one event of a gibibyte without an end.
async fn endless_server(listener: TcpListener, sent: Arc<AtomicU64>) {
    let mut streams = 0;
    loop {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        let ends: &[&[u8]] = &[b"}", b"\r\n\r\n"];
        let whole = |request: &[u8]| request.ends_with(ends[usize::from(!request.starts_with(b"POST"))]);
        while !whole(&request) && socket.read_buf(&mut request).await.unwrap_or(0) > 0 {}
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((_, body)) = text.split_once("\r\n\r\n").filter(|_| text.starts_with("POST")) {
            let id = serde_json::from_str::<serde_json::Value>(body).unwrap()["id"].clone();
            let answer =
                serde_json::json!({"jsonrpc": "2.0", "id": id, "result": {"protocolVersion": 1}}).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let response = format!("{head}content-length: {}\r\n\r\n{answer}", answer.len());
            let _ = socket.write_all(response.as_bytes()).await;
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let _ = socket.write_all(head.as_bytes()).await;
        streams += 1;
        let (first, sent) = (streams == 1, sent.clone());
        tokio::spawn(async move {
            if first {
                let _ = socket.write_all(b"id: 1\ndata: ").await;
                let part = vec![b'x'; 64 * 1024];
                while sent.fetch_add(part.len() as u64, Ordering::SeqCst) < 1 << 30 {
                    if socket.write_all(&part).await.is_err() {
                        return;
                    }
                }
            }
            // Held open until the client goes.
            let _ = socket.read(&mut [0]).await;
        });
    }
}
