//! Legal input that is unusual: it loses nothing and is not called malformed.

use acp_http_client::{
    AcpHttpClient, AgentHandler, Call, Dialect, Error, Event, Limits, RpcError,
    schema::v1::{ReadTextFileRequest, ReadTextFileResponse, SessionId},
};
use sdk_tests::{Collected, collect_until, eventually, handshake, prompt, session, within};
use serde_json::{Value, json};

use super::raw::{RawServer, Reply, result};

fn update(text: &str) -> String {
    let content = json!({"type": "text", "text": text});
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
    json!({"sessionId": "s", "update": update}).to_string()
}

async fn live(server: &RawServer) -> (AcpHttpClient, acp_http_client::Events) {
    let client = AcpHttpClient::new(&server.url).unwrap();
    let events = client.events();
    session(&client).await;
    (client, events)
}

fn malformed(events: &[Event]) -> Vec<&Event> {
    events.iter().filter(|event| matches!(event, Event::Malformed(_))).collect()
}

#[tokio::test]
async fn an_update_with_members_after_its_parameters_is_delivered() {
    let server = RawServer::obliging().await;
    let (_client, mut events) = live(&server).await;
    let head = r#"{"jsonrpc":"2.0","method":"session/update","params":"#;
    for (text, member) in [("a", r#""x":{}"#), ("b", r#""_meta":{"y":{"z":[]}}"#), ("c } \" {", r#""x":1"#)] {
        server.send(format!("data: {head}{},{member}}}\n\n", update(text)));
    }
    server.send(format!("data: {head}{}}}\n\n", update("end")));
    let is_end =
        |event: &Event| matches!(event, Event::Update(update) if update.message_text() == Some("end"));
    let seen = collect_until(&mut events, "the updates", is_end).await;
    assert_eq!(seen.texts(), ["a", "b", "c } \" {", "end"]);
    assert!(malformed(&seen.events).is_empty(), "{:?}", malformed(&seen.events));
}

#[tokio::test]
async fn events_of_other_types_and_blank_events_are_ignored_and_counted() {
    let server = RawServer::obliging().await;
    let (client, mut events) = live(&server).await;
    let message =
        |text: &str| format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{}}}"#, update(text));
    server.send(format!("id: 1\ndata: {}\n\n", message("a")));
    server.send("event: ping\nid: 2\ndata: 1763375000\n\n");
    server.send("id: 3\ndata:\n\n");
    server.send("event: heartbeat\ndata: {}\n\nevent: heartbeat\n\n");
    server.send(format!("event: message\nid: 4\ndata: {}\n\n", message("b")));
    server.send(format!("event: other\nid: 5\ndata: {}\n\n", message("not for us")));
    server.send(format!("id: 6\ndata: {}\n\n", message("end")));
    let is_end =
        |event: &Event| matches!(event, Event::Update(update) if update.message_text() == Some("end"));
    let seen = collect_until(&mut events, "the updates", is_end).await;
    assert_eq!(seen.texts(), ["a", "b", "end"]);
    assert!(malformed(&seen.events).is_empty(), "{:?}", malformed(&seen.events));
    assert!(!seen.events.iter().any(|event| matches!(event, Event::Gap { .. })), "their ids count");
    let diagnostics = client.diagnostics();
    assert_eq!((diagnostics.ignored, diagnostics.malformed), (4, 0));
    assert_eq!(client.last_event_id(), Some(6.into()));
}

/// A server of the official dialect, which opens a stream for each session.
async fn official() -> RawServer {
    RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "initialize" => {
            Reply::result(body, result(body)).header("acp-connection-id", "c")
        }
        _ => Reply::status(202),
    })
    .await
}

