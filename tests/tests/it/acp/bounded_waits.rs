//! Waits that end: cancels, closes, and streams that do not exist.

use std::{
    future::IntoFuture,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, CloseOutcome, ConnectionState, Dialect, EndReason, Error, Event,
    Origin, Phase, ReconnectPolicy, Timeouts,
    schema::v1::{CancelNotification, LoadSessionRequest, SessionId},
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
async fn a_cancel_is_sent_even_if_its_caller_goes_away() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("session/prompt" | "session/cancel")) => Reply::status(202),
        (_, Some(_)) => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
        _ => Reply::status(202),
    })
    .await;
    let client = client(&server, Dialect::EARLY).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "go"));
    eventually("the prompt", || count(&server, "session/prompt") == 1).await;
    let mut cancel = client.cancel(CancelNotification::new("s"));
    assert!(futures::poll!(&mut cancel).is_pending());
    drop(cancel);
    eventually("the cancel", || count(&server, "session/cancel") >= 1).await;
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

/// The JSON-RPC response to the last message with this method.
fn respond(server: &RawServer, method: &str, result: Value) {
    let request = server.received().into_iter().rfind(|request| request.body["method"] == method).unwrap();
    server.event(&json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result}));
}

#[tokio::test]
async fn a_prompt_that_follows_while_a_cancel_is_open_is_not_cancelled() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        // The response to the agent arrives, and its status does not.
        (_, None) => Reply::Hang,
        (_, Some("session/prompt" | "session/cancel")) => Reply::status(202),
        (_, Some(_)) => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
    })
    .await;
    let (builder, mut requests) = client(&server, Dialect::EARLY).agent_requests();
    let client = builder.build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), "one"));
    eventually("the prompt", || count(&server, "session/prompt") == 1).await;
    let params = json!({"sessionId": "s", "toolCall": {"toolCallId": "t"}, "options": []});
    server
        .event(&json!({"jsonrpc": "2.0", "id": 1, "method": "session/request_permission", "params": params}));
    let _open = within("the agent request", requests.recv()).await.unwrap();
    let cancel = tokio::spawn(client.cancel(CancelNotification::new("s")));
    let answered = || {
        server.received().iter().any(|request| request.method == "POST" && request.body["method"].is_null())
    };
    eventually("the response to the agent", answered).await;
    // The agent ends its turn with the permission that was cancelled, before the cancel itself is sent.
    respond(&server, "session/prompt", json!({"stopReason": "cancelled"}));
    within("the turn", turn).await.unwrap().unwrap();
    let next = tokio::spawn(prompt(&client, &SessionId::new("s"), "two"));
    eventually("the next prompt", || count(&server, "session/prompt") == 2).await;
    within("the cancel", cancel).await.unwrap().unwrap();
    respond(&server, "session/prompt", json!({"stopReason": "end_turn"}));
    within("the next turn", next).await.unwrap().unwrap();
    let methods: Vec<_> =
        server.received().iter().filter_map(|one| Some(one.body["method"].as_str()?.to_owned())).collect();
    let last = methods.iter().rposition(|method| method == "session/cancel").unwrap();
    let next = methods.iter().rposition(|method| method == "session/prompt").unwrap();
    assert!(last < next, "a cancel follows the next prompt: {methods:?}");
}

#[tokio::test]
async fn a_post_without_a_status_does_not_block_its_session_for_ever() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("session/prompt")) if body["params"]["prompt"][0]["text"] == "hangs" => Reply::Hang,
        (_, Some("session/prompt" | "_x/note")) => Reply::status(202),
        _ => Reply::result(body, result(body)).header("acp-connection-id", "c"),
    })
    .await;
    let timeouts = Timeouts::default().headers(Duration::from_millis(100));
    let client = client(&server, Dialect::OFFICIAL).timeouts(timeouts).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let hanging = tokio::spawn(prompt(&client, &SessionId::new("s"), "hangs"));
    eventually("the first prompt", || count(&server, "session/prompt") == 1).await;
    let next = tokio::spawn(prompt(&client, &SessionId::new("s"), "next"));
    eventually("the next prompt", || count(&server, "session/prompt") == 2).await;
    within("the note", client.notify("_x/note", &json!({"sessionId": "s"}))).await.unwrap();
    // The stream may still bring the response of the first one.
    assert!(
        client.diagnostics().pending.iter().any(|pending| pending.unconfirmed),
        "{:?}",
        client.diagnostics()
    );
    for request in server.received().iter().filter(|request| request.body["method"] == "session/prompt") {
        server.event(
            &json!({"jsonrpc": "2.0", "id": request.body["id"], "result": {"stopReason": "end_turn"}}),
        );
    }
    within("the first turn", hanging).await.unwrap().unwrap();
    within("the next turn", next).await.unwrap().unwrap();
}

