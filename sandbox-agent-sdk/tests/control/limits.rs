//! Body limits of servers.

use std::io;

use bytes::Bytes;
use futures::stream;
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::desktop::ScreenshotOptions;
use sandbox_agent_sdk::control::{ControlPlane, RELEASED_BODY_LIMIT, Upload};
use sandbox_agent_sdk::limits::Limits;
use tokio::io::AsyncReadExt;

use crate::stub::{Stub, reply, response};
use crate::support::{pattern, plane, soon};

const LIMIT: usize = RELEASED_BODY_LIMIT as usize;
const MIB: usize = 1024 * 1024;

/// Returns a stream of this many mebibytes, without a length.
fn streamed(mebibytes: usize) -> Upload {
    let piece = Bytes::from(vec![b'x'; MIB]);
    Upload::stream(stream::iter((0..mebibytes).map(move |_| Ok::<_, io::Error>(piece.clone()))))
}

#[track_caller]
fn too_large(error: &Error, size: Option<u64>) {
    let Error::PayloadTooLarge { size: actual, limit, .. } = error else { panic!("{error:?}") };
    assert_eq!(*limit, Some(RELEASED_BODY_LIMIT));
    match size {
        Some(size) => assert_eq!(*actual, Some(size)),
        None => assert!(*actual > Some(RELEASED_BODY_LIMIT), "{actual:?}"),
    }
    assert!(!error.maybe_executed() && !error.is_retryable());
}

#[tokio::test]
async fn a_file_at_the_limit_is_accepted_and_a_larger_one_is_not() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let full = pattern(LIMIT);
    files.write("/full", full.clone()).await.unwrap();
    // The rejection and the closed connection race. The result must be the same.
    for _ in 0..5 {
        for size in [LIMIT + 1, 3 * LIMIT, 20 * LIMIT] {
            let error = soon(files.write("/full", vec![0; size])).await.unwrap_err();
            too_large(&error, Some(size as u64));
        }
        too_large(&soon(files.write("/full", streamed(40))).await.unwrap_err(), None);
        let known = streamed(40).length(40 * MIB as u64);
        too_large(&soon(files.write("/full", known)).await.unwrap_err(), Some(40 * MIB as u64));
    }
    assert_eq!(files.read("/full").await.unwrap(), full, "the file is unchanged, and later calls work");
}

#[tokio::test]
async fn an_archive_has_the_same_limit() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    too_large(
        &soon(files.upload_tar("/up", vec![0; LIMIT + 512])).await.unwrap_err(),
        Some(LIMIT as u64 + 512),
    );
    too_large(&soon(files.upload_tar("/up", streamed(40))).await.unwrap_err(), None);
    assert!(!files.exists("/up").await.unwrap());
}

#[tokio::test]
async fn a_server_with_a_larger_limit_accepts_more() {
    let server = MockServer::builder().body_limit(8 * MIB).start().await;
    let files = plane(&server).files();
    assert_eq!(files.write("/big", streamed(8)).await.unwrap().bytes_written, 8 * MIB as u64);
    assert_eq!(files.stat("/big").await.unwrap().size, 8 * MIB as u64);
}

#[tokio::test]
async fn a_received_rejection_is_preserved() {
    let text = "Failed to buffer the request body: length limit exceeded";
    let stub = Stub::answer(response("413 Payload Too Large", "text/plain; charset=utf-8", text)).await;
    let files = ControlPlane::new(&stub.url).unwrap().files();
    let error = files.write("/x", "small").await.unwrap_err();
    let Error::PayloadTooLarge { size: Some(5), limit: None, .. } = &error else { panic!("{error:?}") };
    assert_eq!(error.http().unwrap().body, text);
}

#[tokio::test]
async fn a_file_is_read_up_to_the_limit_and_not_above() {
    let server = MockServer::start().await;
    plane(&server).files().write("/file", pattern(1000)).await.unwrap();
    plane(&server).files().write("/text", "x".repeat(1000)).await.unwrap();
    for (limit, fits) in [(999, false), (1000, true), (1001, true)] {
        let limits = Limits::default().file(limit);
        let files = ControlPlane::builder(server.url()).limits(limits).build().unwrap().files();
        let results = [files.read("/file").await.map(drop), files.read_text("/text").await.map(drop)];
        for result in results {
            match result {
                Ok(()) => assert!(fits, "{limit}"),
                Err(Error::MessageTooLarge { limit: reported, .. }) => assert!(!fits && reported == limit),
                Err(other) => panic!("{other:?}"),
            }
        }
        let opened = files.open("/file").await.unwrap();
        assert_eq!(opened.into_bytes(1000).await.unwrap(), pattern(1000), "a stream has no limit");
    }
}

