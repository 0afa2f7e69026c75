//! Stalled and slow bodies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// Sends the head of a response with ten bytes, and some of the bytes.
async fn begin(stream: &mut TcpStream, some: &[u8]) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: 10\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(some).await.unwrap();
    stream.flush().await.unwrap();
}

fn quick(stub: &Stub) -> ControlPlane {
    impatient(&stub.url, |timeouts| {
        timeouts.stall = STALL;
        timeouts.response = STALL;
    })
}

#[tokio::test]
async fn a_stalled_download_times_out() {
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
    assert!(reader.next().await.is_none(), "the stream ends after an error");

    let mut through_io = files.open("/x").await.unwrap();
    let mut all = Vec::new();
    let error = soon(through_io.read_to_end(&mut all)).await.unwrap_err();
    assert_eq!((error.kind(), all.as_slice()), (io::ErrorKind::TimedOut, &b"12345"[..]));
    assert!(error.get_ref().unwrap().downcast_ref::<Error>().unwrap().is_timeout());
    assert!(soon(files.read("/x")).await.unwrap_err().is_timeout());
}

#[tokio::test]
async fn a_slow_download_succeeds() {
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
    assert!(start.elapsed() > 2 * STALL, "it took longer than the timeout of one chunk");
}

#[tokio::test]
async fn a_response_of_one_byte_at_a_time_times_out() {
    for status in ["200 OK", "500 Internal Server Error"] {
        let stub = Stub::serve(move |_, mut stream| {
            Box::pin(async move {
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                // The client hangs up.
                while stream.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(STALL / 8).await;
                }
            })
        })
        .await;
        let plane = impatient(&stub.url, |timeouts| {
            timeouts.stall = STALL;
            timeouts.body = 2 * STALL;
        });
        let error = soon(plane.agents().list()).await.unwrap_err();
        match &error {
            Error::Timeout(timeout) => assert_eq!((timeout.phase, status), (Phase::Body, "200 OK")),
            Error::Http(http) => assert_eq!(http.status, 500),
            error => panic!("{error:?}"),
        }
    }
}

#[tokio::test]
async fn endless_heads_chunks_and_trailers_are_errors() {
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let attacks = [
        ("headers", "HTTP/1.1 200 OK\r\n".to_owned(), format!("x-padding: {}\r\n", "x".repeat(1000))),
        ("one header", "HTTP/1.1 200 OK\r\nx-padding: ".to_owned(), "x".repeat(1000)),
        ("cookies", "HTTP/1.1 200 OK\r\n".to_owned(), format!("set-cookie: c={}\r\n", "x".repeat(1000))),
        ("early responses", String::new(), "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".to_owned()),
        ("the extension of a chunk", format!("{CHUNKED}2;"), "x".repeat(1000)),
        ("the size of a chunk", CHUNKED.to_owned(), "0".repeat(1000)),
        ("trailers", format!("{CHUNKED}0\r\n"), format!("x-padding: {}\r\n", "x".repeat(1000))),
        ("chunks", CHUNKED.to_owned(), format!("3e8\r\n{}\r\n", " ".repeat(1000))),
    ];
    for (what, start, endless) in attacks {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let stub = Stub::serve(move |_, mut stream| {
            let (start, endless, count) = (start.clone(), endless.clone(), Arc::clone(&count));
            Box::pin(async move {
                stream.write_all(start.as_bytes()).await.unwrap();
                // The client hangs up.
                while stream.write_all(endless.as_bytes()).await.is_ok() {
                    count.fetch_add(endless.len(), Ordering::Relaxed);
                }
            })
        })
        .await;
        let result = soon(quick(&stub).agents().list()).await;
        assert!(result.is_err(), "{what}: {result:?}");
        // Reading ends with the error: the server gets no further than what the sockets hold.
        let end = || sent.load(Ordering::Relaxed);
        soon(async {
            let mut before = usize::MAX;
            while before != end() {
                before = end();
                tokio::time::sleep(STALL).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn no_compressed_body_is_asked_for() {
    let stub = Stub::answer(response("200 OK", "application/json", "{}")).await;
    let _refused = soon(quick(&stub).agents().list()).await;
    assert!(!stub.heads()[0].to_lowercase().contains("accept-encoding"), "{}", stub.heads()[0]);
}

#[tokio::test]
async fn a_server_cannot_ask_for_a_wait_without_end() {
    let head = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n";
    for (value, wait) in
        [("7", Some(7)), ("300", Some(300)), ("18446744073709551615", Some(300)), ("-1", None)]
    {
        let stub = Stub::answer(format!("{head}retry-after: {value}\r\n\r\n")).await;
        let error = quick(&stub).agents().list().await.unwrap_err();
        assert_eq!(error.retry_after(), wait.map(Duration::from_secs), "{value}");
    }
}

#[tokio::test]
async fn a_slow_reader_does_not_time_out() {
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
async fn a_truncated_download_is_an_error() {
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
async fn a_server_without_a_response_times_out() {
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
async fn a_stalled_upload_times_out() {
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
async fn a_slow_source_does_not_time_out() {
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