/// A server that reads no message over 64 KiB to its end.
async fn unread() -> RawServer {
    RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        ("POST", None) => Reply::StopAfter(64 * 1024),
        (_, Some("session/cancel")) => Reply::status(202),
        _ => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
    })
    .await
}

#[tokio::test]
async fn a_prompt_whose_upload_does_not_end_is_withdrawn_by_a_cancel() {
    for dropped in [false, true] {
        let server = unread().await;
        let client = client(&server, Dialect::EARLY).build().unwrap();
        within("the handshake", handshake(&client)).await.unwrap();
        let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), &"x".repeat(64 << 20)));
        eventually("the upload", || server.stopped() == 1).await;
        if dropped {
            turn.abort();
            eventually("the outbox to be free", || client.diagnostics().outboxes == 0).await;
        } else {
            let started = Instant::now();
            within("the cancel", client.cancel(CancelNotification::new("s"))).await.unwrap();
            let error = within("the turn", turn).await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Withdrawn { .. }), "{error:?}");
            assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        }
        assert_eq!((client.diagnostics().outboxes, count(&server, "session/cancel")), (0, 0));
    }
}

#[tokio::test]
async fn a_notification_does_not_wait_for_ever_for_an_upload_that_does_not_end() {
    let server = unread().await;
    let timeouts = Timeouts::default().headers(Duration::from_millis(100));
    let client = client(&server, Dialect::EARLY).timeouts(timeouts).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("s"), &"x".repeat(64 << 20)));
    eventually("the upload", || server.stopped() == 1).await;
    let note = client.notify("_x/note", &json!({"sessionId": "s"}));
    let error = within("the note", note).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout(timeout) if timeout.phase == Phase::Outbox), "{error:?}");
    assert!(!error.maybe_executed(), "nothing was sent");
    // So does a request with a time limit.
    let request = client.request::<Value>("_x/call", &json!({"sessionId": "s"}));
    let error = within("the call", request.timeout(Duration::from_millis(50))).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout(timeout) if timeout.phase == Phase::Outbox), "{error:?}");
    assert!(!error.maybe_executed(), "nothing was sent");
    turn.abort();
}

#[tokio::test]
async fn a_turn_that_was_ended_and_is_dropped_without_another_poll_frees_its_session() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("session/prompt")) => Reply::status(202),
        _ => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
    })
    .await;
    let client = client(&server, Dialect::EARLY).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let mut turn = prompt(&client, &SessionId::new("s"), "go");
    let accepted = || client.diagnostics().pending.iter().any(|pending| pending.unconfirmed);
    while !accepted() {
        let _ = tokio::time::timeout(Duration::from_millis(10), &mut turn).await;
    }
    assert_eq!(client.control().fail_requests(None, std::io::Error::other("gone")), 1);
    drop(turn);
    assert_eq!(client.diagnostics().outboxes, 0);
    assert!(client.diagnostics().streams.iter().all(|stream| stream.waiting == 0));
}

#[tokio::test]
async fn a_load_that_was_ended_leaves_no_history_behind() {
    let server = RawServer::start(|method, body| match (method, body["method"].as_str()) {
        ("GET", _) => Reply::Stream,
        (_, Some("session/load")) => Reply::status(202),
        _ => Reply::result(body, result(body)).header("x-acp-connection-id", "c"),
    })
    .await;
    let client = client(&server, Dialect::EARLY).build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let load = tokio::spawn(client.load_session(LoadSessionRequest::new("s", "/")).into_future());
    eventually("the load", || client.diagnostics().pending.iter().any(|pending| pending.unconfirmed)).await;
    assert_eq!(client.control().fail_requests(None, std::io::Error::other("gone")), 1);
    within("the load", load).await.unwrap().unwrap_err();
    let mut events = client.events();
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "new"}});
    server.event(&json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}));
    let seen = collect_until(&mut events, "the update", |event| matches!(event, Event::Update(_))).await;
    assert!(matches!(seen.events.last(), Some(Event::Update(update)) if update.meta.origin == Origin::Live));
}
