//! Missing and unexpected responses.

use mock_server::{Fault, MockServer};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::{ControlPlane, FsMove, Health};

use tokio::io::AsyncWriteExt;

use crate::stub::{Stub, response};
use crate::support::{nowhere, plane, soon};

/// Makes one call of each kind and returns the errors.
async fn errors(server: &ControlPlane) -> Vec<Error> {
    let (files, agents, config) = (server.files(), server.agents(), server.config());
    vec![
        server.health().check().await.unwrap_err(),
        agents.list().await.unwrap_err(),
        agents.get("mock").await.unwrap_err(),
        agents.install("mock").await.unwrap_err(),
        files.list("/").await.unwrap_err(),
        files.stat("/x").await.unwrap_err(),
        files.exists("/x").await.unwrap_err(),
        files.read("/x").await.unwrap_err(),
        files.write("/x", "y").await.unwrap_err(),
        files.upload_tar("/x", "y").await.unwrap_err(),
        files.make_directory("/x").await.unwrap_err(),
        files.rename(FsMove::new("/x", "/y")).await.unwrap_err(),
        files.delete("/x").await.unwrap_err(),
        files.delete_all("/x").await.unwrap_err(),
        config.mcp_server("/x", "y").await.unwrap_err(),
        config.delete_mcp_server("/x", "y").await.unwrap_err(),
        config.set_skills("/x", "y", &Default::default()).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn an_absent_server_is_unreachable() {
    for error in errors(&ControlPlane::new(nowhere()).unwrap()).await {
        assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
        assert!(error.is_retryable() && !error.maybe_executed());
    }
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let elsewhere = MockServer::start().await;
    let to = format!("{}/v1/health?token=abc", elsewhere.url());
    let server = MockServer::builder().fault(Fault::Redirect { to }).start().await;
    let plane = ControlPlane::builder(server.url()).token("secret").build().unwrap();
    for error in errors(&plane).await {
        let Error::Redirected { status: 307, location: Some(location), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*location, format!("{}/v1/health", elsewhere.url()));
    }
    assert!(elsewhere.requests().is_empty(), "the token is not sent to another server");
}

#[tokio::test]
async fn a_login_page_is_not_a_response() {
    let page = "<!DOCTYPE html><html><body>Sign in</body></html>";
    let stub = Stub::answer(response("200 OK", "text/html; charset=utf-8", page)).await;
    for error in errors(&ControlPlane::new(&stub.url).unwrap()).await {
        let Error::UnexpectedBody { status: 200, content_type, start, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(content_type.as_deref(), Some("text/html; charset=utf-8"));
        assert_eq!(start, page);
    }
}

#[tokio::test]
async fn plain_text_failures_are_preserved() {
    let text = "Failed to deserialize query string: missing field `path`";
    let stub = Stub::answer(response("400 Bad Request", "text/plain; charset=utf-8", text)).await;
    for error in errors(&ControlPlane::new(&stub.url).unwrap()).await {
        let answer = error.http().unwrap();
        assert_eq!((answer.status, answer.body.as_str(), &answer.problem), (400, text, &None));
        assert_eq!(answer.content_type.as_deref(), Some("text/plain; charset=utf-8"));
        assert!(error.to_string().contains("missing field `path`"), "{error}");
    }
}

#[tokio::test]
async fn problems_are_preserved() {
    let body = r#"{"type":"urn:sandbox-agent:error:stream_error","title":"Stream Error","status":502,"detail":"stream error: no space left","details":{"message":"no space left"},"new":[1,2]}"#;
    let stub = Stub::answer(response("502 Bad Gateway", "application/problem+json", body)).await;
    for error in errors(&ControlPlane::new(&stub.url).unwrap()).await {
        let problem = error.problem().unwrap();
        assert_eq!(problem.short_kind(), "stream_error");
        let (kept, sent): (serde_json::Value, serde_json::Value) =
            (serde_json::to_value(problem).unwrap(), serde_json::from_str(body).unwrap());
        assert_eq!(kept, sent);
        assert_eq!(error.http().unwrap().body, body);
        assert!(error.to_string().ends_with("stream error: no space left"), "{error}");
    }
}

#[tokio::test]
async fn a_response_of_an_unexpected_type_is_preserved() {
    let stub = Stub::answer(response("200 OK", "application/json", r#"{"agents":[{"name":7}]}"#)).await;
    let plane = ControlPlane::new(&stub.url).unwrap();
    let error = plane.agents().list().await.unwrap_err();
    let Error::Decode { what, raw, .. } = &error else { panic!("{error:?}") };
    assert_eq!((what.as_str(), raw.as_str()), ("list agents", r#"{"agents":[{"name":7}]}"#));
    let empty = Stub::answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    let error = ControlPlane::new(&empty.url).unwrap().files().stat("/x").await.unwrap_err();
    assert!(matches!(error, Error::Decode { .. }), "{error:?}");
}

/// A server whose responses have this head and never end.
async fn endless(head: &'static str) -> Stub {
    Stub::serve(move |_, mut stream| {
        Box::pin(async move {
            let blanks = vec![b' '; 256 * 1024];
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(&blanks).await;
            }
        })
    })
    .await
}

#[tokio::test]
async fn an_endless_response_times_out() {
    let stub = endless("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n").await;
    let plane = ControlPlane::new(&stub.url).unwrap();
    let error = soon(plane.files().list("/")).await.unwrap_err();
    let Error::MessageTooLarge { limit, seen, .. } = error else { panic!("{error:?}") };
    assert!(seen > limit && seen < 2 * limit);

    let stub = endless("HTTP/1.1 500 Internal Server Error\r\ncontent-type: text/plain\r\n\r\n").await;
    let plane = ControlPlane::new(&stub.url).unwrap();
    let error = soon(plane.files().list("/")).await.unwrap_err();
    assert_eq!((error.http().unwrap().status, error.http().unwrap().body.len()), (500, 64 * 1024));
}

#[tokio::test]
async fn unknown_members_are_not_an_error() {
    let stub = Stub::answer(response("200 OK", "application/json", r#"{"status":"ok","uptime":5}"#)).await;
    let health: Health = ControlPlane::new(&stub.url).unwrap().health().check().await.unwrap();
    assert_eq!(health.other["uptime"], 5);
}

#[tokio::test]
async fn an_unknown_endpoint_is_a_problem() {
    let server = MockServer::start().await;
    let behind_a_prefix = ControlPlane::new(format!("{}/box/7/", server.url())).unwrap();
    let error = behind_a_prefix.health().check().await.unwrap_err();
    assert_eq!(error.problem().unwrap().detail.as_deref(), Some("endpoint not found"));
    assert_eq!(server.requests()[0].path, "/box/7/v1/health");
}

#[tokio::test]
async fn a_broken_connection_leaves_the_outcome_unknown() {
    let server = MockServer::builder().fault(Fault::PostResetAfterRead { execute: true }).start().await;
    let error = plane(&server).files().make_directory("/made").await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert!(error.maybe_executed() && !error.is_retryable());
    assert_eq!(server.requests().len(), 1, "the request is sent once");
}

#[test]
fn invalid_settings_are_reported() {
    for builder in [
        ControlPlane::builder("nonsense"),
        ControlPlane::builder("http://user:secret@h"),
        ControlPlane::builder("http://h").token(""),
        ControlPlane::builder("http://h").token("se\ncret"),
        ControlPlane::builder("http://h").header("bad name", "x"),
        ControlPlane::builder("http://h").header("x", "se\u{0}cret"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, Error::Config(_)) && !format!("{error:?}").contains("cret"), "{error:?}");
    }
}
