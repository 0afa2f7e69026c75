use std::time::{Duration, Instant};

use mock_server::{Fault, MockServer, Script, Step};
use serde_json::{Value, json};

use crate::client::{Client, Event, QUIET, SOON, ids, prompt, request};

/// The request timeout, which is two minutes in the released server.
const LIMIT: Duration = Duration::from_millis(300);

fn initialize() -> Value {
    request(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }))
}

fn at(server: &MockServer, path: &str) -> Client {
    Client::at(format!("{}/v1/acp{path}", server.url()))
}

/// Returns a client of the server id `s`, and a session.
async fn started(server: &MockServer) -> (Client, String) {
    at(server, "/s?agent=mock").result(initialize()).await;
    let client = at(server, "/s");
    let session = client.result(request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] }))).await;
    (client, session["sessionId"].as_str().unwrap().to_owned())
}

fn kind(problem: &Value) -> &str {
    problem["type"].as_str().unwrap_or_default().trim_start_matches("urn:sandbox-agent:error:")
}

#[tokio::test]
async fn every_response_arrives_in_the_body_and_on_the_stream() {
    let server = MockServer::start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(None).await;
    assert_eq!(client.result(prompt(10, &session, "hi")).await["stopReason"], "end_turn");
    let seen = events.until(|message| message["id"] == 10).await;
    assert_eq!(ids(&seen), [1, 2, 3, 4, 5]);
    assert!(seen[4].data.starts_with(r#"{"id":10,"jsonrpc":"2.0","result""#), "keys are sorted");
}

#[tokio::test]
async fn the_first_post_names_the_agent_and_later_ones_may_not_name_another() {
    let server = MockServer::start().await;
    let (status, problem) = at(&server, "/x").post(initialize()).await;
    assert_eq!((status, kind(&problem)), (400, "invalid_request"));
    let (status, problem) = at(&server, "/x?agent=nope").post(initialize()).await;
    assert_eq!((status, kind(&problem)), (400, "unsupported_agent"));
    assert_eq!(at(&server, "/x?agent=mock").post(initialize()).await.0, 200);
    let (status, problem) = at(&server, "/x?agent=pi").post(initialize()).await;
    assert_eq!((status, kind(&problem)), (409, "conflict"));
    let list: Value = reqwest_get(&format!("{}/v1/acp", server.url())).await;
    assert_eq!(list["servers"][0]["serverId"], "x");
    assert_eq!(list["servers"][0]["agent"], "mock");
}

#[tokio::test]
async fn an_unknown_server_has_no_stream_and_can_be_deleted() {
    let server = MockServer::start().await;
    let client = at(&server, "/none");
    let response = client.get(None).await;
    assert_eq!(response.status(), 404);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(client.http.delete(&client.url).send().await.unwrap().status(), 204);
}

#[tokio::test]
async fn a_crash_is_on_the_stream_at_once_and_in_the_body_after_the_limit() {
    let script = Script::new(|_| vec![Step::crash(3, ["boom line 1", "boom line 2"])]);
    let server = MockServer::builder().agent("mock", script).request_timeout(LIMIT).start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(None).await;
    let started_at = Instant::now();
    let message = prompt(3, &session, "die");
    let post = client.post(message);
    let notice = async {
        let seen = events.until(|message| message["method"] == "_adapter/agent_exited").await;
        assert!(started_at.elapsed() < LIMIT);
        seen.last().unwrap().json()["params"].clone()
    };
    let ((status, problem), params) = tokio::join!(post, notice);
    assert!(started_at.elapsed() >= LIMIT);
    assert_eq!(params, json!({ "code": 3, "success": false }));
    assert_eq!((status, kind(&problem)), (500, "agent_process_exited"));
    assert_eq!(problem["details"], json!({ "exitCode": 3, "stderr": "boom line 1\nboom line 2" }));
    for message in [prompt(4, &session, "x"), json!({ "jsonrpc": "2.0", "method": "session/cancel" })] {
        let (status, problem) = client.post(message).await;
        assert_eq!((status, kind(&problem)), (502, "stream_error"));
    }
}

#[tokio::test]
async fn a_deleted_id_gets_a_new_agent_and_event_ids_from_one() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Exit(0)])).start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(None).await;
    let message = prompt(3, &session, "exit");
    tokio::select! {
        _ = client.send(&message) => panic!("the POST hangs until the timeout"),
        _ = events.until(|message| message["method"] == "_adapter/agent_exited") => {}
    }
    assert_eq!(client.http.delete(&client.url).send().await.unwrap().status(), 204);
    assert_eq!(client.get(None).await.status(), 404);
    let (again, _) = started(&server).await;
    assert_eq!(ids(&again.stream(None).await.until(|message| message["id"] == 2).await), [1, 2]);
}

