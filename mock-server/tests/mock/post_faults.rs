use std::error::Error;
use std::io;
use std::time::{Duration, Instant};

use mock_server::{Fault, MockServer, Reply, Script, Step};
use serde_json::json;

use crate::client::{Client, QUIET, SOON, ids, prompt, request};

/// Returns whether the peer reset the connection.
fn was_reset(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.kind() == io::ErrorKind::ConnectionReset;
        }
        cause = error.source();
    }
    false
}

#[tokio::test]
async fn a_forced_status_is_sent_unchanged_and_nothing_is_executed() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let before = server.last_event_id();
    for status in [202, 400, 404, 429, 500, 503, 504] {
        server.inject(Fault::post_status(status).on_method("session/prompt").times(1));
        let (seen, _) = client.post(prompt(status, &session, "hello")).await;
        assert_eq!(seen, status);
    }
    assert_eq!(server.fired("PostStatus"), 7);
    assert_eq!(server.last_event_id(), before);
    assert_eq!(client.result(prompt("p", &session, "hello")).await["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_forced_status_can_carry_a_body_and_headers_and_still_execute() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(Some(server.last_event_id())).await;
    let reply = Reply {
        body: "slow down".into(),
        content_type: Some("text/plain".into()),
        headers: vec![("retry-after".into(), "7".into())],
    };
    server.inject(
        Fault::PostStatus { status: 503, execute: true, reply: Some(reply) }
            .on_method("session/prompt")
            .times(1),
    );
    let response = client.send(&prompt("p", &session, "hello")).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &"7".parse().unwrap())
    );
    assert_eq!(response.text().await.unwrap(), "slow down");
    assert_eq!(events.until_response("p").await.last().unwrap().json()["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_hanging_post_is_executed_and_gets_no_response() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    server.inject(Fault::PostHangs.on_method("session/prompt").times(1));
    let message = prompt("p", &session, "hello");
    let post = client.send(&message);
    tokio::pin!(post);
    tokio::select! {
        answer = &mut post => panic!("answered: {answer:?}"),
        seen = events.until_response("p") => assert_eq!(seen.len(), 5),
    }
    assert!(tokio::time::timeout(QUIET, post).await.is_err());
    assert_eq!(server.fired("PostHangs"), 1);
}

#[tokio::test]
async fn a_reset_before_the_body_is_read_executes_nothing() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let before = server.last_event_id();
    server.inject(Fault::PostResetBeforeRead.times(1));
    let error = client.send(&prompt("p", &session, "hello")).await.unwrap_err();
    assert!(was_reset(&error), "{error:?}");
    let last = server.requests().pop().unwrap();
    assert!(last.body.is_empty());
    assert_eq!((server.fired("PostResetBeforeRead"), server.last_event_id()), (1, before));
}

#[tokio::test]
async fn a_reset_after_the_body_was_read_executes_or_not() {
    for execute in [true, false] {
        let server = MockServer::start().await;
        let client = Client::new(&server);
        let session = client.session().await;
        let mut events = client.stream(Some(server.last_event_id())).await;
        server.inject(Fault::PostResetAfterRead { execute }.on_method("session/prompt").times(1));
        let error = client.send(&prompt("p", &session, "hello")).await.unwrap_err();
        assert!(was_reset(&error), "{error:?}");
        assert_eq!(server.messages("session/prompt").len(), 1);
        if execute {
            assert!(events.until_response("p").await.len() > 1);
        } else {
            assert!(events.is_quiet().await);
        }
    }
}