#[tokio::test]
async fn a_session_id_that_no_header_can_carry_is_a_typed_error_before_anything_is_sent() {
    let server = official().await;
    let client = AcpHttpClient::builder(&server.url)
        .all_agent_requests(true)
        .dialect(Dialect::OFFICIAL)
        .build()
        .unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    for id in ["sé", "💡", " s", "s\u{7f}", ""] {
        let error = within("the prompt", prompt(&client, &SessionId::new(id), "go")).await.unwrap_err();
        assert!(
            matches!(&error, Error::InvalidSessionId { session_id } if *session_id == id),
            "{id:?}: {error:?}"
        );
        assert!(!error.maybe_executed() && !error.is_retryable());
    }
    let named = |request: &super::raw::Received| request.header("acp-session-id").is_some();
    assert!(
        !server.received().iter().any(|request| named(request) || request.body["method"] == "session/prompt")
    );
    // A notification names its session in its parameters.
    within("the notification", client.notify("session/cancel", &json!({"sessionId": "sé"}))).await.unwrap();
    eventually("the notification", || server.received().iter().any(|r| r.body["method"] == "session/cancel"))
        .await;
    assert!(!server.received().iter().any(named));
    assert!(!client.state().is_terminated());
}

#[tokio::test]
async fn a_session_id_of_visible_characters_names_the_session_on_get_and_post() {
    let server = official().await;
    let client = AcpHttpClient::builder(&server.url)
        .all_agent_requests(true)
        .dialect(Dialect::OFFICIAL)
        .build()
        .unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    let turn = tokio::spawn(prompt(&client, &SessionId::new("a b~!\""), "go"));
    eventually("the prompt", || server.received().iter().any(|r| r.body["method"] == "session/prompt")).await;
    let named: Vec<_> = server
        .received()
        .into_iter()
        .filter(|request| request.header("acp-session-id") == Some(b"a b~!\""))
        .map(|request| request.method)
        .collect();
    assert_eq!(named, ["GET", "POST"]);
    turn.abort();
}

#[tokio::test]
async fn ids_over_the_limit_are_malformed_and_nothing_else_is_lost() {
    let server = RawServer::obliging().await;
    let limits = Limits::default();
    let client =
        AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits.clone()).build().unwrap();
    let mut events = client.events();
    session(&client).await;
    // With its quotes the id is as long as the limit, one less, and one more.
    for size in [limits.id - 3, limits.id - 2, limits.id - 1] {
        server.event(&json!({"jsonrpc": "2.0", "id": "i".repeat(size), "method": "_x/y", "params": {}}));
    }
    for size in [limits.id, limits.id + 1, 1 << 20] {
        let params = update(&size.to_string());
        let message = format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{params}}}"#);
        server.send(format!("id: {}\ndata: {message}\n\n", "e".repeat(size)));
    }
    for size in [limits.id - 1, limits.id, limits.id + 1, 1 << 20] {
        let id = |of: &str| format!("{of} {size}");
        server.event(&json!({"jsonrpc": "2.0", "id": id("method"), "method": "m".repeat(size)}));
        let params = json!({"sessionId": "s".repeat(size)});
        server.event(&json!({"jsonrpc": "2.0", "id": id("session"), "method": "_x/y", "params": params}));
    }
    server.event(&json!({"jsonrpc": "2.0", "method": "_x/end"}));
    let is_end = |event: &Event| matches!(event, Event::Notification(n) if n.method == "_x/end");
    let seen = collect_until(&mut events, "the end", is_end).await;
    assert_eq!(malformed(&seen.events).len(), 7, "{:?}", malformed(&seen.events));
    assert_eq!(seen.texts(), [limits.id.to_string(), (limits.id + 1).to_string(), (1 << 20).to_string()]);
    for event in &seen.events {
        if let Event::Malformed(malformed) = event {
            assert!(malformed.start.len() <= 1024 && malformed.reason.contains("1024"), "{malformed:?}");
        }
    }
    let answers = || {
        server.received().into_iter().filter(|r| r.body["error"].is_object()).map(|r| r.body["id"].clone())
    };
    let mut served: Vec<String> = [limits.id - 3, limits.id - 2].map(|size| "i".repeat(size)).into();
    for size in [limits.id - 1, limits.id] {
        served.extend(["method", "session"].map(|of| format!("{of} {size}")));
    }
    eventually("the responses", || answers().count() >= served.len()).await;
    let mut ids: Vec<String> = answers().map(|id| id.as_str().unwrap().to_owned()).collect();
    served.sort();
    ids.sort();
    assert_eq!(ids, served);
}

