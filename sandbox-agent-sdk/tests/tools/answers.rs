//! Tools behind the messages of an agent, without a client.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use futures::future::BoxFuture;
use sandbox_agent_sdk::error::RpcError;
use sandbox_agent_sdk::tools::{AgentTools, FileError, ReadText, Terminals, TextFiles, WriteText};
use serde_json::{Value, json};

use super::support::{Place, until, within};

async fn ask(tools: &AgentTools, method: &str, params: Value) -> Result<Value, RpcError> {
    within(tools.respond(method, &params).expect("it is on")).await
}

#[tokio::test]
async fn what_is_off_is_neither_offered_nor_answered() {
    let place = Place::new();
    let off = json!({"fs": {"readTextFile": false, "writeTextFile": false}, "terminal": false});
    assert_eq!(AgentTools::new().capabilities(), off);
    let all = [
        "fs/read_text_file",
        "fs/write_text_file",
        "terminal/create",
        "terminal/output",
        "terminal/wait_for_exit",
        "terminal/kill",
        "terminal/release",
    ];
    for method in all {
        assert!(AgentTools::new().respond(method, &json!({})).is_none(), "{method}");
    }
    let reading = AgentTools::new().files(place.files().read_only());
    assert_eq!(reading.capabilities()["fs"], json!({"readTextFile": true, "writeTextFile": false}));
    assert!(reading.respond("fs/write_text_file", &json!({})).is_none());
    assert!(reading.respond("terminal/create", &json!({})).is_none());
    let terminals = AgentTools::new().terminals(place.terminals());
    assert_eq!(terminals.capabilities()["terminal"], true);
    assert!(terminals.respond("fs/read_text_file", &json!({})).is_none());
    for method in ["terminal/dance", "terminal/", "fs/delete", "session/update", ""] {
        assert!(reading.respond(method, &json!({})).is_none(), "{method}");
        assert!(terminals.respond(method, &json!({})).is_none(), "{method}");
    }
}

#[tokio::test]
async fn files_are_read_and_written_by_messages() {
    let place = Place::new();
    let tools = AgentTools::new().files(place.files());
    let path = place.at("a/f");
    let wrote =
        ask(&tools, "fs/write_text_file", json!({"sessionId": "s", "path": path, "content": "one\ntwo\n"}))
            .await;
    assert_eq!(wrote.unwrap(), json!({}));
    let read = |extra: Value| {
        let mut params = json!({"sessionId": "s", "path": path});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ask(&tools, "fs/read_text_file", params)
    };
    assert_eq!(read(json!({})).await.unwrap(), json!({"content": "one\ntwo\n"}));
    assert_eq!(read(json!({"line": null, "limit": null})).await.unwrap(), json!({"content": "one\ntwo\n"}));
    assert_eq!(read(json!({"line": 2, "limit": 1})).await.unwrap(), json!({"content": "two\n"}));
    for odd in [json!({"line": -1}), json!({"line": 1.5}), json!({"limit": "1"}), json!({"path": 5})] {
        assert_eq!(read(odd.clone()).await.unwrap_err().code, RpcError::INVALID_PARAMS, "{odd}");
    }
    let errors = [
        (json!({"path": place.at("none")}), RpcError::NOT_FOUND, "not_found"),
        (json!({"path": "/etc/passwd"}), RpcError::INVALID_PARAMS, "outside"),
        (json!({"path": "relative"}), RpcError::INVALID_PARAMS, "not_absolute"),
        (json!({"path": place.root()}), RpcError::INVALID_PARAMS, "not_a_file"),
    ];
    for (extra, code, reason) in errors {
        let error = read(extra).await.unwrap_err();
        assert_eq!((error.code, &error.data.unwrap()["reason"]), (code, &json!(reason)));
    }
}

