//! Every limit at, below and above it, and a server that exhausts nothing.

use std::time::Duration;

use acp_http_client::{
    AcpHttpClient, AgentHandler, AgentRequest, Error, Event, Events, Limits, Origin, ReconnectPolicy,
    RpcError,
};
use sdk_tests::{Collected, collect_until, eventually, handshake, session, within};
use serde_json::{Value, json};

use super::raw::{RawServer, Reply, result};

/// A handler that never responds.
struct Silent;

impl AgentHandler for Silent {
    async fn other(&self, _: AgentRequest) -> Result<Value, RpcError> {
        std::future::pending().await
    }
}

fn ask(server: &RawServer, count: usize) {
    for number in 0..count {
        server.event(&json!({"jsonrpc": "2.0", "id": number, "method": "_x/y", "params": {"n": number}}));
    }
    server.event(&json!({"jsonrpc": "2.0", "method": "_x/end"}));
}

async fn until_end(events: &mut Events) -> Collected {
    let is_end = |event: &Event| matches!(event, Event::Notification(n) if n.method == "_x/end");
    collect_until(events, "the last message", is_end).await
}

/// Responses to agent requests that the server has received.
fn responses(server: &RawServer) -> Vec<Value> {
    let posts = server.received().into_iter().map(|request| request.body);
    posts.filter(|body| body["method"].is_null() && !body["id"].is_null()).collect()
}

fn lost(seen: &Collected) -> usize {
    let lost =
        |event: &&Event| matches!(event, Event::ResponseLost { error: Error::TooManyRequests { .. }, .. });
    seen.events.iter().filter(lost).count()
}

/// A server that never completes the POST of a response.
async fn deaf() -> RawServer {
    RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"].is_string() => Reply::result(body, result(body)),
        "POST" => Reply::Hang,
        _ => Reply::status(202),
    })
    .await
}

#[tokio::test]
async fn thousands_of_agent_requests_open_a_few_connections_and_the_client_still_works() {
    let server = deaf().await;
    let limits = Limits::default().open_requests(100).response_posts(8).refusals(50);
    let client = AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
    let mut events = client.events();
    session(&client).await;
    ask(&server, 20_000);
    let mut seen = until_end(&mut events).await;
    seen.drain(&mut events);
    // What came before the first quiet moment is taken for the backlog of the server, and is not answered.
    let live = |event: &&Event| matches!(event, Event::AgentRequest { request, .. } if request.meta.origin == Origin::Live);
    let live = seen.events.iter().filter(live).count();
    assert!(live > 10_000);
    assert_eq!(lost(&seen), live - 150, "each of the others is reported");
    eventually("the responses under way", || responses(&server).len() >= 12).await;
    within("another request", handshake(&client)).await.unwrap();
    // Eight responses, four refusals, the stream, and what the client calls.
    assert!(server.most_connections() <= 8 + 4 + 1 + 2, "{} connections", server.most_connections());
    assert_eq!(responses(&server).len(), 12);
    let tasks = client.diagnostics().tasks;
    assert!(tasks <= 160, "{tasks} tasks");
}

#[tokio::test]
async fn responses_to_the_agent_are_posted_up_to_the_limit_at_once() {
    for count in [2, 3, 4] {
        let server = deaf().await;
        let limits = Limits::default().response_posts(3);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        let mut events = client.events();
        session(&client).await;
        ask(&server, count);
        until_end(&mut events).await;
        eventually("the responses", || responses(&server).len() >= count.min(3)).await;
        within("another request", handshake(&client)).await.unwrap();
        assert_eq!(responses(&server).len(), count.min(3), "of {count}");
    }
}

#[tokio::test]
async fn agent_requests_above_the_limit_are_refused() {
    for count in [2, 3, 4] {
        let server = RawServer::obliging().await;
        let limits = Limits::default().open_requests(3);
        let client = AcpHttpClient::builder(&server.url)
            .all_agent_requests(true)
            .limits(limits)
            .handler(Silent)
            .build()
            .unwrap();
        let mut events = client.events();
        session(&client).await;
        ask(&server, count);
        until_end(&mut events).await;
        let refused = count - count.min(3);
        eventually("the refusals", || responses(&server).len() >= refused).await;
        assert_eq!(responses(&server).iter().filter(|body| body["error"]["code"] == -32603).count(), refused);
        assert_eq!(client.diagnostics().open_agent_requests.len(), count.min(3));
    }
}