#[tokio::test]
async fn input_that_is_too_deep_is_a_typed_event_and_never_null() {
    let server = RawServer::obliging().await;
    let (_client, mut events) = live(&server).await;
    let deep = format!("{}{}", "[".repeat(1_000), "]".repeat(1_000));
    server.send(format!(
        "data: {{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"s\",\"update\":{{\"x\":{deep},\"sessionUpdate\":\"agent_message_chunk\"}}}}}}\n\n"
    ));
    server.send(format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"_x/deep\",\"params\":{deep}}}\n\n"));
    let is_end = |event: &Event| matches!(event, Event::Notification(n) if n.method == "_x/deep");
    let seen = collect_until(&mut events, "the notification", is_end).await;
    assert!(
        matches!(malformed(&seen.events)[..], [Event::Malformed(m)] if m.reason.contains("recursion")),
        "{seen:?}"
    );
    let Some(Event::Notification(notification)) = seen.events.last() else { panic!("a notification") };
    assert!(matches!(notification.params.to_value(), Err(acp_http_client::JsonError::TooDeep { .. })));
    assert_eq!(notification.params.as_str(), deep);
}

#[tokio::test]
async fn a_json_value_that_is_larger_decoded_than_its_limit_is_a_typed_error() {
    let server = RawServer::obliging().await;
    let (_client, mut events) = live(&server).await;
    let items = vec![0; 1_000];
    server.event(&json!({"jsonrpc": "2.0", "method": "_x/list", "params": items}));
    let is_end = |event: &Event| matches!(event, Event::Notification(n) if n.method == "_x/list");
    let seen = collect_until(&mut events, "the notification", is_end).await;
    let Some(Event::Notification(notification)) = seen.events.last() else { panic!("a notification") };
    let size = 1_001 * size_of::<Value>();
    for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
        assert_eq!(notification.params.to_value_within(limit).is_ok(), fits, "{limit}");
    }
    let _: Collected = seen;
}

#[tokio::test]
async fn a_response_is_decoded_as_a_type_up_to_the_limit_and_not_above() {
    let server = RawServer::start(|method, body| match method {
        "GET" => Reply::Stream,
        "POST" if body["method"] == "_x/list" => Reply::result(body, json!(vec![0; 1_000])),
        _ => Reply::result(body, result(body)),
    })
    .await;
    let size = 1_001 * size_of::<Value>();
    for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
        let limits = Limits::default().decoded(limit);
        let client =
            AcpHttpClient::builder(&server.url).all_agent_requests(true).limits(limits).build().unwrap();
        session(&client).await;
        let response = within("the response", client.request::<Vec<u8>>("_x/list", &json!({}))).await;
        match response {
            Ok(list) => assert!(fits && list.len() == 1_000, "{limit}"),
            Err(error) => assert!(!fits && matches!(error, Error::Decode { .. }), "{limit}: {error}"),
        }
    }
}

#[tokio::test]
async fn an_agent_request_that_is_too_large_decoded_reaches_no_typed_handler() {
    struct Reads;
    impl AgentHandler for Reads {
        async fn read_text_file(
            &self,
            _call: Call<ReadTextFileRequest>,
        ) -> Result<ReadTextFileResponse, RpcError> {
            Ok(ReadTextFileResponse::new("read"))
        }
    }
    let size = 1_000 * size_of::<Value>();
    for (limit, served) in [(size, false), (2 * size, true)] {
        let server = RawServer::obliging().await;
        let limits = Limits::default().decoded(limit);
        let client = AcpHttpClient::builder(&server.url)
            .all_agent_requests(true)
            .limits(limits)
            .handler(Reads)
            .build()
            .unwrap();
        session(&client).await;
        let params = json!({"sessionId": "s", "path": "/a", "_meta": {"list": vec![0; 1_000]}});
        server.event(&json!({"jsonrpc": "2.0", "id": 7, "method": "fs/read_text_file", "params": params}));
        let response = || server.received().into_iter().find(|received| received.body["id"] == 7);
        eventually("the response", || response().is_some()).await;
        assert_eq!(response().unwrap().body["result"]["content"] == "read", served, "{limit}");
    }
}
