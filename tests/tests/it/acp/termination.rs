//! A connection ends once: every waiter learns the reason, and nothing is sent after it.

use std::{fmt, time::Duration};

use acp_http_client::{
    AcpHttpClient, CloseOutcome, ConnectionState, EndReason, Error, Event, ReconnectPolicy, Verdict,
    schema::v1::NewSessionRequest,
};
use mock_server::{Fault, MockServer, State, Step};
use sdk_tests::{acp_server, client, collect_until, eventually, handshake, prompt, session, within};

/// Three calls that never return by themselves.
async fn hanging(client: &AcpHttpClient, server: &MockServer) -> Vec<tokio::task::JoinHandle<Error>> {
    let id = session(client).await;
    let mut calls = Vec::new();
    for _ in 0..3 {
        let turn = prompt(client, &id, "hang");
        calls.push(tokio::spawn(async move { turn.await.unwrap_err() }));
    }
    eventually("the prompts to arrive", || server.messages("session/prompt").len() == 3).await;
    eventually("the stream to open", || server.open_streams() >= 1).await;
    calls
}

/// Everything pending settles within a second with this kind of reason, and later calls send nothing.
async fn all_settle(
    client: &AcpHttpClient,
    server: &MockServer,
    calls: Vec<tokio::task::JoinHandle<Error>>,
    expected: impl Fn(&EndReason) -> bool,
) {
    let settled = tokio::time::timeout(Duration::from_secs(1), futures::future::join_all(calls)).await;
    for error in settled.expect("every call settles within a second") {
        let error = error.unwrap();
        assert!(error.is_terminal() && error.end_reason().is_some_and(&expected), "{error:?}");
    }
    assert!(client.state().end_reason().is_some_and(&expected));
    let before = server.requests().len();
    for _ in 0..100 {
        let error = client.new_session(NewSessionRequest::new("/")).await.unwrap_err();
        assert!(error.end_reason().is_some_and(&expected), "{error:?}");
        assert!(client.notify("x", &()).await.unwrap_err().is_terminal());
    }
    assert_eq!(server.requests().len(), before, "nothing is sent after the end");
    assert_eq!(client.diagnostics().pending.len(), 0);
}

fn hangs() -> mock_server::Builder {
    acp_server(|_| vec![Step::Hang])
}

#[tokio::test]
async fn closing_ends_everything_and_is_idempotent() {
    let server = hangs().start().await;
    let client = client(&server).build().unwrap();
    let mut events = client.events();
    let calls = hanging(&client, &server).await;
    let (first, second) = tokio::join!(client.close(), client.close());
    assert!(matches!(first, CloseOutcome::Confirmed), "{first:?}");
    assert!(matches!(second, CloseOutcome::Confirmed), "{second:?}");
    assert!(matches!(client.close().await, CloseOutcome::Confirmed));
    assert_eq!(server.requests_to("DELETE", "/v1/rpc").len(), 1);
    all_settle(&client, &server, calls, |reason| matches!(reason, EndReason::Closed)).await;
    let seen = collect_until(&mut events, "the end", |event| {
        matches!(event, Event::State(ConnectionState::Terminated(EndReason::Closed)))
    })
    .await;
    assert!(seen.events.len() > 1);
    assert!(events.recv().await.is_none(), "the events end with the connection");
}

#[tokio::test]
async fn a_delete_that_hangs_does_not_delay_a_close() {
    let server = hangs().fault(Fault::DeleteHangs).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    let outcome =
        tokio::time::timeout(Duration::from_secs(4), client.close()).await.expect("a bounded close");
    assert!(matches!(&outcome, CloseOutcome::Unconfirmed(error) if error.is_timeout()), "{outcome:?}");
}

#[tokio::test]
async fn a_client_that_sent_nothing_has_nothing_to_close() {
    let server = hangs().start().await;
    let client = client(&server).build().unwrap();
    assert!(matches!(client.close().await, CloseOutcome::NothingToClose));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn exhausted_retries_end_the_connection() {
    let server = hangs().start().await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(1)).max_attempts(3);
    let client = client(&server).reconnect(policy).build().unwrap();
    let calls = hanging(&client, &server).await;
    server.stop().await;
    let reason = within("the end", client.ended()).await;
    assert!(
        matches!(&reason, EndReason::RetriesExhausted { attempts: 3, last } if matches!(**last, Error::Unreachable(_)))
    );
    all_settle(&client, &server, calls, |reason| matches!(reason, EndReason::RetriesExhausted { .. })).await;
}

#[tokio::test]
async fn a_rejected_token_ends_the_connection() {
    let server = hangs().token("secret").start().await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(1));
    let client = client(&server).token("secret").reconnect(policy).build().unwrap();
    let calls = hanging(&client, &server).await;
    server.inject(Fault::TokenExpiresAfter { requests: 0 });
    server.restart(State::Preserved).await;
    within("the end", client.ended()).await;
    all_settle(&client, &server, calls, |reason| matches!(reason, EndReason::Unauthorized(_))).await;
}