#[tokio::test]
async fn a_post_to_a_silent_agent_hangs_beyond_the_timeout() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "late" => vec![Step::Wait(LIMIT * 2)],
        _ => vec![Step::Say("here".into())],
    });
    let server = MockServer::builder().agent("mock", script).request_timeout(LIMIT).start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(None).await;
    let message = prompt(3, &session, "late");
    let late = client.send(&message);
    tokio::pin!(late);
    tokio::select! {
        answer = &mut late => panic!("answered: {answer:?}"),
        seen = events.until(|message| message["id"] == 3) => assert_eq!(ids(&seen), [1, 2, 3]),
    }
    assert!(tokio::time::timeout(QUIET, late).await.is_err(), "the response is on the stream only");
    assert_eq!(client.post(prompt(4, &session, "soon")).await.0, 200);
}

#[tokio::test]
async fn without_the_quirks_a_silent_agent_is_a_timeout_and_a_dead_one_is_reported_at_once() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "die" => vec![Step::crash(3, ["boom"])],
        _ => vec![Step::Hang],
    });
    let server = MockServer::builder()
        .agent("mock", script)
        .request_timeout(LIMIT)
        .released_quirks(false)
        .start()
        .await;
    let (client, session) = started(&server).await;
    let (status, problem) = client.post(prompt(3, &session, "hang")).await;
    assert_eq!((status, kind(&problem)), (504, "timeout"));
    let asked = Instant::now();
    let (status, problem) = client.post(prompt(4, &session, "die")).await;
    assert_eq!((status, kind(&problem)), (500, "agent_process_exited"));
    assert!(asked.elapsed() < LIMIT);
}

#[tokio::test]
async fn a_delete_of_a_live_agent_hangs_and_stops_it_when_the_client_gives_up() {
    let server = MockServer::start().await;
    let (client, _) = started(&server).await;
    let mut events = client.stream(Some(2)).await;
    let delete = client.http.delete(&client.url).send();
    assert!(tokio::time::timeout(QUIET, delete).await.is_err());
    let exited = events.next().await.unwrap();
    assert_eq!(exited.json()["params"], json!({ "code": 0, "success": true }));
    assert_eq!(events.next().await, None::<Event>, "the stream ends with the agent");
    assert_eq!(client.get(None).await.status(), 404);
}

#[tokio::test]
async fn without_the_quirks_a_delete_gets_a_response() {
    let server = MockServer::builder().released_quirks(false).start().await;
    let (client, _) = started(&server).await;
    let delete = tokio::time::timeout(SOON, client.http.delete(&client.url).send()).await.unwrap();
    assert_eq!(delete.unwrap().status(), 204);
}

