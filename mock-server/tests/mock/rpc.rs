use mock_server::{Echo, MockServer, Script, Step};
use serde_json::{Value, json};

use crate::client::{Client, ids, initialize_params, prompt, request};

#[tokio::test]
async fn a_prompt_streams_its_updates_then_its_response_and_responds_in_the_body() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    let result = client.result(prompt("p1", &session, "hello there")).await;
    assert_eq!(result, json!({ "stopReason": "end_turn" }));
    let seen = events.until_response("p1").await;
    assert_eq!(ids(&seen), (1..=6).collect::<Vec<_>>());
    let text: String = seen
        .iter()
        .filter_map(|event| Some(event.json().pointer("/params/update/content/text")?.as_str()?.to_owned()))
        .collect();
    assert_eq!(text, "mock: hello there");
    assert_eq!(seen.last().unwrap().json()["result"], result);
}

#[tokio::test]
async fn initialize_needs_an_agent_and_advertises_the_extensions() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let (status, problem) = client.post(request(1, "initialize", json!({ "protocolVersion": 1 }))).await;
    assert_eq!((status, problem["type"].as_str()), (400, Some("urn:sandbox-agent:error:invalid_request")));
    let result = client.result(request(2, "initialize", initialize_params())).await;
    let extensions = &result["agentCapabilities"]["_meta"]["sandboxagent.dev"]["extensions"];
    assert_eq!(extensions["sessionTerminate"], true);
    let methods = extensions["methods"].as_array().unwrap();
    assert!(methods.contains(&Value::from("_sandboxagent/session/set_metadata")));
}

#[tokio::test]
async fn a_crash_ends_the_session_on_the_stream_before_it_fails_the_prompt() {
    let server = MockServer::builder()
        .agent("mock", Script::new(|_| vec![Step::Say("one".into()), Step::crash(3, ["boom", "bang"])]))
        .start()
        .await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    let (status, body) = client.post(prompt("p", &session, "go")).await;
    assert_eq!(status, 200);
    let info = &body["error"]["data"]["terminationInfo"];
    assert_eq!((&body["error"]["code"], &info["exitCode"]), (&json!(-32000), &json!(3)));
    let seen = events.until_response("p").await;
    let ended = seen[seen.len() - 2].json();
    assert_eq!(
        ended["params"],
        json!({ "session_id": session, "data": {
            "reason": "error", "terminated_by": "agent", "exit_code": 3,
            "message": "agent exited with status ExitStatus(unix_wait_status(768))",
            "stderr": { "head": "boom\nbang", "truncated": false, "total_lines": 2 },
        }})
    );
    assert_eq!(server.session(&session).unwrap()["terminationInfo"], *info);
}

fn kind(problem: &Value) -> &str {
    problem["type"].as_str().unwrap_or_default().trim_start_matches("urn:sandbox-agent:error:")
}

