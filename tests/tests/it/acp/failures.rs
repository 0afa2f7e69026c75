//! Failures stay where they happen.

use acp_http_client::{Error, Event, schema::v1::NewSessionRequest};
use mock_server::{Echo, Fault, Reply, Step};
use sdk_tests::{
    Collected, acp_server, client, collect_until, eventually, handshake, numbered, prompt, session, texts,
    within,
};
use serde_json::json;

#[tokio::test]
async fn one_failed_post_fails_one_request() {
    let server = acp_server(|turn| match turn.text.as_str() {
        "slow" => vec![Step::WaitForCancel],
        _ => numbered(3),
    })
    .start()
    .await;
    let client = client(&server).build().unwrap();
    let slow = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &slow, "slow"));
    eventually("the prompt to arrive", || server.messages("session/prompt").len() == 1).await;
    server.inject(
        Fault::PostStatus { status: 400, execute: false, reply: None }.on_method("session/new").times(1),
    );
    let error = within("session/new", client.new_session(NewSessionRequest::new("/"))).await.unwrap_err();
    assert!(matches!(&error, Error::Http(http) if http.status == 400), "{error:?}");
    let other =
        within("session/new", client.new_session(NewSessionRequest::new("/"))).await.unwrap().session_id;
    let mut events = client.events();
    within("a turn", prompt(&client, &other, "go")).await.unwrap();
    assert_eq!(texts(&mut events).len(), 3);
    let cancel = acp_http_client::schema::v1::CancelNotification::new(slow);
    client.cancel(cancel).await.unwrap();
    let reply = within("the slow turn", turn).await.unwrap().unwrap();
    assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "cancelled");
    assert_eq!(server.requests_to("GET", "/v1/rpc").len(), 1, "the stream stayed open");
}

#[tokio::test]
async fn events_that_are_not_messages_do_not_stop_the_stream() {
    let bad = [
        Fault::MalformedEvent("{not json".into()),
        Fault::MalformedEvent("<html><body>login</body></html>".into()),
        Fault::NonObjectEvent("42".into()),
        Fault::NonObjectEvent("[1,2,3]".into()),
        Fault::NonObjectEvent("\"text\"".into()),
        Fault::NonObjectEvent("{}".into()),
    ];
    let server = acp_server(|_| numbered(5)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let count = bad.len();
    for fault in bad {
        server.inject(fault);
    }
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let mut seen = Collected::default();
    seen.drain(&mut events);
    let malformed: Vec<_> = seen
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Malformed(malformed) => Some(malformed.start.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(malformed.len(), count, "{malformed:?}");
    assert!(malformed.iter().any(|start| start.contains("login")));
    assert_eq!(seen.texts().len(), 5);
    assert_eq!(server.requests_to("GET", "/v1/rpc").len(), 1, "the stream stayed open");
}

#[tokio::test]
async fn a_byte_that_is_not_utf8_is_replaced_and_the_stream_continues() {
    let server = acp_server(|_| numbered(5)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    server.inject(Fault::InvalidUtf8Event);
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    let mut seen = Collected::default();
    seen.drain(&mut events);
    let replaced = seen.events.iter().any(|event| match event {
        Event::Notification(notification) => notification.params.as_str().contains('\u{fffd}'),
        Event::Update(update) => update.content.raw().as_str().contains('\u{fffd}'),
        _ => false,
    });
    assert!(replaced, "{:?}", seen.events);
    assert!(seen.texts().ends_with(&(0..5).map(|n| n.to_string()).collect::<Vec<_>>()));
}

#[tokio::test]
async fn a_page_instead_of_a_response_is_a_typed_error_with_its_beginning() {
    let server = acp_server(|_| vec![]).echo(Echo::BodyOnly).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    server.inject(Fault::HtmlBody.on_method("session/new").times(1));
    let error = within("session/new", client.new_session(NewSessionRequest::new("/"))).await.unwrap_err();
    let Error::UnexpectedBody { status: 200, content_type: Some(content_type), start } = &error else {
        panic!("{error:?}")
    };
    assert!(content_type.starts_with("text/html") && start.contains("<html"), "{error:?}");
    within("session/new", client.new_session(NewSessionRequest::new("/"))).await.unwrap();
}

#[tokio::test]
async fn a_page_instead_of_a_stream_is_retried() {
    let server = acp_server(|_| numbered(5)).fault(Fault::HtmlStream.times(2)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    within("the turn", prompt(&client, &session, "go")).await.unwrap();
    eventually("the stream to be read", || client.diagnostics().messages >= 8).await;
    assert_eq!(texts(&mut events).len(), 5);
    assert_eq!(server.fired("HtmlStream"), 2);
}

#[tokio::test]
async fn problems_text_and_rpc_errors_in_failures_are_kept() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    let fail = |status, body: &str, content_type: &str| {
        let reply = Some(Reply {
            body: body.to_owned(),
            content_type: Some(content_type.to_owned()),
            ..Reply::default()
        });
        server.inject(Fault::PostStatus { status, execute: false, reply }.on_method("_x/y").times(1));
        client.request::<serde_json::Value>("_x/y", &json!({}))
    };
    let problem =
        json!({"type": "urn:x", "title": "T", "status": 500, "detail": "d", "details": {"exitCode": 3}});
    let error =
        within("a problem", fail(500, &problem.to_string(), "application/problem+json")).await.unwrap_err();
    assert_eq!(error.problem().unwrap().extensions["details"]["exitCode"], 3);
    assert_eq!(error.to_string(), "`_x/y` failed with HTTP 500: d");

    let error = within("text", fail(400, "Failed to parse", "text/plain")).await.unwrap_err();
    assert!(matches!(&error, Error::Http(http) if http.body == "Failed to parse" && http.problem.is_none()));

    let rpc = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "no", "data": [1]}});
    let error = within("an RPC error", fail(502, &rpc.to_string(), "application/json")).await.unwrap_err();
    assert_eq!(error.rpc_error().unwrap().data, Some(json!([1])));

    let error = within("a large body", fail(413, "length limit exceeded", "text/plain")).await.unwrap_err();
    assert!(matches!(&error, Error::PayloadTooLarge { method, size, .. } if method == "_x/y" && *size > 0));
    assert!(!error.maybe_executed());
}