#[tokio::test]
async fn a_response_can_arrive_on_the_stream_only() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    server.inject(Fault::ResponseOnStreamOnly.on_method("session/prompt").times(1));
    let (status, body) = client.post(prompt("p", &session, "hello")).await;
    assert_eq!((status, body), (202, json!(null)));
    assert_eq!(events.until_response("p").await.last().unwrap().json()["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_response_can_arrive_in_the_body_only() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    server.inject(Fault::ResponseInBodyOnly.on_method("session/prompt").times(1));
    assert_eq!(client.result(prompt("p", &session, "hello")).await["stopReason"], "end_turn");
    client.result(prompt("q", &session, "again")).await;
    let seen = client.stream(None).await.until_response("q").await;
    assert!(seen.iter().all(|event| event.json()["id"] != "p"));
    assert_eq!(ids(&seen), (1..=7).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_body_can_overtake_its_updates() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(Some(server.last_event_id())).await;
    let delay = Duration::from_millis(200);
    server.inject(Fault::BodyBeforeUpdates { delay }.on_method("session/prompt").times(1));
    assert_eq!(client.result(prompt("p", &session, "hello")).await["stopReason"], "end_turn");
    let answered = Instant::now();
    let seen = events.until_response("p").await;
    assert!(answered.elapsed() > delay / 2, "the updates were held back");
    assert_eq!(ids(&seen), [3, 4, 5]);
}

#[tokio::test]
async fn the_response_to_a_post_can_be_an_html_page() {
    let server = MockServer::builder().fault(Fault::HtmlBody.times(1)).start().await;
    let client = Client::new(&server);
    let response = client.send(&request(1, "initialize", json!({}))).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
    assert!(response.text().await.unwrap().starts_with("<!DOCTYPE html>"));
}

#[tokio::test]
async fn any_request_can_be_redirected() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    server.inject(Fault::Redirect { to: "http://127.0.0.1:9/elsewhere".into() }.times(2));
    let post = client.send(&request(1, "initialize", json!({}))).await.unwrap();
    let get = client.get(None).await;
    for response in [post, get] {
        assert_eq!(response.status(), 307);
        assert_eq!(response.headers()["location"], "http://127.0.0.1:9/elsewhere");
    }
}

#[tokio::test]
async fn a_token_expires_after_some_requests_and_a_new_one_is_accepted() {
    let server =
        MockServer::builder().token("old").fault(Fault::TokenExpiresAfter { requests: 2 }).start().await;
    let status = async |token: &str| {
        let client = Client::new(&server);
        let get = client.http.get(&client.url).bearer_auth(token).header("accept", "text/event-stream");
        get.send().await.unwrap().status().as_u16()
    };
    let mut seen = Vec::new();
    for token in ["old", "wrong", "old", "old", "old"] {
        seen.push(status(token).await);
    }
    assert_eq!(seen, [200, 401, 200, 401, 401]);
    server.clear_faults();
    server.accept_token("new");
    assert_eq!((status("new").await, status("old").await), (200, 401));
    assert_eq!(server.fired("TokenExpiresAfter"), 1);
}

#[tokio::test]
async fn a_slow_start_holds_requests_and_then_serves_them() {
    let delay = Duration::from_millis(150);
    // The delay counts from the start of the server, which is later than this.
    let started = Instant::now();
    let server = MockServer::builder().fault(Fault::SlowStart { delay }).start().await;
    Client::new(&server).session().await;
    assert!(started.elapsed() >= delay);
    assert_eq!(server.fired("SlowStart"), 1);
}

#[tokio::test]
async fn a_delete_can_hang_although_it_was_executed() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    client.session().await;
    let events = client.stream(None).await;
    server.inject(Fault::DeleteHangs.times(1));
    let delete = client.http.delete(&client.url).send();
    tokio::pin!(delete);
    tokio::select! {
        answer = &mut delete => panic!("answered: {answer:?}"),
        (_, end) = events.bytes() => assert!(end.is_ok(), "the stream ends cleanly"),
    }
    assert!(tokio::time::timeout(QUIET, delete).await.is_err());
}

#[tokio::test]
async fn a_fault_can_skip_matches_be_limited_to_a_path_and_be_deactivated() {
    let server =
        MockServer::builder().agent("mock", Script::steps(vec![Step::Say("x".into())])).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let rule = server.inject(Fault::post_status(500).on_path("/v1/rpc").on_verb("post").skip(1));
    let mut seen = Vec::new();
    for id in 0..3 {
        seen.push(client.post(prompt(id, &session, "x")).await.0);
    }
    server.lift(rule);
    seen.push(client.post(prompt(9, &session, "x")).await.0);
    assert_eq!(seen, [200, 500, 500, 200]);
    assert!(server.wait_for(|requests| requests.len() == 6, SOON).await);
}
