//! Waits that end: cancels, closes, and streams that do not exist.

use std::{
    future::IntoFuture,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, CloseOutcome, ConnectionState, Dialect, EndReason, Error, Event,
    ReconnectPolicy, Timeouts,
    schema::v1::{CancelNotification, SessionId},
};
use sdk_tests::{collect_until, eventually, handshake, prompt, within};
use serde_json::{Value, json};

use super::raw::{RawServer, Reply, result};

/// Longer than any test runs.
const FOREVER: Duration = Duration::from_secs(3600);

fn client(server: &RawServer, dialect: Dialect) -> AcpHttpClientBuilder {
    AcpHttpClient::builder(&server.url).dialect(dialect)
}

/// How many messages with this method the server has received.
fn count(server: &RawServer, method: &str) -> usize {
    server.received().iter().filter(|request| request.body["method"] == method).count()
}

#[tokio::test]
async fn a_close_sends_a_delete_although_a_later_post_was_refused() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("_x/refused")) => Reply::status(503),
        (_, Some(_)) => Reply::result(body, result(body)),
        _ => Reply::status(204),
    })
    .await;
    let client = client(&server, Dialect::RPC).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let error = within("the refusal", client.request::<Value>("_x/refused", &json!({}))).await.unwrap_err();
    assert!(!error.maybe_executed(), "{error:?}");
    let outcome = within("the close", client.close()).await;
    assert!(matches!(outcome, CloseOutcome::Confirmed), "{outcome:?}");
    assert_eq!(server.received().iter().filter(|request| request.method == "DELETE").count(), 1);
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_responses_to_the_agent_that_hang() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("session/prompt")) | (_, None) => Reply::Hang,
        (_, Some("session/cancel")) => Reply::status(202),
        (_, Some(_)) => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
    })
    .await;
    let mut timeouts = Timeouts::default();
    timeouts.headers = FOREVER;
    let (builder, mut requests) = client(&server, Dialect::EARLY).timeouts(timeouts).agent_requests();
    let client = builder.build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
    eventually("the prompt", || count(&server, "session/prompt") == 1).await;
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "t"}, "options": []});
    let ask = json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params});
    server.event(&ask);
    let _open = within("the agent request", requests.recv()).await.unwrap();
    within("the cancel", client.cancel(CancelNotification::new("s"))).await.unwrap();
    assert_eq!(count(&server, "session/cancel"), 1);
    turn.abort();
}

#[tokio::test]
async fn cancels_of_dropped_requests_do_not_wait_for_each_other() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("$/cancel_request")) => Reply::Hang,
        (_, Some("_x/slow")) => Reply::status(202),
        _ => Reply::result(body, result(body)),
    })
    .await;
    let client = client(&server, Dialect::RPC).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let mut calls = Vec::new();
    for number in 1..=5 {
        calls.push(tokio::spawn(client.request::<Value>("_x/slow", &json!({})).into_future()));
        let accepted = || client.diagnostics().pending.iter().filter(|pending| pending.unconfirmed).count();
        eventually("the request to be accepted", || accepted() == number).await;
    }
    calls.iter().for_each(|call| call.abort());
    eventually("the cancels", || count(&server, "$/cancel_request") == 5).await;
    // One stream, and five connections that hang. One after the other, they would have been two.
    assert!(server.most_connections() >= 6, "{}", server.most_connections());
}

#[tokio::test]
async fn a_stream_that_does_not_exist_yet_is_tried_less_and_less_often() {
    let server = RawServer::start(|method, _| match method {
        "GET" => Reply::status(404),
        // The agent is being installed.
        _ => Reply::Hang,
    })
    .await;
    let client = client(&server, Dialect::RELEASED).bootstrap_query("agent", "mock").build().unwrap();
    let started = Instant::now();
    let hello = tokio::spawn(client.initialize(AcpHttpClient::initialize_request()).into_future());
    eventually("six attempts", || server.received().iter().filter(|get| get.method == "GET").count() >= 6)
        .await;
    // 20, 40, 80, 160 and 320 ms lie between them.
    assert!(started.elapsed() >= Duration::from_millis(600), "{:?}", started.elapsed());
    hello.abort();
}

#[tokio::test]
async fn a_stream_that_stays_missing_ends_the_connection_after_the_time_that_the_option_names() {
    for (missing, gets) in [(Duration::ZERO, 1), (Duration::from_millis(50), 2)] {
        let server = RawServer::start(|method, body| match method {
            "GET" => Reply::status(404),
            _ => Reply::result(body, result(body)),
        })
        .await;
        let timeouts = Timeouts::default().stream_missing(missing);
        let builder = client(&server, Dialect::RELEASED).timeouts(timeouts);
        let client = builder.bootstrap_query("agent", "mock").build().unwrap();
        let _ = within("the handshake", handshake(&client)).await;
        let reason = within("the end", client.ended()).await;
        assert!(matches!(reason, EndReason::ServerGone(_)), "{reason:?}");
        let seen = server.received().iter().filter(|request| request.method == "GET").count();
        assert!(seen >= gets && seen <= 10, "{seen} with {missing:?}");
    }
}

#[tokio::test]
async fn a_session_stream_that_stays_missing_fails_the_requests_of_its_session() {
    for (missing, refused) in [(Duration::ZERO, true), (FOREVER, false)] {
        let gets = AtomicUsize::new(0);
        let server = RawServer::start(move |method, body| match method {
            // The stream of the connection, seven refusals, and then the stream of the session. The behaviour is looked
            // up twice for each request.
            "GET" => match gets.fetch_add(1, Ordering::AcqRel) / 2 {
                1..=7 => Reply::status(404),
                _ => Reply::Stream,
            },
            _ if body["method"] == "session/prompt" => Reply::status(202),
            _ => Reply::result(body, result(body)).header("acp-connection-id", "c"),
        })
        .await;
        let quick = ReconnectPolicy::default().base(Duration::from_millis(1));
        let timeouts = Timeouts::default().stream_missing(missing);
        let client = client(&server, Dialect::OFFICIAL).reconnect(quick).timeouts(timeouts).build().unwrap();
        let mut events = client.events();
        within("the handshake", handshake(&client)).await.unwrap();
        eventually("the stream", || client.state() == ConnectionState::Live).await;
        let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
        if refused {
            let error = within("the prompt", turn).await.unwrap().unwrap_err();
            assert!(matches!(error, Error::ConnectionLost { .. } | Error::Http(_)), "{error:?}");
            let lost = |event: &Event| matches!(event, Event::StreamLost { .. });
            collect_until(&mut events, "the report", lost).await;
        } else {
            let live = || client.diagnostics().streams.iter().filter(|stream| stream.state == "live").count();
            eventually("both streams", || live() == 2).await;
            turn.abort();
        }
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_no_session_stream() {
    let server = RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        _ if body["method"] == "session/prompt" => Reply::Hang,
        _ => Reply::result(body, result(body)).header("acp-connection-id", "c"),
    })
    .await;
    let client = client(&server, Dialect::OFFICIAL).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
    eventually("the prompt", || count(&server, "session/prompt") == 1).await;
    assert_eq!(client.diagnostics().streams.len(), 2);
    turn.abort();
    eventually("the stream to be closed", || client.diagnostics().streams.len() == 1).await;
}