#[tokio::test]
async fn a_permanently_refused_stream_ends_the_connection() {
    let server = hangs().start().await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(1));
    let client = client(&server).reconnect(policy).build().unwrap();
    let calls = hanging(&client, &server).await;
    server.inject(Fault::StreamRefused { status: 410 });
    server.restart(State::Preserved).await;
    within("the end", client.ended()).await;
    all_settle(&client, &server, calls, |reason| matches!(reason, EndReason::StreamRefused(_))).await;
}

#[derive(Debug, PartialEq)]
struct AgentDied(i32);

impl fmt::Display for AgentDied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the agent died with {}", self.0)
    }
}

impl std::error::Error for AgentDied {}

#[tokio::test]
async fn a_layer_above_ends_the_connection_with_a_reason_of_its_own() {
    let server = hangs().start().await;
    let client = client(&server)
        .on_notification(|message| match message.method {
            "_agent/died" => Verdict::End(std::sync::Arc::new(AgentDied(7))),
            _ => Verdict::Pass,
        })
        .build()
        .unwrap();
    let mut events = client.events();
    let calls = hanging(&client, &server).await;
    server.emit(serde_json::json!({"jsonrpc": "2.0", "method": "_agent/died", "params": {}}));
    within("the end", client.ended()).await;
    all_settle(&client, &server, calls, |reason| reason.custom() == Some(&AgentDied(7))).await;
    let seen = collect_until(
        &mut events,
        "the end",
        |event| matches!(event, Event::State(state) if state.is_terminated()),
    );
    let seen = seen.await;
    let notice = seen.events.iter().rev().nth(1);
    assert!(
        matches!(notice, Some(Event::Notification(notice)) if notice.method == "_agent/died"),
        "{notice:?}"
    );
}

#[tokio::test]
async fn a_layer_above_fails_the_calls_of_one_session_only() {
    let server = hangs().start().await;
    let client = client(&server).build().unwrap();
    let (one, other) = (session(&client).await, session(&client).await);
    let first = tokio::spawn(prompt(&client, &one, "hang"));
    let second = tokio::spawn(prompt(&client, &other, "hang"));
    eventually("the prompts to arrive", || server.messages("session/prompt").len() == 2).await;
    assert_eq!(client.control().fail_requests(Some(&one.0), AgentDied(1)), 1);
    let error = within("the first", first).await.unwrap().unwrap_err();
    assert_eq!(error.custom(), Some(&AgentDied(1)));
    assert!(!error.is_terminal());
    assert_eq!(client.diagnostics().pending.len(), 1);
    assert!(!second.is_finished());
    client.close().await;
    assert!(within("the second", second).await.unwrap().unwrap_err().is_terminal());
}

#[tokio::test]
async fn dropping_the_last_handle_ends_everything_local() {
    let server = hangs().start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    eventually("the stream to open", || server.open_streams() == 1).await;
    let mut events = client.events();
    let clone = client.clone();
    drop(client);
    assert!(!clone.state().is_terminated());
    drop(clone);
    let last = collect_until(
        &mut events,
        "the end",
        |event| matches!(event, Event::State(state) if state.is_terminated()),
    );
    assert!(matches!(
        last.await.events.last(),
        Some(Event::State(ConnectionState::Terminated(EndReason::Dropped)))
    ));
    eventually("the stream to close", || server.open_streams() == 0).await;
    assert!(server.requests_to("DELETE", "/v1/rpc").is_empty());
}

#[tokio::test]
async fn closing_a_client_of_a_shared_endpoint_loses_nothing_of_another() {
    let ask = Step::Request { method: "_x/wait".into(), params: serde_json::json!({}) };
    let script = vec![Step::Say("before".into()), ask, Step::Say("after".into())];
    let server = acp_server(move |_| script.clone()).start().await;
    let (builder, _unread) = client(&server).agent_requests();
    let other = builder.build().unwrap();
    session(&other).await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let id = session(&client).await;
    let mut events = client.events();
    let turn = tokio::spawn(prompt(&client, &id, "go"));
    let (_, responder) = within("the agent request", requests.recv()).await.unwrap();
    // The DELETE ends the streams of both, and nothing else.
    assert!(matches!(within("the close", other.close()).await, CloseOutcome::Confirmed));
    let reopened = |event: &Event| matches!(event, Event::Reconnected { .. });
    let mut seen = collect_until(&mut events, "the reopening", reopened).await;
    assert!(responder.respond(&serde_json::json!({})));
    within("the turn", turn).await.unwrap().unwrap();
    seen.drain(&mut events);
    assert_eq!(seen.texts(), ["before", "after"]);
    let lost = |event: &Event| matches!(event, Event::Gap { .. } | Event::Restarted { .. });
    assert!(!seen.events.iter().any(lost), "{:?}", seen.events);
    assert_eq!(server.answers().len(), 1);
}