#[tokio::test]
async fn a_response_that_does_not_fit_its_type_keeps_its_json() {
    let server = acp_server(|_| vec![]).start().await;
    let client = client(&server).build().unwrap();
    handshake(&client).await.unwrap();
    let error = within("the call", client.request::<u32>("session/list", &json!({}))).await.unwrap_err();
    let Error::Decode { method, raw, .. } = &error else { panic!("{error:?}") };
    assert_eq!(method, "session/list");
    assert!(serde_json::from_slice::<serde_json::Value>(raw).unwrap()["sessions"].is_array());
}

#[tokio::test]
async fn unknown_variants_reach_the_application_unchanged() {
    let server = acp_server(|_| vec![]).fault(Fault::UnknownVariants).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let reply = within("the turn", prompt(&client, &session, "go")).await.unwrap();
    assert!(reply.known().is_none());
    let stop = reply.raw().to_value().unwrap()["stopReason"].as_str().unwrap().to_owned();
    assert!(!stop.is_empty() && stop != "end_turn");
    let mut seen = Collected::default();
    seen.drain(&mut events);
    let unknown = seen.events.iter().filter(|event| match event {
        Event::Update(update) => {
            update.update().is_none() && update.session_id().as_deref() == Some(&session.0)
        }
        _ => false,
    });
    assert!(unknown.count() >= 2, "an unknown update and an unknown content block: {:?}", seen.events);
    let request = seen.events.iter().any(|event| matches!(event, Event::AgentRequest { .. }));
    assert!(request, "the permission request with an unknown kind is reported");
    let answers = server.answers();
    assert_eq!(answers.len(), 1, "and it is answered, as cancelled or rejected");
}

#[tokio::test]
async fn a_stream_that_breaks_while_idle_is_reopened() {
    let server = acp_server(|_| numbered(3)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    eventually("the stream to open", || server.open_streams() == 1).await;
    server.restart(mock_server::State::Preserved).await;
    collect_until(&mut events, "the reconnect", |event| matches!(event, Event::Reconnected { .. })).await;
    within("a turn", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(texts(&mut events).len(), 3);
}