/// A server that aborts every upload after a few bytes and responds to health checks with `health`.
async fn rude(health: &'static str) -> Stub {
    Stub::serve(move |head, mut stream| {
        Box::pin(async move {
            if head.starts_with("GET /v1/health ") && !health.is_empty() {
                return reply(stream, response(health, "application/json", r#"{"status":"ok"}"#)).await;
            }
            let mut some = [0; 64];
            let _ = stream.read(&mut some).await;
            // Closing with unread bytes resets the connection.
            stream.set_zero_linger().unwrap();
        })
    })
    .await
}

#[tokio::test]
async fn a_server_that_aborts_a_large_upload_and_is_healthy_means_too_large() {
    let stub = rude("200 OK").await;
    let files = ControlPlane::new(&stub.url).unwrap().files();
    let error = soon(files.write("/x", vec![0; 20 * MIB])).await.unwrap_err();
    too_large(&error, Some(20 * MIB as u64));
    assert!(error.http().is_none(), "no response was received");
    too_large(&soon(files.write("/x", streamed(64))).await.unwrap_err(), None);
    for size in [1000, MIB] {
        let small = soon(files.write("/x", vec![0; size])).await.unwrap_err();
        assert!(matches!(small, Error::ConnectionLost { .. }) && small.maybe_executed(), "{small:?}");
    }
    for health in ["", "503 Service Unavailable"] {
        let stub = rude(health).await;
        let files = ControlPlane::new(&stub.url).unwrap().files();
        let dead = soon(files.write("/x", vec![0; 20 * MIB])).await.unwrap_err();
        assert!(matches!(dead, Error::ConnectionLost { .. }), "a dead server has no limits: {dead:?}");
    }
}

#[tokio::test]
async fn a_large_body_with_a_wrong_token_fails_with_the_token_error() {
    let server = MockServer::builder().token("right").body_limit(64 * MIB).start().await;
    let files = ControlPlane::builder(server.url()).token("wrong").build().unwrap().files();
    for upload in [streamed(32), streamed(32).length(32 * MIB as u64), vec![0; 32 * MIB].into()] {
        let error = soon(files.write("/x", upload)).await.unwrap_err();
        assert!(error.is_unauthorized(), "{error:?}");
    }
    let stub = rude("401 Unauthorized").await;
    let files = ControlPlane::new(&stub.url).unwrap().files();
    let error = soon(files.write("/x", vec![0; 20 * MIB])).await.unwrap_err();
    assert!(error.is_unauthorized() && !error.maybe_executed(), "{error:?}");
}

#[tokio::test]
async fn a_response_is_read_up_to_the_limit_of_its_kind_and_not_above() {
    const LIMIT: usize = 1000;
    let health = |bytes: usize| {
        let empty = r#"{"status":"ok","text":""}"#.len();
        format!(r#"{{"status":"ok","text":"{}"}}"#, "x".repeat(bytes - empty))
    };
    let agents = |bytes: usize| {
        let empty = r#"{"agents":[],"text":""}"#.len();
        format!(r#"{{"agents":[],"text":"{}"}}"#, "x".repeat(bytes - empty))
    };
    for (bytes, fits) in [(LIMIT - 1, true), (LIMIT, true), (LIMIT + 1, false)] {
        let stub = Stub::answer(response("200 OK", "application/json", &health(bytes))).await;
        let limits = Limits::default().health(LIMIT);
        let plane = ControlPlane::builder(&stub.url).limits(limits).build().unwrap();
        let checked = soon(plane.health().check()).await.map(drop);
        let stub = Stub::answer(response("200 OK", "application/json", &agents(bytes))).await;
        let limits = Limits::default().control(LIMIT);
        let plane = ControlPlane::builder(&stub.url).limits(limits).build().unwrap();
        let listed = soon(plane.agents().list()).await.map(drop);
        for result in [checked, listed] {
            match result {
                Ok(()) => assert!(fits, "{bytes}"),
                Err(error) => {
                    let typed =
                        matches!(error, Error::MessageTooLarge { limit: LIMIT, seen, .. } if seen == bytes);
                    assert!(!fits && typed, "{bytes} {error:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_screenshot_is_read_up_to_the_limit_and_not_above() {
    let stub = Stub::answer(response("200 OK", "image/png", &"x".repeat(1000))).await;
    for (limit, fits) in [(999, false), (1000, true), (1001, true)] {
        let limits = Limits::default().screenshot(limit);
        let plane = ControlPlane::builder(&stub.url).limits(limits).build().unwrap();
        match soon(plane.desktop().screenshot(ScreenshotOptions::default())).await {
            Ok(screenshot) => assert!(fits && screenshot.bytes.len() == 1000, "{limit}"),
            Err(Error::MessageTooLarge { limit: reported, .. }) => assert!(!fits && reported == limit),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_body_of_a_failed_response_is_read_up_to_the_limit() {
    let stub = Stub::answer(response("500 Internal Server Error", "text/plain", &"x".repeat(1000))).await;
    for (limit, read) in [(999, 999), (1000, 1000), (1001, 1000)] {
        let limits = Limits::default().error_body(limit);
        let plane = ControlPlane::builder(&stub.url).limits(limits).build().unwrap();
        let error = soon(plane.agents().list()).await.unwrap_err();
        assert_eq!(error.http().map(|http| http.body.len()), Some(read), "{error:?}");
    }
}
