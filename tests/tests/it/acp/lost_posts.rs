//! A POST that fails after it may have been sent is unknown, not failed.

use std::time::Duration;

use acp_http_client::{Dialect, Error, Phase, Timeouts};
use mock_server::{Echo, Fault, Reply, Step};
use sdk_tests::{acp_server, client, eventually, handshake, numbered, prompt, session, texts, within};

fn prompts(server: &mock_server::MockServer) -> usize {
    server.messages("session/prompt").len()
}

#[tokio::test]
async fn a_prompt_whose_post_hangs_breaks_or_times_out_gets_its_response_from_the_stream() {
    let faults = [
        Fault::PostHangs,
        Fault::PostResetAfterRead { execute: true },
        Fault::PostStatus { status: 504, execute: true, reply: None },
        Fault::PostStatus { status: 500, execute: true, reply: None },
        Fault::PostStatus { status: 502, execute: true, reply: None },
        Fault::PostStatus { status: 202, execute: true, reply: None },
        Fault::ResponseOnStreamOnly,
    ];
    for fault in faults {
        let name = fault.name();
        // The POST has ended before the stream brings the response.
        let steps = || [vec![Step::Wait(Duration::from_millis(100))], numbered(20)].concat();
        let server = acp_server(move |_| steps()).start().await;
        let client = client(&server).build().unwrap();
        let session = session(&client).await;
        server.inject(fault.on_method("session/prompt"));
        let mut events = client.events();
        let reply = within(name, prompt(&client, &session, "go")).await.unwrap();
        assert_eq!(server.fired(name), 1);
        assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn", "{name}");
        assert_eq!(texts(&mut events).len(), 20, "{name}");
        assert_eq!(prompts(&server), 1, "{name}: nothing that may have run is sent twice");
    }
}

#[tokio::test]
async fn other_calls_survive_a_lost_post_too() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    server.inject(Fault::PostHangs.on_method("session/new").times(1));
    let request = acp_http_client::schema::v1::NewSessionRequest::new("/");
    let session = within("session/new", client.new_session(request)).await.unwrap();
    assert!(!session.session_id.0.is_empty());
}

#[tokio::test]
async fn a_post_that_never_ran_fails_as_maybe_executed_after_silence() {
    let server = acp_server(|_| numbered(1)).start().await;
    let mut timeouts = Timeouts::default();
    timeouts.confirmation = Some(Duration::from_millis(300));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    server.inject(Fault::PostResetBeforeRead.on_method("session/prompt"));
    let error = within("the prompt", prompt(&client, &session, "go")).await.unwrap_err();
    let Error::Timeout(timeout) = &error else { panic!("{error:?}") };
    assert_eq!(timeout.phase, Phase::Confirmation);
    assert!(timeout.last_event_age.is_some());
    assert!(matches!(timeout.cause.as_deref(), Some(Error::ConnectionLost { .. })), "{timeout:?}");
    assert!(error.maybe_executed() && !error.is_retryable());
    assert_eq!(server.fired("PostResetBeforeRead"), 1, "it was not sent twice");
}

#[tokio::test]
async fn a_504_without_a_later_response_keeps_its_problem_report() {
    let server = acp_server(|_| numbered(1)).start().await;
    let timeouts = Timeouts::default().method("session/prompt", Duration::from_millis(200));
    let client = client(&server).timeouts(timeouts).build().unwrap();
    let session = session(&client).await;
    let reply = Reply {
        body: r#"{"type":"urn:x:timeout","title":"Timeout","status":504}"#.into(),
        content_type: Some("application/problem+json".into()),
        ..Reply::default()
    };
    server.inject(
        Fault::PostStatus { status: 504, execute: false, reply: Some(reply) }.on_method("session/prompt"),
    );
    let error = within("the prompt", prompt(&client, &session, "go")).await.unwrap_err();
    assert!(error.is_timeout() && error.maybe_executed());
    assert_eq!(error.problem().unwrap().kind, "urn:x:timeout");
}

#[tokio::test]
async fn on_a_server_that_responds_in_bodies_only_a_lost_post_fails_at_once() {
    let server = acp_server(|_| numbered(1)).echo(Echo::BodyOnly).start().await;
    let client = client(&server).dialect(Dialect::AUTO).build().unwrap();
    let session = session(&client).await;
    within("the first prompt, by which the client learns", prompt(&client, &session, "go")).await.unwrap();
    server.inject(Fault::PostResetAfterRead { execute: true }.on_method("session/prompt"));
    let error = within("the prompt", prompt(&client, &session, "go")).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert!(error.maybe_executed());
}

#[tokio::test]
async fn an_unreachable_server_is_distinguished_from_one_that_broke() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    server.stop().await;
    let error = within("initialize", handshake(&client)).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(error.is_retryable() && !error.maybe_executed());
}

#[tokio::test]
async fn a_reopened_stream_brings_the_response_of_a_lost_post() {
    let server = acp_server(|_| numbered(30)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    eventually("the stream to open", || server.open_streams() == 1).await;
    server.inject(Fault::PostHangs.on_method("session/prompt"));
    server.inject(Fault::StreamRefused { status: 503 }.times(2));
    server.restart(mock_server::State::Preserved).await;
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events).len(), 30);
    assert_eq!(server.fired("StreamRefused"), 2);
}
