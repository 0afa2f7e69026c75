//! The dialects: one client, and the same promises on each of them.

use std::time::Duration;

use acp_http_client::{
    AcpHttpClient, AcpHttpClientBuilder, Continuity, Dialect, EndReason, Error, Event, ReconnectPolicy,
    Timeouts,
    schema::v1::{CancelNotification, CloseSessionRequest, LoadSessionRequest, NewSessionRequest},
};
use mock_server::{Cut, Fault, MockServer, Script, State, Step};
use sdk_tests::{
    acp_server, client, collect_until, eventually, handshake, numbered, prompt, session, texts, within,
};
use serde_json::json;

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

fn quick() -> ReconnectPolicy {
    ReconnectPolicy::default().base(Duration::from_millis(1)).cap(Duration::from_millis(20))
}

fn bootstrap(server: &MockServer) -> AcpHttpClientBuilder {
    client(server).dialect(Dialect::RELEASED).path("/v1/acp/server-1").bootstrap_query("agent", "mock")
}

fn official(server: &MockServer) -> AcpHttpClientBuilder {
    client(server).dialect(Dialect::OFFICIAL).reconnect(quick())
}

fn with_id(server: &MockServer) -> AcpHttpClientBuilder {
    client(server).dialect(Dialect::EARLY)
}

async fn a_whole_session(client: &AcpHttpClient, what: &str) {
    let mut events = client.events();
    let id = session(client).await;
    for turn in 0..3 {
        within(what, prompt(client, &id, "go")).await.unwrap();
        assert_eq!(texts(&mut events), expected(100), "turn {turn} on {what}");
    }
    let other = client.new_session(NewSessionRequest::new("/")).await.unwrap().session_id;
    let turns = tokio::join!(prompt(client, &id, "go"), prompt(client, &other, "go"));
    turns.0.unwrap();
    turns.1.unwrap();
    assert_eq!(texts(&mut events).len(), 200, "two sessions at once on {what}");
}

#[tokio::test]
async fn every_dialect_carries_a_whole_session() {
    let server = acp_server(|_| numbered(100)).start().await;
    a_whole_session(&client(&server).build().unwrap(), "one endpoint").await;
    let server = acp_server(|_| numbered(100)).start().await;
    a_whole_session(&bootstrap(&server).build().unwrap(), "a path per agent").await;
    let server = acp_server(|_| numbered(100)).connection_ids(Some("X-ACP-Connection-Id")).start().await;
    a_whole_session(&with_id(&server).build().unwrap(), "a connection id").await;
    let server = acp_server(|_| numbered(100)).start().await;
    a_whole_session(&official(&server).build().unwrap(), "the official transport").await;
    let server = acp_server(|_| numbered(100)).start().await;
    a_whole_session(&official(&server).http2_prior_knowledge().build().unwrap(), "HTTP/2").await;
}

#[tokio::test]
async fn the_bootstrap_query_is_on_the_first_post_only() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = bootstrap(&server).build().unwrap();
    let id = session(&client).await;
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    let posts = server.requests_to("POST", "/v1/acp/server-1");
    let queries: Vec<_> = posts.iter().map(|post| post.query.as_str()).collect();
    assert_eq!(queries, ["agent=mock", "", ""]);
    assert!(server.requests_to("GET", "/v1/acp/server-1").iter().all(|get| get.query.is_empty()));
}

#[tokio::test]
async fn the_query_of_a_refused_first_post_moves_to_the_next() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = bootstrap(&server).build().unwrap();
    server.inject(Fault::PostStatus { status: 503, execute: false, reply: None }.times(1));
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    let id = session(&client).await;
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    let posts = server.requests_to("POST", "/v1/acp/server-1");
    let queries: Vec<_> = posts.iter().map(|post| post.query.as_str()).collect();
    assert_eq!(queries, ["agent=mock", "agent=mock", "", ""]);
}