#[tokio::test]
async fn agent_requests_keep_their_order_with_updates_up_to_every_limit() {
    for limit in [3, 3_000] {
        let server = RawServer::obliging().await;
        let limits = Limits::default().open_requests(limit);
        let (builder, mut requests) =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).agent_requests();
        let client = builder.build().unwrap();
        let mut events = client.events();
        session(&client).await;
        ask(&server, limit);
        // All are there before the first one is read.
        let seen = until_end(&mut events).await;
        let published = seen.events.iter().filter_map(|event| match event {
            Event::AgentRequest { id, .. } => Some(id.to_string()),
            _ => None,
        });
        let queued: Vec<_> = std::iter::from_fn(|| requests.try_recv()).collect();
        assert_eq!(queued.len(), limit);
        assert!(queued.iter().map(|(request, _)| request.id().to_string()).eq(published));
    }
}

#[tokio::test]
async fn agent_requests_above_the_limit_of_bytes_are_refused() {
    for (limit, refused) in [(2 * 7 - 1, 1), (2 * 7, 0), (2 * 7 + 1, 0)] {
        let server = RawServer::obliging().await;
        let limits = Limits::default().open_request_bytes(limit);
        let client = AcpHttpClient::builder(&server.url)
            .all_agent_requests(true)
            .limits(limits)
            .handler(Silent)
            .build()
            .unwrap();
        let mut events = client.events();
        session(&client).await;
        // The parameters `{"n":0}` are seven bytes.
        ask(&server, 2);
        until_end(&mut events).await;
        eventually("the refusals", || responses(&server).len() >= refused).await;
        assert_eq!(client.diagnostics().open_agent_requests.len(), 2 - refused, "{limit}");
    }
}

/// A handler whose responses are `SIZED` bytes long.
struct Sized;

const SIZED: usize = 1000;

impl AgentHandler for Sized {
    async fn other(&self, request: AgentRequest) -> Result<Value, RpcError> {
        let empty = json!({"jsonrpc": "2.0", "id": request.id(), "result": ""}).to_string();
        Ok("x".repeat(SIZED - empty.len()).into())
    }
}

#[tokio::test]
async fn responses_under_way_above_the_limit_of_bytes_are_replaced_by_errors() {
    for (limit, replaced) in [(2 * SIZED - 1, 1), (2 * SIZED, 0), (2 * SIZED + 1, 0)] {
        // The first responses are never taken, so that they stay under way.
        let server = deaf().await;
        let limits = Limits::default().response_bytes(limit);
        let client = AcpHttpClient::builder(&server.url)
            .all_agent_requests(true)
            .limits(limits)
            .handler(Sized)
            .build()
            .unwrap();
        let mut events = client.events();
        session(&client).await;
        ask(&server, 2);
        eventually("both responses", || responses(&server).len() >= 2).await;
        let errors = responses(&server).iter().filter(|body| body["error"]["code"] == -32603).count();
        assert_eq!(errors, replaced, "{limit}");
        let mut seen = until_end(&mut events).await;
        seen.drain(&mut events);
        let too_large = |event: &&Event| matches!(event, Event::ResponseLost { error: Error::ResponseTooLarge { size: SIZED, limit: l }, .. } if *l == limit);
        assert_eq!(seen.events.iter().filter(too_large).count(), replaced, "{limit}");
    }
}

#[tokio::test]
async fn requests_above_the_limit_are_refused_only_if_the_filter_selects_them() {
    let server = RawServer::obliging().await;
    let limits = Limits::default().open_requests(0);
    let client = AcpHttpClient::builder(&server.url)
        .all_agent_requests(true)
        .limits(limits)
        .refuse_if(|params| params.as_str().contains("1"))
        .build()
        .unwrap();
    let mut events = client.events();
    session(&client).await;
    ask(&server, 3);
    let seen = until_end(&mut events).await;
    eventually("the refusal", || !responses(&server).is_empty()).await;
    within("another request", handshake(&client)).await.unwrap();
    let refused: Vec<_> = responses(&server).iter().map(|body| body["id"].clone()).collect();
    assert_eq!(refused, [1]);
    assert_eq!(lost(&seen), 0, "the others were not for this client");
}

#[tokio::test]
async fn refusals_above_the_limit_are_reported() {
    for count in [2, 3, 4] {
        let server = deaf().await;
        let limits = Limits::default().open_requests(0).refusals(3);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        let mut events = client.events();
        session(&client).await;
        ask(&server, count);
        let seen = until_end(&mut events).await;
        assert_eq!(lost(&seen), count - count.min(3));
        eventually("the refusals", || responses(&server).len() >= count.min(3)).await;
    }
}