#[tokio::test]
async fn two_posts_with_one_id_both_hang_while_both_responses_are_on_the_stream() {
    let script = Script::new(|_| vec![Step::Wait(Duration::from_millis(60))]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(Some(2)).await;
    let message = prompt(7, &session, "x");
    let posts = async { tokio::join!(client.send(&message), client.send(&message)) };
    tokio::pin!(posts);
    tokio::select! {
        answers = &mut posts => panic!("answered: {answers:?}"),
        () = async { events.next().await; events.next().await; } => {}
    }
    assert!(tokio::time::timeout(QUIET, posts).await.is_err());
}

#[tokio::test]
async fn an_error_has_the_last_stderr_lines_in_the_body_only() {
    let script = Script::new(|turn| {
        let data = (turn.text == "data").then(|| json!("a string"));
        vec![
            Step::Stderr("detail on stderr".into()),
            Step::Fail { code: -32000, message: "agent says no".into(), data },
        ]
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let (client, session) = started(&server).await;
    let (status, body) = client.post(prompt(11, &session, "no")).await;
    assert_eq!(status, 200);
    assert_eq!(body["error"]["data"], json!({ "agentStderr": "detail on stderr" }));
    let (_, body) = client.post(prompt(12, &session, "data")).await;
    assert_eq!(body["error"]["data"], "a string");
    let seen = client.stream(None).await.until(|message| message["id"] == 11).await;
    assert_eq!(seen.last().unwrap().json()["error"].get("data"), None);
}

#[tokio::test]
async fn garbage_and_unusual_values_are_published_like_the_released_server() {
    let script = Script::steps(vec![
        Step::Garbage("this is not json".into()),
        Step::Raw(json!([1, 2, 3])),
        Step::Raw(json!(42)),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let (client, session) = started(&server).await;
    client.result(prompt(3, &session, "x")).await;
    let seen = client.stream(Some(2)).await.until(|message| message["id"] == 3).await;
    assert_eq!(
        seen[0].json(),
        json!({ "jsonrpc": "2.0", "method": "_adapter/invalid_stdout", "params": {
            "error": "expected ident at line 1 column 2", "raw": "this is not json",
        }})
    );
    assert_eq!((seen[1].data.as_str(), seen[2].data.as_str()), ("[1,2,3]", "42"));
}

#[tokio::test]
async fn a_post_with_its_id_responds_to_an_agent_request() {
    let server = MockServer::start().await;
    let (client, session) = started(&server).await;
    let mut events = client.stream(Some(2)).await;
    let message = prompt(3, &session, "permission");
    let drive = async {
        let seen = events.until(|message| message["method"] == "session/request_permission").await;
        let id = seen.last().unwrap().json()["id"].clone();
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } });
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": outcome });
        assert_eq!(client.post(answer).await.0, 202);
        let unknown = json!({ "jsonrpc": "2.0", "id": "perm-404", "result": {} });
        assert_eq!(client.post(unknown).await.0, 202, "an unknown response id is not an error");
    };
    let ((status, _), ()) = tokio::join!(client.post(message), drive);
    assert_eq!(status, 200);
    assert_eq!(server.answers().len(), 1);
}

#[tokio::test]
async fn faults_apply_here_too() {
    let server = MockServer::start().await;
    let (client, session) = started(&server).await;
    server.inject(Fault::ResponseInBodyOnly.on_method("session/prompt").times(1));
    server.inject(Fault::Hole { id: 3 }.times(1));
    client.result(prompt(3, &session, "x")).await;
    client.result(prompt(4, &session, "y")).await;
    let seen = client.stream(None).await.until(|message| message["id"] == 4).await;
    assert_eq!(ids(&seen), [1, 2, 4, 5, 6, 7]);
    assert!(seen.iter().all(|event| event.json()["id"] != 3));
}

#[tokio::test]
async fn an_agent_that_is_not_installed_is_rejected_or_installed_or_missing() {
    let build = || MockServer::builder().agent("mock", Script::default().installed(false));
    let server = build().start().await;
    let (status, problem) = at(&server, "/a?agent=mock").post(initialize()).await;
    assert_eq!((status, kind(&problem)), (502, "stream_error"));
    assert_eq!(reqwest_get(&format!("{}/v1/acp", server.url())).await, json!({ "servers": [] }));
    assert_eq!(
        at(&server, "/b?agent=codex").post(initialize()).await.0,
        200,
        "codex is installed automatically"
    );
    let strict = build().require_preinstall(true).start().await;
    let (status, problem) = at(&strict, "/c?agent=codex").post(initialize()).await;
    assert_eq!((status, kind(&problem)), (404, "agent_not_installed"));
}

async fn reqwest_get(url: &str) -> Value {
    let client = crate::http_client::builder().build().unwrap();
    let body = client.get(url).send().await.unwrap().bytes().await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_test_can_publish_for_the_agent_and_kill_it() {
    let server = MockServer::start().await;
    let (client, _) = started(&server).await;
    let mut events = client.stream(Some(2)).await;
    assert!(server.emit_to("s", json!({ "jsonrpc": "2.0", "method": "_test/hello" })));
    assert!(server.kill_agent_of("s"));
    assert!(!server.emit_to("unknown", json!({})) && !server.kill_agent_of("nobody"));
    assert_eq!(events.next().await.unwrap().json()["method"], "_test/hello");
    let exited = events.next().await.unwrap().json();
    assert_eq!(exited["params"], json!({ "code": null, "success": false }));
}
