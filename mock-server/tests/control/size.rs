//! Body limits, and large files in constant memory.

use std::fs;

use bytes::Bytes;
use futures::{StreamExt, stream};
use mock_server::{ControlPlane, DEFAULT_BODY_LIMIT};
use reqwest::{Body, Method};

use crate::server::{JSON, Server, TAR};

const TOO_LARGE: &str = "Failed to buffer the request body: length limit exceeded";
const GIB: u64 = 1024 * 1024 * 1024;
const MIB: usize = 1024 * 1024;

/// A body without a length, in chunks of one mebibyte.
fn stream_of(mebibytes: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; MIB]);
    Body::wrap_stream(stream::iter((0..mebibytes).map(move |_| Ok::<_, std::io::Error>(piece.clone()))))
}

#[tokio::test]
async fn a_body_at_the_limit_is_accepted_and_a_larger_one_rejected() {
    let server = Server::start().await;
    let full = server.put("/full", vec![1; DEFAULT_BODY_LIMIT]).await;
    assert_eq!(full.json(200)["bytesWritten"], DEFAULT_BODY_LIMIT);
    assert_eq!(server.put("/full", vec![2; DEFAULT_BODY_LIMIT + 1]).await.text(413), TOO_LARGE);
    assert_eq!(server.put("/full", stream_of(3)).await.text(413), TOO_LARGE);
    assert_eq!(fs::read(server.on_disk("full")).unwrap(), vec![1; DEFAULT_BODY_LIMIT]);
    server.put("/new", stream_of(5)).await.text(413);
    assert_eq!(fs::read_dir(server.control.root()).unwrap().count(), 1, "no partial file remains");
}

#[tokio::test]
async fn a_rejected_body_does_not_break_the_connection() {
    let server = Server::start().await;
    server.post("/v1/fs/mkdir?path=/dir").await.json(200);
    let evil = vec![b'/'; DEFAULT_BODY_LIMIT];
    for _ in 0..10 {
        server.put("/dir", vec![0; DEFAULT_BODY_LIMIT]).await.problem(502, "stream_error");
        server.put("/../x", stream_of(2)).await.problem(400, "invalid_request");
        let upload = "/v1/fs/upload-batch?path=/up";
        server.send(Method::POST, upload, JSON, evil.clone()).await.problem(400, "invalid_request");
        server.send(Method::POST, upload, TAR, evil.clone()).await.problem(502, "stream_error");
        server.send(Method::POST, upload, TAR, stream_of(20)).await.text(413);
    }
}

#[tokio::test]
async fn every_call_with_a_body_has_the_limit() {
    let server = Server::with(ControlPlane::builder().body_limit(2048)).await;
    let long = format!("{{\"x\":\"{}\"}}", "x".repeat(4096));
    let json_calls = [
        (Method::POST, "/v1/agents/mock/install"),
        (Method::POST, "/v1/fs/move"),
        (Method::PUT, "/v1/config/mcp?directory=/cfg&mcpName=a"),
        (Method::PUT, "/v1/config/skills?directory=/cfg&skillName=a"),
    ];
    for (method, target) in json_calls {
        assert_eq!(server.send(method, target, JSON, long.clone()).await.text(413), TOO_LARGE, "{target}");
    }
    let upload = "/v1/fs/upload-batch?path=/up";
    assert_eq!(server.send(Method::POST, upload, TAR, vec![0; 4096]).await.text(413), TOO_LARGE);
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(4096);
    header.set_mode(0o644);
    builder.append_data(&mut header, "file", &[7; 4096][..]).unwrap();
    let pieces = builder.into_inner().unwrap();
    let pieces: Vec<_> = pieces.chunks(512).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
    let streamed = server.send(Method::POST, upload, TAR, Body::wrap_stream(stream::iter(pieces))).await;
    assert_eq!(streamed.text(413), TOO_LARGE);
}

#[tokio::test]
async fn a_gibibyte_is_read_and_written_in_constant_memory() {
    let limit = usize::try_from(GIB).unwrap();
    let server = Server::with(ControlPlane::builder().body_limit(limit)).await;
    let before = memory_high_water();

    let written = server.put("/big", stream_of(limit / MIB)).await;
    assert_eq!(written.json(200)["bytesWritten"], GIB);
    assert_eq!(fs::metadata(server.on_disk("big")).unwrap().len(), GIB);

    let response = server.request(Method::GET, "/v1/fs/file?path=/big").send().await.unwrap();
    assert_eq!(response.content_length(), Some(GIB));
    let mut body = response.bytes_stream();
    let mut read = 0;
    while let Some(piece) = body.next().await {
        let piece = piece.unwrap();
        assert!(piece.first() == Some(&b'x') && piece.last() == Some(&b'x'));
        read += piece.len() as u64;
    }
    assert_eq!(read, GIB);
    let growth = memory_high_water() - before;
    assert!(growth < 100 * 1024, "grew by {growth} KiB");
}

fn memory_high_water() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