#[tokio::test]
async fn terminals_are_used_by_messages() {
    let place = Place::new();
    let tools = AgentTools::new().terminals(place.terminals());
    let create = json!({
        "sessionId": "s", "command": "/bin/sh", "args": ["-c", "printf \"$A\" >&2; exit 3"],
        "env": [{"name": "A", "value": "0123456789"}], "cwd": place.root(), "outputByteLimit": 8,
    });
    let id = ask(&tools, "terminal/create", create).await.unwrap()["terminalId"].clone();
    let of = |extra: Value| {
        let mut params = json!({"sessionId": "s", "terminalId": id});
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        params
    };
    let exit = ask(&tools, "terminal/wait_for_exit", of(json!({}))).await.unwrap();
    assert_eq!(exit, json!({"exitCode": 3, "signal": null, "exitStatus": {"exitCode": 3, "signal": null}}));
    let output = ask(&tools, "terminal/output", of(json!({}))).await.unwrap();
    let status = json!({"exitCode": 3, "signal": null});
    let expected = json!({"output": "23456789", "truncated": true, "exitStatus": status, "exitCode": 3});
    assert_eq!(output, expected);
    let output = ask(&tools, "terminal/output", of(json!({"outputByteLimit": 2}))).await.unwrap();
    assert_eq!((&output["output"], &output["truncated"]), (&json!("89"), &json!(true)));
    let foreign = ask(&tools, "terminal/output", of(json!({"sessionId": "t"}))).await.unwrap_err();
    assert_eq!(
        (foreign.code, &foreign.data.unwrap()["reason"]),
        (RpcError::NOT_FOUND, &json!("unknown_terminal"))
    );
    assert_eq!(ask(&tools, "terminal/kill", of(json!({}))).await.unwrap(), json!({}));
    assert_eq!(ask(&tools, "terminal/release", of(json!({}))).await.unwrap(), json!({}));
    assert_eq!(ask(&tools, "terminal/release", of(json!({}))).await.unwrap_err().code, RpcError::NOT_FOUND);
}

#[tokio::test]
async fn a_command_that_runs_has_no_status_and_one_that_was_killed_has_a_signal() {
    let place = Place::new();
    let tools = AgentTools::new().terminals(place.terminals());
    let create = json!({"sessionId": "s", "command": "sleep", "args": ["1000"]});
    let id = ask(&tools, "terminal/create", create).await.unwrap()["terminalId"].clone();
    let of = json!({"sessionId": "s", "terminalId": id});
    let output = ask(&tools, "terminal/output", of.clone()).await.unwrap();
    assert_eq!(output, json!({"output": "", "truncated": false, "exitStatus": null, "exitCode": null}));
    ask(&tools, "terminal/kill", of.clone()).await.unwrap();
    let exit = ask(&tools, "terminal/wait_for_exit", of.clone()).await.unwrap();
    let status = json!({"exitCode": null, "signal": "SIGKILL"});
    assert_eq!(exit, json!({"exitCode": null, "signal": "SIGKILL", "exitStatus": status}));
    let output = ask(&tools, "terminal/output", of).await.unwrap();
    assert_eq!((&output["exitStatus"], &output["exitCode"]), (&status, &Value::Null));
}

#[tokio::test]
async fn messages_that_cannot_be_read_are_refused_with_the_name_of_the_parameter() {
    let place = Place::new();
    let tools = AgentTools::new().files(place.files()).terminals(place.terminals());
    let table = [
        ("fs/read_text_file", json!(null), "path"),
        ("fs/read_text_file", json!([]), "path"),
        ("fs/write_text_file", json!({"path": place.at("f")}), "content"),
        ("fs/write_text_file", json!({"path": place.at("f"), "content": 5}), "content"),
        ("terminal/create", json!({"command": "true"}), "sessionId"),
        ("terminal/create", json!({"sessionId": "s"}), "command"),
        ("terminal/create", json!({"sessionId": "s", "command": "true", "args": "x"}), "args"),
        ("terminal/create", json!({"sessionId": "s", "command": "true", "args": [1]}), "args"),
        ("terminal/create", json!({"sessionId": "s", "command": "true", "env": [{"name": "A"}]}), "value"),
        ("terminal/create", json!({"sessionId": "s", "command": "true", "env": {"A": "B"}}), "env"),
        ("terminal/create", json!({"sessionId": "s", "command": "true", "cwd": 5}), "cwd"),
        (
            "terminal/create",
            json!({"sessionId": "s", "command": "true", "outputByteLimit": -5}),
            "outputByteLimit",
        ),
        ("terminal/output", json!({"sessionId": "s"}), "terminalId"),
        ("terminal/kill", json!({"terminalId": "t"}), "sessionId"),
    ];
    for (method, params, name) in table {
        let error = ask(&tools, method, params.clone()).await.unwrap_err();
        assert_eq!(error.code, RpcError::INVALID_PARAMS, "{method} {params}");
        assert_eq!(error.data.unwrap()["parameter"], name, "{method} {params}");
    }
    assert!(!place.at("f").exists());
}

/// The buffers of an editor.
#[derive(Default)]
struct Buffers(Mutex<HashMap<PathBuf, String>>);

impl TextFiles for Buffers {
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>> {
        let buffers = self.0.lock().unwrap();
        let text = buffers.get(&request.path).map(|text| request.range.of(text).to_owned());
        Box::pin(async move { text.ok_or(FileError::NotFound(request.path)) })
    }

    fn write(&self, request: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        let refused = request.raw["_meta"]["lock"] == true;
        self.0.lock().unwrap().insert(request.path, request.content);
        Box::pin(async move { if refused { Err(FileError::Refused("it is locked".into())) } else { Ok(()) } })
    }
}

