//! The input and output of a running process.

use std::io::ErrorKind;

use mock_server::{Agent, ExitStatus, Outlet, ProcessAgent};
use serde_json::{Value, json};

use crate::probe::{Probe, stub};

fn cancel(session: &str) -> Value {
    json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } })
}

#[tokio::test]
async fn a_prompt_streams_its_updates_before_its_response() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "hello; updates 3 bytes 5").await;
    let answer = probe.message(|message| message["id"] == 3).await;
    assert_eq!(answer["result"]["stopReason"], "end_turn");
    assert_eq!(probe.texts(), ["stub: hello", "xxxxx", "xxxxx", "xxxxx"]);
    let lines = probe.lines();
    assert!(lines.last().unwrap().contains("stopReason"), "the response comes last: {lines:#?}");
}

#[tokio::test]
async fn sessions_are_listed_loaded_resumed_forked_and_closed() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "say one").await;
    probe.message(|message| message["id"] == 3).await;

    let fork = probe.call(4, "session/fork", json!({ "sessionId": session, "cwd": "/" })).await;
    let forked = fork["result"]["sessionId"].as_str().unwrap().to_owned();
    assert_ne!(forked, session);
    let listed = probe.call(5, "session/list", json!({})).await;
    assert_eq!(listed["result"]["sessions"].as_array().unwrap().len(), 2);

    probe.call(6, "session/load", json!({ "sessionId": forked, "cwd": "/", "mcpServers": [] })).await;
    assert_eq!(probe.texts(), ["one", "say one", "one"], "a load replays the conversation");
    let resumed = probe.call(7, "session/resume", json!({ "sessionId": "elsewhere", "cwd": "/" })).await;
    assert_eq!(resumed["result"]["modes"]["currentModeId"], "build");

    for (id, method) in [(8, "session/close"), (9, "session/delete")] {
        let ended = probe.call(id, method, json!({ "sessionId": "elsewhere" })).await;
        assert_eq!(ended["result"], json!({}));
    }
    probe.prompt(10, "elsewhere", "say no").await;
    assert_eq!(probe.message(|message| message["id"] == 10).await["error"]["code"], -32002);
    assert_eq!(probe.call(11, "session/dance", json!({})).await["error"]["code"], -32601);
}

#[tokio::test]
async fn settings_of_a_session_can_be_changed() {
    let (probe, session) = Probe::session(&[]).await;
    let mode = json!({ "sessionId": session, "modeId": "plan" });
    assert_eq!(probe.call(3, "session/set_mode", mode).await["result"], json!({}));
    probe.message(|message| message["params"]["update"]["currentModeId"] == "plan").await;
    let model = json!({ "sessionId": session, "modelId": "stub-large" });
    assert_eq!(probe.call(4, "session/set_model", model).await["result"], json!({}));
    let option = json!({ "sessionId": session, "configId": "model", "value": "stub-small" });
    let options = probe.call(5, "session/set_config_option", option).await;
    assert_eq!(options["result"]["configOptions"][0]["currentValue"], "stub-small");
}

#[tokio::test]
async fn an_agent_request_is_settled_by_the_clients_response() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "permission; fs-read /notes.txt").await;
    let permission = probe.message(|message| message["method"] == "session/request_permission").await;
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "allow" } });
    probe.send(json!({ "jsonrpc": "2.0", "id": permission["id"], "result": outcome })).await.unwrap();
    let read = probe.message(|message| message["method"] == "fs/read_text_file").await;
    assert_eq!(read["params"]["path"], "/notes.txt");
    probe.send(json!({ "jsonrpc": "2.0", "id": read["id"], "result": { "content": "42" } })).await.unwrap();
    probe.message(|message| message["id"] == 3).await;
    assert_eq!(probe.texts(), ["permission: allow", "file: 42"]);
}

#[tokio::test]
async fn a_hanging_turn_ends_when_it_is_cancelled() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "say before; hang; late 20").await;
    probe.message(|message| message["params"]["update"]["content"]["text"] == "before").await;
    probe.send(cancel(&session)).await.unwrap();
    let answer = probe.message(|message| message["id"] == 3).await;
    assert_eq!(answer["result"]["stopReason"], "cancelled");
}

#[tokio::test]
async fn every_line_is_forwarded_except_blank_ones() {
    let (probe, session) = Probe::session(&[]).await;
    let before = probe.lines().len();
    probe.prompt(3, &session, "garbage").await;
    probe.message(|message| message["id"] == 3).await;
    let lines = probe.lines();
    let printed = ["this is not json", "{\"half\":", "42", "[1,2]", "\"text\""];
    assert_eq!(lines[before..before + printed.len()], printed);
}

#[tokio::test]
async fn a_message_of_megabytes_passes_both_ways() {
    let (probe, session) = Probe::session(&[]).await;
    let text = "m".repeat(2 * 1024 * 1024);
    probe.prompt(3, &session, &format!("say {text}")).await;
    probe.message(|message| message["id"] == 3).await;
    assert_eq!(probe.texts(), [text]);
}

#[tokio::test]
async fn an_agent_that_closes_its_output_keeps_running() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "close-stdout; say lost; stderr 1; hang; exit 6").await;
    // Standard error shows that the turn continued after the output was closed.
    probe.stderr_line("stderr line 1").await;
    assert_eq!(probe.texts(), Vec::<String>::new());
    probe.send(cancel(&session)).await.unwrap();
    assert_eq!(probe.exit().await.status, ExitStatus::Code(6));
}

#[tokio::test]
async fn arguments_environment_and_directory_reach_the_process() {
    let script = r#"printf '"%s %s %s"\n' "$GREETING" "$1" "$PWD"; exec cat"#;
    let agent = ProcessAgent::new("sh").args(["-c", script, "sh", "a b"]).env("GREETING", "hi").cwd("/proc");
    let probe = Probe::launch(&agent).await;
    assert_eq!(probe.message(|_| true).await, "hi a b /proc");
    probe.send(json!([1, { "two": null }])).await.unwrap();
    probe.message(|message| *message == json!([1, { "two": null }])).await;
}

#[tokio::test]
async fn the_error_of_a_command_that_cannot_be_started_has_its_cause() {
    let silent = || Outlet::new(|_| {});
    let missing = ProcessAgent::new("/no/such/agent").launch(silent()).await;
    assert_eq!(missing.unwrap_err().0.kind(), ErrorKind::NotFound);
    let nowhere = stub(&[]).cwd("/no/such/directory").launch(silent()).await;
    assert_eq!(nowhere.unwrap_err().0.kind(), ErrorKind::NotFound);
    let forbidden = ProcessAgent::new("/proc/self/status").launch(silent()).await;
    assert_eq!(forbidden.unwrap_err().0.kind(), ErrorKind::PermissionDenied);
}

#[tokio::test]
async fn text_before_a_message_on_the_same_line_does_not_lose_the_message() {
    let script = r#"read line; printf 'Loaded cached credentials.{"jsonrpc":"2.0","id":1,"result":{"ok":true}}\n'; cat"#;
    let probe = Probe::launch(&ProcessAgent::new("sh").args(["-c", script])).await;
    let answer = probe.call(1, "initialize", json!({})).await;
    assert_eq!(answer["result"], json!({ "ok": true }));
    assert_eq!(probe.lines()[0], "Loaded cached credentials.");
}
