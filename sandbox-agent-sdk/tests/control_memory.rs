//! Large files in little memory. A separate program, so that other tests do not affect the measurement.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::io;

use bytes::Bytes;
use futures::{StreamExt, stream};
use mock_server::MockServer;
use sandbox_agent_sdk::control::{ControlPlane, Upload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const GIB: u64 = 1024 * 1024 * 1024;
const MIB: u64 = 1024 * 1024;

/// How much the memory may grow, including the server.
const ALLOWED_KIB: u64 = 16 * 1024;

#[tokio::test]
async fn a_gibibyte_is_read_and_written_in_little_memory() {
    let directory = tempfile::tempdir().unwrap();
    fs::File::create(directory.path().join("big")).unwrap().set_len(GIB).unwrap();
    let server = MockServer::builder().files(directory.path()).start().await;
    let files = ControlPlane::new(server.url()).unwrap().files();
    files.stat("/big").await.unwrap();
    let before = memory_high_water();

    let mut reader = files.open("/big").await.unwrap();
    assert_eq!(reader.size(), Some(GIB));
    let mut read = 0;
    while read < GIB / 2 {
        read += reader.next().await.unwrap().unwrap().len() as u64;
    }
    let mut buffer = vec![1; 64 * 1024];
    loop {
        match reader.read(&mut buffer).await.unwrap() {
            0 => break,
            count => read += count as u64,
        }
        assert_eq!(buffer[0], 0);
    }
    assert_eq!(read, GIB);
    let growth = memory_high_water() - before;
    assert!(growth < ALLOWED_KIB, "reading took {growth} KiB");

    let sink = sink().await;
    let piece = Bytes::from(vec![7; 256 * 1024]);
    let pieces = stream::iter((0..GIB / piece.len() as u64).map(move |_| Ok::<_, io::Error>(piece.clone())));
    let files = ControlPlane::new(sink).unwrap().files();
    let written = files.write("/big", Upload::stream(pieces).length(GIB)).await.unwrap();
    assert_eq!(written.bytes_written, GIB);
    let growth = memory_high_water() - before;
    assert!(growth < ALLOWED_KIB, "reading and writing took {growth} KiB");
}

/// A server that counts the bytes of one upload. The mock server would record the whole body.
async fn sink() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let mut buffer = vec![0; MIB as usize];
        let mut taken = 0;
        while taken < GIB {
            taken += stream.read(&mut buffer).await.unwrap() as u64;
        }
        let body = format!(r#"{{"path":"/big","bytesWritten":{taken}}}"#);
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    url
}

/// Returns the peak memory of this process in KiB.
fn memory_high_water() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