#[tokio::test]
async fn a_body_at_the_limit_is_read_and_a_larger_one_is_a_typed_error() {
    let server = RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "_x/sized" => {
            let Reply::Response(status, headers, body) = Reply::result(body, json!("")) else {
                unreachable!()
            };
            let padding = " ".repeat(1000 - body.len());
            Reply::Response(status, headers, body + &padding)
        }
        _ => Reply::result(body, result(body)),
    })
    .await;
    for (limit, fits) in [(999, false), (1000, true), (1001, true)] {
        let limits = Limits::default().message(limit);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        let outcome = within("the response", client.request::<Value>("_x/sized", &json!({}))).await;
        match outcome {
            Ok(_) => assert!(fits, "{limit}"),
            Err(error) => {
                assert!(
                    !fits && matches!(error, Error::MessageTooLarge { limit: l, .. } if l == limit),
                    "{error:?}"
                )
            }
        }
    }
}

#[tokio::test]
async fn the_body_of_a_failed_response_is_read_up_to_the_limit() {
    let server = RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "_x/fails" => Reply::Response(500, Vec::new(), "x".repeat(1000)),
        _ => Reply::result(body, result(body)),
    })
    .await;
    for (limit, read) in [(999, 999), (1000, 1000), (1001, 1000)] {
        let limits = Limits::default().error_body(limit);
        let client = AcpHttpClient::builder(&server.url).limits(limits).build().unwrap();
        let error = within("the error", client.request::<Value>("_x/fails", &json!({}))).await.unwrap_err();
        assert!(matches!(&error, Error::Http(http) if http.body.len() == read), "{limit} {error:?}");
    }
}

#[tokio::test]
async fn an_event_at_the_limit_is_delivered_and_a_larger_one_is_reported() {
    let message = json!({"jsonrpc": "2.0", "method": "_x/sized", "params": "x".repeat(2000)}).to_string();
    for (limit, fits) in [(message.len() - 1, false), (message.len(), true), (message.len() + 1, true)] {
        let server = RawServer::obliging().await;
        let limits = Limits::default().message(limit);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        let mut events = client.events();
        session(&client).await;
        server.send(format!("data: {message}\n\n"));
        server.event(&json!({"jsonrpc": "2.0", "method": "_x/end"}));
        let seen = until_end(&mut events).await;
        let sized = |event: &Event| matches!(event, Event::Notification(n) if n.method == "_x/sized");
        assert_eq!(seen.events.iter().any(sized), fits, "{limit}");
        let too_large = |event: &Event| matches!(event, Event::TooLarge { .. });
        assert_eq!(seen.events.iter().any(too_large), !fits, "{limit}");
    }
}

#[tokio::test]
async fn cookies_above_the_limit_replace_the_oldest() {
    for count in [4, 5, 6] {
        let server = RawServer::start(move |method, body| match method {
            "GET" => Reply::Stream,
            _ => {
                let reply = Reply::result(body, result(body));
                (0..count).fold(reply, |reply, n| reply.header("set-cookie", format!("c{n}={n}; Path=/")))
            }
        })
        .await;
        let limits = Limits::default().cookies(5);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        session(&client).await;
        let received = server.received();
        let second = received.iter().filter(|request| request.method == "POST").nth(1).unwrap();
        let cookies = String::from_utf8(second.header("cookie").unwrap().to_vec()).unwrap();
        let mut cookies: Vec<_> = cookies.split("; ").collect();
        cookies.sort_unstable();
        let expected: Vec<_> = (count - count.min(5)..count).map(|n| format!("c{n}={n}")).collect();
        assert_eq!(cookies, expected);
    }
}

#[tokio::test]
async fn a_connection_id_is_used_up_to_the_limit_and_not_above() {
    for (bytes, used) in [(63, true), (64, true), (65, false)] {
        let server = RawServer::start(move |method, body| match method {
            "GET" => Reply::Stream,
            _ => Reply::result(body, result(body)).header("x-acp-connection-id", "c".repeat(bytes)),
        })
        .await;
        let limits = Limits::default().id(64);
        let dialect = acp_http_client::Dialect::EARLY;
        let client = AcpHttpClient::builder(&server.url)
            .all_agent_requests(true)
            .dialect(dialect)
            .limits(limits)
            .build()
            .unwrap();
        within("the handshake", handshake(&client)).await.unwrap();
        within("another request", client.request::<Value>("_x/y", &json!({})).into_future()).await.unwrap();
        let posts = server.received().into_iter().filter(|request| request.method == "POST");
        let sent = posts.skip(1).any(|request| request.header("x-acp-connection-id").is_some());
        assert_eq!(sent, used, "{bytes}");
    }
}