#[tokio::test]
async fn invalid_input_is_rejected_with_the_right_problem() {
    let server = MockServer::builder().body_limit(1000).start().await;
    let client = Client::new(&server);
    let post = async |content_type: &str, accept: &str, body: String| {
        let post =
            client.http.post(&client.url).header("content-type", content_type).header("accept", accept);
        let response = post.body(body).send().await.unwrap();
        let status = response.status().as_u16();
        let body: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or_default();
        (status, kind(&body).to_owned())
    };
    let json = "application/json";
    let valid = request(1, "initialize", initialize_params()).to_string();
    for (content_type, accept, body, expected) in [
        ("text/plain", json, valid.clone(), (415, "unsupported_media_type")),
        (json, "text/event-stream", valid.clone(), (406, "not_acceptable")),
        (json, json, "{bad".into(), (400, "invalid_request")),
        (json, json, "[]".into(), (400, "invalid_request")),
        (json, json, r#"{"jsonrpc":"1.0","method":"x"}"#.into(), (400, "invalid_request")),
        (json, json, "x".repeat(1001), (413, "")),
        (json, "*/*", valid.clone(), (200, "")),
    ] {
        assert_eq!(
            post(content_type, accept, body.clone()).await,
            (expected.0, expected.1.to_owned()),
            "{body}"
        );
    }
    let get = client.http.get(&client.url).header("accept", json).send().await.unwrap();
    assert_eq!(get.status(), 406);
    let get = client.http.get(&client.url).header("last-event-id", "abc").send().await.unwrap();
    assert_eq!(get.status(), 400);
    let put = client.http.put(&client.url).send().await.unwrap();
    assert_eq!(put.status(), 405);
    let unknown = client.http.get(format!("{}/v1/nothing", server.url())).send().await.unwrap();
    assert_eq!(
        (unknown.status().as_u16(), unknown.text().await.unwrap().contains("endpoint not found")),
        (404, true)
    );
}

#[tokio::test]
async fn every_route_requires_the_token_and_unknown_paths_are_not_found() {
    let server = MockServer::builder().token("secret").start().await;
    let http = Client::new(&server).http;
    let status = async |path: &str, token: Option<&str>| {
        let mut get = http.get(format!("{}{path}", server.url())).header("accept", "text/event-stream, */*");
        if let Some(token) = token {
            get = get.header("authorization", token);
        }
        get.send().await.unwrap().status().as_u16()
    };
    for path in ["/v1/rpc", "/v1/acp", "/v1/acp/x", "/acp", "/v1/health", "/v1/agents", "/v1/sessions"] {
        for token in [None, Some("Bearer wrong"), Some("bearer secret"), Some("secret")] {
            assert_eq!(status(path, token).await, 401, "{path} with {token:?}");
        }
        assert_ne!(status(path, Some("Bearer secret")).await, 401, "{path}");
    }
    assert_eq!(status("/v1/nothing", None).await, 404);
    assert_eq!(status("/", None).await, 200);
}

#[tokio::test]
async fn an_agent_silent_past_the_limit_is_a_timeout_and_its_late_response_is_on_the_stream() {
    let late = std::time::Duration::from_millis(200);
    let server = MockServer::builder()
        .agent("mock", Script::steps(vec![Step::Wait(late)]))
        .request_timeout(late / 4)
        .start()
        .await;
    let client = Client::new(&server);
    let session = client.session().await;
    let (status, problem) = client.post(prompt("p", &session, "x")).await;
    assert_eq!((status, kind(&problem)), (504, "timeout"));
    let seen = client.stream(None).await.until_response("p").await;
    assert_eq!(seen.last().unwrap().json()["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_notification_and_a_response_are_accepted_without_a_body() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    assert_eq!(client.post(cancel).await, (202, Value::Null));
    let id = server.emit_request(json!({ "method": "session/request_permission", "params": {} }));
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "fine": true } });
    assert_eq!(client.post(answer.clone()).await, (202, Value::Null));
    let (status, problem) = client.post(answer).await;
    assert_eq!((status, kind(&problem)), (400, "invalid_request"), "the first response wins");
    assert_eq!(server.answers()[0].result(), &json!({ "fine": true }));
}

