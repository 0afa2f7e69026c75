//! The largest body a server takes.

use std::io;

use bytes::Bytes;
use futures::stream;
use mock_server::MockServer;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, RELEASED_BODY_LIMIT, Upload};
use sandbox_agent_sdk::limits::Limits;
use tokio::io::AsyncReadExt;

use crate::stub::{Stub, reply, response};
use crate::support::{pattern, plane, soon};

const LIMIT: usize = RELEASED_BODY_LIMIT as usize;
const MIB: usize = 1024 * 1024;

/// A stream of so many mebibytes, without a length.
fn streamed(mebibytes: usize) -> Upload {
    let piece = Bytes::from(vec![b'x'; MIB]);
    Upload::stream(stream::iter((0..mebibytes).map(move |_| Ok::<_, io::Error>(piece.clone()))))
}

#[track_caller]
fn too_large(error: &Error, size: Option<u64>) {
    let Error::PayloadTooLarge { size: told, limit, .. } = error else { panic!("{error:?}") };
    assert_eq!(*limit, Some(RELEASED_BODY_LIMIT));
    match size {
        Some(size) => assert_eq!(*told, Some(size)),
        None => assert!(*told > Some(RELEASED_BODY_LIMIT), "{told:?}"),
    }
    assert!(!error.maybe_executed() && !error.is_retryable());
}

#[tokio::test]
async fn a_file_of_the_limit_is_taken_and_a_larger_one_is_not() {
    let server = MockServer::start().await;
    let files = plane(&server).files();
    let full = pattern(LIMIT);
    files.write("/full", full.clone()).await.unwrap();
    // Whether the refusal is heard or the connection closes first is a race; both have to end the same.
    for _ in 0..5 {
        for size in [LIMIT + 1, 3 * LIMIT, 20 * LIMIT] {
            let error = soon(files.write("/full", vec![0; size])).await.unwrap_err();
            too_large(&error, Some(size as u64));
        }
        too_large(&soon(files.write("/full", streamed(40))).await.unwrap_err(), None);
        let known = streamed(40).length(40 * MIB as u64);
        too_large(&soon(files.write("/full", known)).await.unwrap_err(), Some(40 * MIB as u64));
    }
    assert_eq!(files.read("/full").await.unwrap(), full, "the file is as it was, and calls work");
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
async fn a_server_with_a_larger_limit_takes_more() {
    let server = MockServer::builder().body_limit(8 * MIB).start().await;
    let files = plane(&server).files();
    assert_eq!(files.write("/big", streamed(8)).await.unwrap().bytes_written, 8 * MIB as u64);
    assert_eq!(files.stat("/big").await.unwrap().size, 8 * MIB as u64);
}

#[tokio::test]
async fn a_refusal_that_is_heard_is_kept_whole() {
    let text = "Failed to buffer the request body: length limit exceeded";
    let stub = Stub::answer(response("413 Payload Too Large", "text/plain; charset=utf-8", text)).await;
    let files = ControlPlane::new(&stub.url).unwrap().files();
    let error = files.write("/x", "small").await.unwrap_err();
    let Error::PayloadTooLarge { size: Some(5), limit: None, .. } = &error else { panic!("{error:?}") };
    assert_eq!(error.http().unwrap().body, text);
}

/// A server that breaks off every upload after a few bytes, and whose health is what it is told to say.
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
async fn a_server_that_hangs_up_on_a_large_body_says_too_large_if_it_lives() {
    let stub = rude("200 OK").await;
    let files = ControlPlane::new(&stub.url).unwrap().files();
    let error = soon(files.write("/x", vec![0; 20 * MIB])).await.unwrap_err();
    too_large(&error, Some(20 * MIB as u64));
    assert!(error.http().is_none(), "nothing was heard");
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
async fn a_large_body_with_a_wrong_token_is_refused_for_the_token() {
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
                    let told =
                        matches!(error, Error::MessageTooLarge { limit: LIMIT, seen, .. } if seen == bytes);
                    assert!(!fits && told, "{bytes} {error:?}");
                }
            }
        }
    }
}