#[tokio::test]
async fn files_can_be_anything_that_has_paths_and_text() {
    let tools = AgentTools::new().files(Buffers::default());
    let params = json!({"path": "buffer:7", "content": "a\nb\nc"});
    ask(&tools, "fs/write_text_file", params).await.unwrap();
    let read = ask(&tools, "fs/read_text_file", json!({"path": "buffer:7", "line": 2, "limit": 1})).await;
    assert_eq!(read.unwrap(), json!({"content": "b\n"}));
    let error = ask(&tools, "fs/read_text_file", json!({"path": "buffer:8"})).await.unwrap_err();
    assert_eq!(error.code, RpcError::NOT_FOUND);
    let params = json!({"path": "buffer:7", "content": "x", "_meta": {"lock": true}});
    assert_eq!(ask(&tools, "fs/write_text_file", params).await.unwrap_err().message, "it is locked");
}

#[tokio::test]
async fn dropping_the_tools_ends_the_terminals() {
    let place = Place::new();
    let tools = AgentTools::new().terminals(place.terminals());
    let create =
        json!({"sessionId": "s", "command": "/bin/sh", "args": ["-c", "echo $$ > pid; exec sleep 1000"]});
    ask(&tools, "terminal/create", create).await.unwrap();
    let pid = || std::fs::read_to_string(place.at("pid")).unwrap_or_default().trim().to_owned();
    until(|| !pid().is_empty()).await;
    assert!(super::looking::runs(&pid()));
    drop(tools);
    until(|| !super::looking::runs(&pid())).await;
}

#[tokio::test]
async fn no_more_calls_work_at_once_than_may() {
    let place = Place::new();
    let tools = AgentTools::new().terminals(place.terminals()).files(place.files()).max_calls(2);
    let create = json!({"sessionId": "s", "command": "sleep", "args": ["1000"]});
    let id = ask(&tools, "terminal/create", create).await.unwrap()["terminalId"].clone();
    let of = json!({"sessionId": "s", "terminalId": id});
    let waits: Vec<_> = (0..2).map(|_| tools.respond("terminal/wait_for_exit", &of).unwrap()).collect();
    for (method, params) in [("terminal/output", &of), ("fs/read_text_file", &json!({"path": "/x"}))] {
        let error = ask(&tools.clone(), method, params.clone()).await.unwrap_err();
        let data = error.data.unwrap();
        assert_eq!((&data["reason"], &data["limit"]), (&json!("too_many_calls"), &json!(2)), "{method}");
    }
    drop(waits);
    ask(&tools, "terminal/release", of).await.unwrap();
}

#[tokio::test]
async fn a_start_that_the_end_of_its_session_crosses_starts_nothing() {
    let place = Place::new();
    let terminals = place.terminals();
    let tools = AgentTools::new().terminals(terminals.clone());
    let create = |session: &str| {
        let params = json!({"sessionId": session, "command": "/bin/sh", "args": ["-c", "touch started"]});
        tools.respond("terminal/create", &params).unwrap()
    };
    let (crossed, other, dropped) = (create("s"), create("t"), create("t"));
    within(terminals.release_session("s")).await;
    let error = within(crossed).await.unwrap_err();
    assert_eq!(error.data.unwrap()["reason"], "closed");
    drop(dropped);
    assert!(!place.at("started").exists() && terminals.count() == 0);
    within(other).await.unwrap();
    let again = create("s");
    within(again).await.unwrap();
    assert_eq!(terminals.count(), 2, "a session that is there again can start again");
    let (crossed, orphan) = (create("s"), create("s"));
    terminals.close();
    assert_eq!(within(crossed).await.unwrap_err().data.unwrap()["reason"], "closed");
    drop((terminals, tools));
    assert_eq!(within(orphan).await.unwrap_err().data.unwrap()["reason"], "closed", "it keeps nothing alive");
}

#[tokio::test]
async fn places_that_are_reserved_count_and_are_given_back() {
    let place = Place::new();
    let tools = AgentTools::new().terminals(Terminals::new(place.options().max_terminals(2)));
    let params = json!({"sessionId": "s", "command": "true"});
    for _ in 0..3 {
        let places: Vec<_> = (0..2).map(|_| tools.respond("terminal/create", &params).unwrap()).collect();
        let error = ask(&tools, "terminal/create", params.clone()).await.unwrap_err();
        assert_eq!(error.data.unwrap()["reason"], "too_many");
        drop(places);
    }
    ask(&tools, "terminal/create", json!({"sessionId": "s", "command": "no-such-program"}))
        .await
        .unwrap_err();
    ask(&tools, "terminal/create", params.clone()).await.unwrap();
    ask(&tools, "terminal/create", params).await.unwrap();
}