/// A server that closes the connection while it is sent more than this.
async fn closing(limit: usize) -> RawServer {
    RawServer::start(move |method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body.is_null() => Reply::CloseAfter(limit),
        "POST" if body["method"].is_string() => Reply::result(body, result(body)),
        _ => Reply::status(202),
    })
    .await
}

/// More than the buffers of a connection hold.
const LARGE: usize = 32 << 20;

#[tokio::test]
async fn a_broken_upload_is_not_a_payload_that_is_too_large() {
    let server = closing(64 << 10).await;
    let client = AcpHttpClient::new(&server.url).unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let upload = client.request::<Value>("_x/upload", &json!({"text": "x".repeat(LARGE)}));
    let error = within("the upload", upload).await.unwrap_err();
    assert!(
        matches!(&error, Error::UploadInterrupted { method, sent, size, .. } if method == "_x/upload" && *sent < *size && *size > LARGE),
        "{error:?}"
    );
    assert!(error.is_retryable() && !error.maybe_executed());
    within("the next request", handshake(&client)).await.unwrap();
}

#[tokio::test]
async fn a_413_that_was_read_is_a_payload_that_is_too_large() {
    let server = RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "_x/upload" => Reply::status(413),
        _ => Reply::result(body, result(body)),
    })
    .await;
    let client = AcpHttpClient::new(&server.url).unwrap();
    let error = within("the upload", client.request::<Value>("_x/upload", &json!({}))).await.unwrap_err();
    assert!(
        matches!(&error, Error::PayloadTooLarge { source: Some(http), .. } if http.status == 413),
        "{error:?}"
    );
    assert!(!error.is_retryable() && !error.maybe_executed());
}

/// A handler whose result is large.
struct Large;

impl AgentHandler for Large {
    async fn other(&self, _: AgentRequest) -> Result<Value, RpcError> {
        Ok(json!("x".repeat(LARGE)))
    }
}

#[tokio::test]
async fn an_agent_whose_response_cannot_be_uploaded_gets_an_error_instead() {
    let server = closing(64 << 10).await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(10));
    let client = AcpHttpClient::builder(&server.url)
        .all_agent_requests(true)
        .reconnect(policy)
        .handler(Large)
        .build()
        .unwrap();
    let mut events = client.events();
    session(&client).await;
    ask(&server, 1);
    let is_lost =
        |event: &Event| matches!(event, Event::ResponseLost { error: Error::UploadInterrupted { .. }, .. });
    collect_until(&mut events, "the report", is_lost).await;
    eventually("the error", || responses(&server).iter().any(|body| body["error"]["code"] == -32603)).await;
}

#[tokio::test]
async fn retry_after_is_read_on_post_get_and_delete() {
    let date = "Sat, 06 Nov 2094 08:49:37 GMT";
    for (value, seconds) in [("7", 7), (date, 300), ("100000", 300), ("0", 0)] {
        let busy = move |method: &str, body: &Value| match method {
            "POST" if body["method"] == "initialize" => Reply::result(body, result(body)),
            _ => Reply::status(503).header("retry-after", value),
        };
        let server = RawServer::start(busy).await;
        let policy = ReconnectPolicy::default().max_attempts(1).cap(Duration::from_millis(50));
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).reconnect(policy).build().unwrap();
        let wait = Some(Duration::from_secs(seconds));
        let ended = within("the handshake", handshake(&client)).await;
        if ended.is_ok() {
            // The request would be sent again within its time limit.
            let request = client.request::<Value>("_x/y", &json!({})).timeout(Duration::from_millis(500));
            let error = within("POST", request).await.unwrap_err();
            assert_eq!(error.retry_after(), wait, "POST {value}: {error:?}");
        }
        let reason = within("GET", client.ended()).await;
        let acp_http_client::EndReason::RetriesExhausted { last, .. } = &reason else { panic!("{reason:?}") };
        assert_eq!(last.retry_after(), wait, "GET {value}");
        match within("DELETE", client.close()).await {
            acp_http_client::CloseOutcome::Unconfirmed(error) => assert_eq!(error.retry_after(), wait),
            other => panic!("{other:?}"),
        }
    }
}