#[tokio::test]
async fn a_deleted_agent_path_ends_the_connection_and_never_starts_a_new_agent() {
    let server = acp_server(|_| numbered(3)).released_quirks(false).start().await;
    let client = bootstrap(&server).reconnect(quick()).build().unwrap();
    session(&client).await;
    eventually("the stream to open", || server.open_streams() == 1).await;
    let other = acp_http_client::http_client_builder().build().unwrap();
    other.delete(format!("{}/v1/acp/server-1", server.url())).send().await.unwrap();
    let reason = within("the end", client.ended()).await;
    assert!(matches!(reason, EndReason::ServerGone(_)), "{reason:?}");
    let error = client.new_session(NewSessionRequest::new("/")).await.unwrap_err();
    assert!(error.is_terminal() && !error.maybe_executed());
}

#[tokio::test]
async fn a_slow_turn_completes_although_its_post_never_returns() {
    // The released server drops a POST at its time limit while the agent continues.
    let server = acp_server(|_| {
        let mut steps = numbered(5);
        steps.push(Step::Wait(Duration::from_millis(600)));
        steps.extend(numbered(5));
        steps
    })
    .request_timeout(Duration::from_millis(200))
    .start()
    .await;
    let client = bootstrap(&server).build().unwrap();
    let id = session(&client).await;
    let mut events = client.events();
    let reply = within("the turn", prompt(&client, &id, "go")).await.unwrap();
    assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn");
    assert_eq!(texts(&mut events).len(), 10);
}

#[tokio::test]
async fn a_connection_id_is_sent_with_every_later_request_and_never_invented() {
    let server = acp_server(|_| numbered(3)).connection_ids(Some("X-ACP-Connection-Id")).start().await;
    let client = with_id(&server).build().unwrap();
    let id = session(&client).await;
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    let given = client.connection_id().unwrap();
    client.close().await;
    let requests = server.requests();
    assert_eq!(requests[0].header("x-acp-connection-id"), None);
    for request in &requests[1..] {
        assert_eq!(
            request.header("x-acp-connection-id"),
            Some(given.as_str()),
            "{} {}",
            request.method,
            request.path
        );
    }
    assert!(requests.iter().any(|request| request.method == "GET"));
    assert!(requests.iter().any(|request| request.method == "DELETE"));
}

#[tokio::test]
async fn a_server_that_forgot_its_connection_id_ends_the_connection() {
    for profile in ["early", "official"] {
        let server = acp_server(|_| numbered(3)).connection_ids(Some("X-ACP-Connection-Id")).start().await;
        let builder = if profile == "early" { with_id(&server) } else { official(&server) };
        let client = builder.reconnect(quick()).build().unwrap();
        session(&client).await;
        server.restart(State::Lost).await;
        let reason = within("the end", client.ended()).await;
        assert!(matches!(reason, EndReason::ServerGone(_)), "{profile}: {reason:?}");
    }
}

#[tokio::test]
async fn cookies_are_sent_back_on_the_connection() {
    let server = acp_server(|_| numbered(3)).sticky_cookie(true).start().await;
    let client = official(&server).build().unwrap();
    let id = session(&client).await;
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    client.close().await;
    let requests = server.requests();
    assert!(requests.len() > 4);
    assert!(requests[1..].iter().all(|request| request.header("cookie").is_some()));
}

#[tokio::test]
async fn responses_name_their_session_where_the_server_requires_it() {
    let server = acp_server(|_| vec![Step::FireRequests(3), Step::Say("done".into())])
        .strict_session_header(true)
        .start()
        .await;
    let client = official(&server).build().unwrap();
    let id = session(&client).await;
    let mut events = client.events();
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    assert_eq!(server.answers().len(), 3);
    assert_eq!(texts(&mut events), ["done"]);
}

#[tokio::test]
async fn a_lost_session_stream_is_reopened_alone() {
    let server = acp_server(|turn| match turn.text.as_str() {
        "slow" => vec![Step::Say("0".into()), Step::WaitForCancel],
        _ => numbered(20),
    })
    .start()
    .await;
    let client = official(&server).build().unwrap();
    let id = session(&client).await;
    let mut events = client.events();
    let turn = tokio::spawn(prompt(&client, &id, "slow"));
    collect_until(&mut events, "the first word", |event| matches!(event, Event::Update(_))).await;
    server.restart(State::Preserved).await;
    let seen = collect_until(&mut events, "the session's reconnect", |event| {
        matches!(event, Event::Reconnected { stream: acp_http_client::EventSource::Session(_), .. })
    })
    .await;
    let Some(Event::Reconnected { continuity, .. }) = seen.events.last() else { unreachable!() };
    assert_eq!(*continuity, Continuity::Unverified, "without numbers nothing more can be said");
    within("the cancel", client.cancel(CancelNotification::new(id.clone()))).await.unwrap();
    let reply = within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "cancelled");
    within("the next turn", prompt(&client, &id, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(20));
}