#[tokio::test]
async fn delete_ends_the_streams_and_nothing_else() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let events = client.stream(None).await;
    let asked = server.emit_request(json!({ "method": "x" }));
    for _ in 0..2 {
        assert_eq!(client.http.delete(&client.url).send().await.unwrap().status(), 204);
    }
    assert!(events.bytes().await.1.is_ok(), "the stream ends cleanly");
    // Pending agent requests still accept a response, and late readers get the replay buffer.
    assert_eq!(client.post(json!({ "jsonrpc": "2.0", "id": asked, "result": {} })).await.0, 202);
    client.result(prompt("p", &session, "again")).await;
    let seen = client.stream(None).await.until_response("p").await;
    assert_eq!(ids(&seen), [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn every_stream_gets_every_message_once_across_replay_and_live_delivery() {
    let server = MockServer::builder().replay_buffer(100_000).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut late = Vec::new();
    let mut turns = Vec::new();
    for turn in 0..4 {
        turns.push(client.post(prompt(format!("p{turn}"), &session, "big")));
    }
    let all = futures::future::join_all(turns);
    let open = async {
        for _ in 0..5 {
            late.push(client.stream(Some(2)).await);
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(all, open);
    let last = server.last_event_id();
    server.emit(json!({ "jsonrpc": "2.0", "method": "end" }));
    for mut events in late {
        let seen = ids(&events.until(|message| message["method"] == "end").await);
        assert_eq!(seen, (3..=last + 1).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_slow_reader_sees_a_jump_in_the_ids_and_memory_stays_bounded() {
    let server = MockServer::builder().replay_buffer(64).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut slow = client.stream(None).await;
    slow.next().await;
    for turn in 0..20 {
        client.result(prompt(format!("p{turn}"), &session, "big")).await;
    }
    server.emit(json!({ "jsonrpc": "2.0", "method": "end" }));
    let seen = ids(&slow.until(|message| message["method"] == "end").await);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "ids increase");
    assert!((seen.len() as u64) < server.last_event_id(), "some events were skipped");
    assert_eq!(*seen.last().unwrap(), server.last_event_id());
}

#[tokio::test]
async fn garbage_becomes_an_unparsed_notification_and_unusual_values_are_forwarded() {
    let script = Script::steps(vec![Step::Garbage("not json at all".into()), Step::Raw(json!([1, 2, 3]))]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    client.result(prompt("p", &session, "x")).await;
    let seen = client.stream(Some(2)).await.until_response("p").await;
    assert_eq!(seen[0].json()["method"], "_sandboxagent/agent/unparsed");
    assert_eq!(seen[0].json()["params"]["raw"], "not json at all");
    assert_eq!(seen[1].data, "[1,2,3]");
}

#[tokio::test]
async fn a_load_replays_its_history_before_its_response() {
    let history = |session: &str| {
        let text = format!("history of {session}");
        vec![json!({ "sessionUpdate": "user_message_chunk", "content": { "type": "text", "text": text } })]
    };
    let server = MockServer::builder().agent("mock", Script::default().history(history)).start().await;
    let client = Client::new(&server);
    client.session().await;
    let params = json!({ "sessionId": "old", "cwd": "/work", "mcpServers": [] });
    client.result(request("load", "session/load", params)).await;
    let seen = client.stream(Some(2)).await.until_response("load").await;
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0].json()["params"]["update"]["content"]["text"], "history of old");
}

#[tokio::test]
async fn a_cancel_ends_the_turn_as_cancelled_and_a_revoked_request_fails() {
    let server = MockServer::builder()
        .agent("mock", Script::steps(vec![Step::Say("working".into()), Step::WaitForCancel]))
        .start()
        .await;
    let client = Client::new(&server);
    let session = client.session().await;
    for (id, stop) in [
        ("a", json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } })),
        ("b", json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": "b" } })),
    ] {
        let mut events = client.stream(Some(server.last_event_id())).await;
        let message = prompt(id, &session, "x");
        let drive = async {
            events.next().await;
            assert_eq!(client.post(stop).await.0, 202);
        };
        let ((_, body), ()) = tokio::join!(client.post(message), drive);
        match id {
            "a" => assert_eq!(body["result"]["stopReason"], "cancelled"),
            _ => assert_eq!(body["error"]["code"], -32800),
        }
    }
}

#[tokio::test]
async fn responses_arrive_where_the_server_is_configured_to_send_them() {
    let meta = json!({ "sandboxagent.dev": { "agent": "mock" } });
    let new = request("new", "session/new", json!({ "cwd": "/", "mcpServers": [], "_meta": meta }));
    let body_only = MockServer::builder().echo(Echo::BodyOnly).start().await;
    assert_eq!(Client::new(&body_only).post(new.clone()).await.0, 200);
    assert_eq!(body_only.last_event_id(), 0);
    let stream_only = MockServer::builder().echo(Echo::StreamOnly).start().await;
    let client = Client::new(&stream_only);
    for message in [new, request("list", "session/list", json!({}))] {
        let id = message["id"].as_str().unwrap().to_owned();
        assert_eq!(client.post(message).await, (202, Value::Null));
        let seen = client.stream(None).await.until_response(&id).await;
        assert!(seen.last().unwrap().json().get("result").is_some());
    }
}

#[tokio::test]
async fn the_default_agent_serves_requests_that_name_none() {
    let server = MockServer::builder().default_agent("mock").start().await;
    let client = Client::new(&server);
    client.result(request(1, "initialize", json!({ "protocolVersion": 1 }))).await;
    let new = client.result(request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }))).await;
    client.result(prompt("p", new["sessionId"].as_str().unwrap(), "x")).await;
    let (status, problem) = client.post(prompt("q", "unknown", "x")).await;
    assert_eq!((status, kind(&problem)), (400, "invalid_request"), "an unknown session has no agent");
}
