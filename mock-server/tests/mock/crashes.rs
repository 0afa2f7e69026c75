use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mock_server::{Crash, ExitStatus, MockServer, Permission, Script, Step, ToolCall, Turn};
use serde_json::{Value, json};

use crate::client::{Client, Event, initialize_params, prompt, request};

fn ended(events: &[Event]) -> Vec<Value> {
    let messages = events.iter().map(Event::json);
    let notices = messages.filter(|message| message["method"] == "_sandboxagent/session/ended");
    notices.map(|message| message["params"].clone()).collect()
}

/// Sends a prompt that kills the agent. Returns the events, the response and the session.
async fn crash(server: &MockServer) -> (Vec<Event>, Value, String) {
    let client = Client::new(server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    let (status, body) = client.post(prompt("p", &session, "go")).await;
    assert_eq!(status, 200);
    (events.until_response("p").await, body, session)
}

#[tokio::test]
async fn the_lines_of_stderr_since_the_prompt_are_counted_for_the_session_of_the_turn() {
    let steps = |turn: &Turn| match turn.text.as_str() {
        "go" => vec![Step::crash(1, ["boom 1", "boom 2"])],
        _ => (1..=3).map(|line| Step::Stderr(format!("warning {line}"))).collect(),
    };
    let server = MockServer::builder().agent("mock", Script::new(steps)).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    client.post(prompt("before", &session, "warn")).await;
    let (seen, body, crashed) = crash(&server).await;
    assert_eq!(body["error"]["data"]["terminationInfo"]["stderr"]["turnLines"], 2, "{body}");
    for notice in ended(&seen) {
        let stderr = &notice["data"]["stderr"];
        assert_eq!(stderr["total_lines"], 5, "{notice}");
        let is_of_turn = notice["session_id"] == crashed.as_str();
        assert_eq!(stderr.get("turn_lines"), is_of_turn.then_some(&json!(2)), "{notice}");
    }
}

#[tokio::test]
async fn every_amount_of_stderr_is_shortened_by_the_head_and_tail_rule() {
    for lines in [0_usize, 2, 100, 101, 10_000] {
        let stderr = (1..=lines).map(|number| format!("line {number}"));
        let step = Step::crash(1, stderr);
        let server = MockServer::builder().agent("mock", Script::steps(vec![step])).start().await;
        let (seen, body, session) = crash(&server).await;
        let notices = ended(&seen);
        assert_eq!(notices.len(), 1);
        let join = |from: usize, to: usize| {
            (from..=to).map(|number| format!("line {number}")).collect::<Vec<_>>().join("\n")
        };
        let expected = match lines {
            0 => Value::Null,
            1..=100 => json!({ "head": join(1, lines), "truncated": false, "total_lines": lines }),
            _ => json!({
                "head": join(1, 50), "tail": join(lines - 49, lines), "truncated": true, "total_lines": lines,
            }),
        };
        assert_eq!(notices[0]["data"]["stderr"], expected, "{lines} lines");
        let total = body.pointer("/error/data/terminationInfo/stderr/totalLines");
        assert_eq!(total.and_then(Value::as_u64).unwrap_or(0), lines as u64);
        let info = &server.session(&session).unwrap()["terminationInfo"];
        assert_eq!(body["error"]["data"]["terminationInfo"], *info);
    }
}

#[tokio::test]
async fn the_exit_status_is_reported_exactly() {
    for (status, reason, code, signal, message) in [
        (ExitStatus::Code(0), "completed", Value::Null, Value::Null, Value::Null),
        (
            ExitStatus::Code(7),
            "error",
            json!(7),
            Value::Null,
            json!("agent exited with status ExitStatus(unix_wait_status(1792))"),
        ),
        (
            ExitStatus::Signal(9),
            "error",
            Value::Null,
            json!("SIGKILL"),
            json!("agent exited with status ExitStatus(unix_wait_status(9))"),
        ),
        (
            ExitStatus::Signal(11),
            "error",
            Value::Null,
            json!("SIGSEGV"),
            json!("agent exited with status ExitStatus(unix_wait_status(11))"),
        ),
    ] {
        let step = Step::Crash(Crash { status, stderr: vec!["x".into()] });
        let server = MockServer::builder().agent("mock", Script::steps(vec![step])).start().await;
        let (seen, body, _) = crash(&server).await;
        let data = ended(&seen)[0]["data"].clone();
        assert_eq!(data["reason"], reason, "{status:?}");
        assert_eq!(data["terminated_by"], "agent");
        assert_eq!((&data["exit_code"], &data["signal"], &data["message"]), (&code, &signal, &message));
        assert_eq!(body["error"]["code"], -32000);
    }
}

#[tokio::test]
async fn a_crash_at_any_moment_ends_the_session_before_the_prompt_fails() {
    let call = ToolCall::new("t", "Tool");
    let permission = Permission::new(call.clone()).then(|_| vec![Step::crash(1, ["after the response"])]);
    for (moment, steps) in [
        ("mid-update", vec![Step::Say("one".into()), Step::crash(1, ["x"])]),
        ("tool call", vec![Step::ToolCall(call.clone()), Step::crash(1, ["x"])]),
        ("permission pending", vec![Step::AskPermission(permission)]),
    ] {
        let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
        let client = Client::new(&server);
        let session = client.session().await;
        let mut events = client.stream(None).await;
        let message = prompt("p", &session, "go");
        let drive = async {
            let mut seen = Vec::new();
            loop {
                let event = events.next().await.unwrap();
                let json = event.json();
                seen.push(event);
                if json["method"] == "session/request_permission" {
                    // The agent is killed while its request is pending.
                    assert!(server.kill_agent("mock"));
                }
                if json["id"] == "p" {
                    return seen;
                }
            }
        };
        let ((_, body), seen) = tokio::join!(client.post(message), drive);
        assert_eq!(body["error"]["code"], -32000, "{moment}");
        assert_eq!(ended(&seen).len(), 1, "{moment}");
        assert_eq!(seen[seen.len() - 2].json()["method"], "_sandboxagent/session/ended", "{moment}");
    }
}

#[tokio::test]
async fn a_crash_between_turns_is_reported_without_a_prompt() {
    let steps = vec![
        Step::Answer("end_turn".into()),
        Step::Wait(Duration::from_millis(20)),
        Step::Say("late text".into()),
        Step::crash(5, ["idle"]),
    ];
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    assert_eq!(client.result(prompt("p", &session, "go")).await["stopReason"], "end_turn");
    let seen = events.until(|message| message["method"] == "_sandboxagent/session/ended").await;
    assert_eq!(ended(&seen)[0]["data"]["exit_code"], 5);
    assert_eq!(seen[seen.len() - 2].json()["params"]["update"]["content"]["text"], "late text");
}

#[tokio::test]
async fn a_crash_during_the_handshake_fails_the_handshake() {
    let script = Script::default()
        .on_request(|method, _| (method == "initialize").then(|| vec![Step::crash(1, ["no config"])]));
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = Client::new(&server);
    let (status, body) = client.post(request("init", "initialize", initialize_params())).await;
    assert_eq!(status, 200);
    let info = &body["error"]["data"]["terminationInfo"];
    assert_eq!((&info["exitCode"], &info["stderr"]["head"]), (&json!(1), &json!("no config")));
}

#[tokio::test]
async fn a_crash_ends_every_session_of_the_agent_and_no_other() {
    let script = Script::new(|_| vec![Step::crash(1, ["x"])]);
    let server = MockServer::builder().agent("mock", script).agent("other", Script::default()).start().await;
    let client = Client::new(&server);
    let mut sessions = Vec::new();
    for agent in ["mock", "mock", "mock", "other"] {
        let meta = json!({ "sandboxagent.dev": { "agent": agent } });
        let params = json!({ "cwd": "/", "mcpServers": [], "_meta": meta });
        let result = client.result(request("new", "session/new", params)).await;
        sessions.push(result["sessionId"].as_str().unwrap().to_owned());
    }
    sessions.pop();
    client.post(prompt("p", &sessions[0], "go")).await;
    let seen = client.stream(None).await.until_response("p").await;
    let mut ended: Vec<String> =
        ended(&seen).iter().map(|params| params["session_id"].as_str().unwrap().to_owned()).collect();
    ended.sort();
    assert_eq!(ended, sessions);
}

#[tokio::test]
async fn after_a_crash_a_load_starts_the_agent_again() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "die" => vec![Step::crash(1, ["x"])],
        _ => vec![Step::Say("alive".into())],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    assert_eq!(client.post(prompt("p", &session, "die")).await.1["error"]["code"], -32000);
    assert_eq!(
        client.post(prompt("q", &session, "hello")).await.1["error"]["message"],
        "session already ended"
    );
    let list = client.result(request(1, "session/list", json!({}))).await;
    assert_eq!(list["sessions"][0]["_meta"]["sandboxagent.dev"]["terminationInfo"]["exitCode"], 1);
    client
        .result(request(
            "load",
            "session/load",
            json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }),
        ))
        .await;
    assert_eq!(client.result(prompt("r", &session, "hello")).await["stopReason"], "end_turn");
}

#[tokio::test]
async fn the_word_crash_in_a_prompt_kills_the_agent() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let (_, body) = client.post(prompt("p", &session, "please Crash now")).await;
    let info = &body["error"]["data"]["terminationInfo"];
    assert_eq!((&info["exitCode"], &info["stderr"]["totalLines"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn a_cancel_after_a_crash_does_not_start_the_agent_again() {
    let initialised = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&initialised);
    let script = Script::steps(vec![Step::crash(1, ["x"])]).on_request(move |method, _| {
        count.fetch_add(usize::from(method == "initialize"), Ordering::SeqCst);
        None
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let (_, _, session) = crash(&server).await;
    let client = Client::new(&server);
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    assert_eq!(client.post(cancel).await.0, 202);
    assert_eq!(initialised.load(Ordering::SeqCst), 1);
    let load = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    client.result(request("load", "session/load", load)).await;
    assert_eq!(initialised.load(Ordering::SeqCst), 2, "the new agent is initialised like the old one");
}
