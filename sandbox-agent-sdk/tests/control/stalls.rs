//! Bodies that stop moving, and those that only move slowly.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, Upload};
use sandbox_agent_sdk::error::Phase;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stub::{Stub, reply, response};
use crate::support::{impatient, soon};

const STALL: Duration = Duration::from_millis(250);

/// Sends the head of an answer of ten bytes, and some of them.
async fn begin(stream: &mut TcpStream, some: &[u8]) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 10\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(some).await.unwrap();
    stream.flush().await.unwrap();
}

fn quick(stub: &Stub) -> ControlPlane {
    impatient(&stub.url, |timeouts| {
        timeouts.stall = STALL;
        timeouts.answer = STALL;
    })
}

#[tokio::test]
async fn a_file_that_stops_coming_is_given_up() {
    let stub = Stub::serve(|_, mut stream| {
        Box::pin(async move {
            begin(&mut stream, b"12345").await;
            std::future::pending().await
        })
    })
    .await;
    let files = quick(&stub).files();
    let mut reader = files.open("/x").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap(), "12345");
    let error = soon(reader.next()).await.unwrap().unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!(timeout.phase, Phase::Body);
    assert!(timeout.elapsed >= STALL);
    assert!(reader.next().await.is_none(), "after a failure there is nothing");

    let mut through_io = files.open("/x").await.unwrap();
    let mut all = Vec::new();
    let error = soon(through_io.read_to_end(&mut all)).await.unwrap_err();
    assert_eq!((error.kind(), all.as_slice()), (io::ErrorKind::TimedOut, &b"12345"[..]));
    assert!(error.get_ref().unwrap().downcast_ref::<Error>().unwrap().is_timeout());
    assert!(soon(files.read("/x")).await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn a_file_that_comes_slowly_comes() {
    let stub = Stub::serve(|_, mut stream| {
        Box::pin(async move {
            begin(&mut stream, b"").await;
            for byte in b"0123456789" {
                tokio::time::sleep(STALL / 4).await;
                stream.write_all(&[*byte]).await.unwrap();
                stream.flush().await.unwrap();
            }
        })
    })
    .await;
    let start = Instant::now();
    assert_eq!(soon(quick(&stub).files().read("/x")).await.unwrap(), "0123456789");
    assert!(start.elapsed() > 2 * STALL, "it took longer than any single piece may");
}

#[tokio::test]
async fn a_reader_may_take_its_time() {
    let stub = Stub::serve(|_, mut stream| {
        Box::pin(async move {
            begin(&mut stream, b"12345").await;
            stream.write_all(b"67890").await.unwrap();
            std::future::pending().await
        })
    })
    .await;
    let mut reader = quick(&stub).files().open("/x").await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 10 {
        tokio::time::sleep(STALL + STALL / 4).await;
        seen.extend_from_slice(&soon(reader.next()).await.unwrap().unwrap());
    }
    assert_eq!(seen, b"1234567890");
}

#[tokio::test]
async fn a_file_that_is_cut_short_is_not_taken_for_whole() {
    let stub = Stub::serve(|_, mut stream| Box::pin(async move { begin(&mut stream, b"12345").await })).await;
    let files = quick(&stub).files();
    let error = files.read("/x").await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    let mut all = Vec::new();
    let error = files.open("/x").await.unwrap().read_to_end(&mut all).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(files.read_text("/x").await.is_err());
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let stub = Stub::serve(|_, stream| {
        Box::pin(async move {
            let _kept = stream;
            std::future::pending().await
        })
    })
    .await;
    let files = quick(&stub).files();
    for error in [
        soon(files.list("/")).await.unwrap_err(),
        soon(files.read("/x")).await.unwrap_err(),
        soon(files.write("/x", "small")).await.unwrap_err(),
        soon(files.delete("/x")).await.unwrap_err(),
    ] {
        let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
        assert_eq!((timeout.phase, timeout.elapsed), (Phase::Headers, STALL));
    }
}

#[tokio::test]
async fn a_server_that_stops_reading_is_given_up() {
    let stub = Stub::serve(|_, stream| {
        Box::pin(async move {
            let _unread = stream;
            std::future::pending().await
        })
    })
    .await;
    let piece = Bytes::from(vec![0; 256 * 1024]);
    let endless = stream::repeat_with(move || Ok::<_, io::Error>(piece.clone()));
    let error = soon(quick(&stub).files().write("/x", Upload::stream(endless))).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!(soon(quick(&stub).files().write("/x", vec![0; 64 << 20])).await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn a_source_may_take_its_time() {
    let stub = Stub::serve(|_, mut stream| {
        Box::pin(async move {
            let mut seen = Vec::new();
            while !seen.ends_with(b"0\r\n\r\n") {
                seen.push(stream.read_u8().await.unwrap());
            }
            let body = r#"{"path":"/x","bytesWritten":3}"#;
            reply(stream, response("200 OK", "application/json", body)).await;
        })
    })
    .await;
    let slow = stream::iter(["1", "2", "3"]).then(|piece| async move {
        tokio::time::sleep(STALL + STALL / 4).await;
        Ok::<_, io::Error>(piece)
    });
    let written = soon(quick(&stub).files().write("/x", Upload::stream(slow))).await.unwrap();
    assert_eq!(written.bytes_written, 3);
}
