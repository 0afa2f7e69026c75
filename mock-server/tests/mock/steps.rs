use std::time::{Duration, Instant};

use mock_server::{MockServer, Script, Step, Terminal, ToolCall};
use serde_json::{Value, json};

use crate::client::{Client, Events, prompt};

/// Plays `steps`, responds to every agent request with the result of `answer`, and returns all messages.
async fn play(steps: Vec<Step>, answer: impl Fn(&Value) -> Value) -> (MockServer, Vec<Value>) {
    let server =
        MockServer::builder().agent("mock", Script::steps(steps)).replay_buffer(usize::MAX).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(Some(2)).await;
    let (_, messages) =
        tokio::join!(client.post(prompt("p", &session, "go")), answering(&client, &mut events, answer));
    (server, messages)
}

async fn answering(client: &Client, events: &mut Events, answer: impl Fn(&Value) -> Value) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        let message = events.next().await.unwrap().json();
        messages.push(message.clone());
        if message.get("method").is_some() && message.get("id").is_some() {
            let result = answer(&message);
            let body = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            assert_eq!(client.post(body).await.0, 202);
        } else if message["id"] == "p" {
            return messages;
        }
    }
}

fn texts(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message.pointer("/params/update/content/text")?.as_str()).collect()
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message.pointer("/params/update/sessionUpdate")?.as_str()).collect()
}

#[tokio::test]
async fn an_agent_says_thinks_and_uses_tools() {
    let steps = vec![
        Step::Think("hm".into()),
        Step::ToolCall(ToolCall::new("t1", "Run")),
        Step::ToolUpdate { id: "t1".into(), status: "completed".into(), text: Some("done".into()) },
        Step::Say("ok".into()),
        Step::Stop("max_tokens".into()),
    ];
    let (_, messages) = play(steps, |_| json!({})).await;
    assert_eq!(
        kinds(&messages),
        ["agent_thought_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
    );
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "max_tokens");
}

#[tokio::test]
async fn an_agent_reads_writes_runs_commands_and_asks_questions() {
    let steps = vec![
        Step::ReadFile { path: "/a".into() },
        Step::WriteFile { path: "/b".into(), content: "new".into() },
        Step::Terminal(Terminal { command: "ls".into(), args: vec!["-l".into()] }),
        Step::AskQuestion { message: "Which?".into(), schema: json!({ "type": "object" }) },
        Step::Request { method: "_vendor/thing".into(), params: json!({ "x": 1 }) },
    ];
    let (server, messages) = play(steps, |request| match request["method"].as_str().unwrap() {
        "fs/read_text_file" => json!({ "content": "old text" }),
        "terminal/create" => json!({ "terminalId": "term-1" }),
        "terminal/output" => json!({ "output": "total 0", "truncated": false }),
        "elicitation/create" => json!({ "action": "accept", "content": { "a": 1 } }),
        _ => json!({}),
    })
    .await;
    assert_eq!(
        texts(&messages),
        [
            "read: old text",
            "write: done",
            "terminal: total 0",
            r#"answer: {"action":"accept","content":{"a":1}}"#
        ]
    );
    let asked: Vec<String> = server.answers().into_iter().map(|answer| answer.method).collect();
    assert_eq!(
        asked,
        [
            "fs/read_text_file",
            "fs/write_text_file",
            "terminal/create",
            "terminal/wait_for_exit",
            "terminal/output",
            "terminal/release",
            "elicitation/create",
            "_vendor/thing",
        ]
    );
}

#[tokio::test]
async fn an_agent_sends_many_requests_at_once() {
    let (server, messages) = play(
        vec![Step::FireRequests(50)],
        |_| json!({ "outcome": { "outcome": "selected", "optionId": "allow_once" } }),
    )
    .await;
    assert_eq!(server.answers().len(), 50);
    assert_eq!(messages.last().unwrap()["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn a_flood_arrives_completely_with_an_unbounded_replay_buffer() {
    let (server, messages) = play(vec![Step::Flood { updates: 20_000, bytes: 64 }], |_| json!({})).await;
    assert_eq!(messages.len(), 20_001);
    assert_eq!(server.last_event_id(), 20_003);
}

#[tokio::test]
async fn words_in_the_prompt_ask_for_permission_and_print_garbage() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(Some(2)).await;
    let selected = json!({ "outcome": { "outcome": "selected", "optionId": "reject_once" } });
    let ((status, _), messages) = tokio::join!(
        client.post(prompt("p", &session, "permission for garbage")),
        answering(&client, &mut events, |_| selected.clone())
    );
    assert_eq!(status, 200);
    assert!(texts(&messages).contains(&"permission: reject_once"));
    assert!(messages.iter().any(|message| message["method"] == "_sandboxagent/agent/unparsed"));
}

#[tokio::test]
async fn words_in_the_prompt_make_the_reply_big_and_slow() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(Some(2)).await;
    let started = Instant::now();
    let (_, messages) = tokio::join!(
        client.post(prompt("p", &session, "big and slow")),
        answering(&client, &mut events, |_| json!({}))
    );
    // Four words with 200 ms between them.
    assert!(started.elapsed() >= Duration::from_millis(600), "{:?}", started.elapsed());
    let texts = texts(&messages);
    assert_eq!(texts.iter().filter(|text| text.len() == 1_024).count(), 1_000);
    assert_eq!(texts[1_000..].concat(), "mock: big and slow");
}