#[tokio::test]
async fn a_stream_with_another_reader_is_retried() {
    let server = acp_server(|_| numbered(20)).start().await;
    let client = official(&server).build().unwrap();
    server.inject(Fault::StreamRefused { status: 409 }.times(5));
    let id = session(&client).await;
    let mut events = client.events();
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    assert_eq!(texts(&mut events), expected(20));
    assert_eq!(server.fired("StreamRefused"), 5);
}

#[tokio::test]
async fn session_streams_close_with_their_session_and_a_closed_one_can_be_loaded() {
    let history = |_: &str| {
        let update = |n: usize| json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": n.to_string()}});
        (0..5).map(update).collect()
    };
    let script = Script::new(|_| numbered(3)).history(history);
    let server = MockServer::builder().agent("mock", script).default_agent("mock").start().await;
    let client = official(&server).build().unwrap();
    let id = session(&client).await;
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
    eventually("both streams", || server.open_streams() == 2).await;
    for _ in 0..3 {
        within("the close", client.close_session(CloseSessionRequest::new(id.clone()))).await.unwrap();
        eventually("the session's stream to close", || server.open_streams() == 1).await;
        let mut events = client.events();
        within("the load", client.load_session(LoadSessionRequest::new(id.clone(), "/"))).await.unwrap();
        assert_eq!(texts(&mut events), expected(5), "the whole history before the load returned");
        within("a turn", prompt(&client, &id, "go")).await.unwrap();
        assert_eq!(texts(&mut events), expected(3));
    }
}

#[tokio::test]
async fn a_session_id_that_no_header_can_carry_fails_only_its_request() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = official(&server).build().unwrap();
    let id = session(&client).await;
    let bad = acp_http_client::schema::v1::SessionId::new("a\nb");
    let error = within("the bad prompt", prompt(&client, &bad, "go")).await.unwrap_err();
    assert!(matches!(error, Error::InvalidSessionId { .. }), "{error:?}");
    within("a turn", prompt(&client, &id, "go")).await.unwrap();
}

#[tokio::test]
async fn an_official_session_stream_cut_anywhere_repeats_nothing_and_keeps_the_order() {
    // The first turn is longer than this, so the cut is always in it.
    for byte in (0..1_700).step_by(97) {
        let server = acp_server(|_| numbered(10)).start().await;
        // The first stream is the connection's, the second the session's.
        server.inject(Fault::StreamCutAt { byte, cut: Cut::Clean }.skip(1).times(1));
        let timeouts = Timeouts::default().method("session/prompt", Duration::from_millis(1_500));
        let client = official(&server).timeouts(timeouts).build().unwrap();
        let id = session(&client).await;
        let mut events = client.events();
        // The server may lose what it wrote to the broken socket, with the response: that is a timeout then.
        match within("the cut turn", prompt(&client, &id, "go")).await {
            Ok(reply) => {
                assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn", "cut at byte {byte}")
            }
            Err(error) => assert!(error.is_timeout(), "cut at byte {byte}: {error:?}"),
        }
        let (seen, all) = (texts(&mut events), expected(10));
        let mut position = 0;
        for text in &seen {
            let found = all[position..].iter().position(|expected| expected == text);
            position += found.unwrap_or_else(|| panic!("{seen:?} is out of order or repeated")) + 1;
        }
        assert_eq!(server.fired("StreamCutAt"), 1, "cut at byte {byte}");
        // The stream is open again, and the next turn is whole.
        within("the next turn", prompt(&client, &id, "go")).await.unwrap();
        assert!(texts(&mut events).ends_with(&all), "the turn after a cut at byte {byte}");
    }
}
