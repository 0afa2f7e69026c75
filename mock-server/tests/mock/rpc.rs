use mock_server::{MockServer, Script, Step};
use serde_json::{Value, json};

use crate::client::{Client, ids, initialize_params, prompt, request};

#[tokio::test]
async fn a_prompt_streams_its_updates_then_its_response_and_answers_in_the_body() {
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
