use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::client::{Client, SOON, initialize_params, prompt, request};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mock-server"));
    command.kill_on_drop(true).stdin(Stdio::null()).env("RUST_LOG", "mock_server=debug");
    command
}

/// Starts the program on a free port. Returns its output lines and a client.
async fn started(arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>, Client) {
    let mut command = program();
    command.args(["--port", "0"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    let url = first.strip_prefix("listening on ").unwrap().to_owned();
    (child, lines, Client::at(format!("{url}/v1/rpc")))
}

#[tokio::test]
async fn bad_flags_get_a_clear_message_and_exit_code_two() {
    for (arguments, message) in [
        (vec!["--port", "x"], "mock-server: 'x' is not a port; see --help\n"),
        (vec!["--scenario", "x"], "mock-server: unknown scenario 'x', try --list-scenarios; see --help\n"),
        (vec!["--what"], "mock-server: unknown option '--what'; see --help\n"),
    ] {
        let output = program().args(arguments).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), message);
    }
}

#[tokio::test]
async fn help_and_scenarios_are_printed() {
    let help = program().arg("--help").output().await.unwrap();
    assert!(help.status.success() && String::from_utf8(help.stdout).unwrap().contains("--agent-command"));
    let list = program().arg("--list-scenarios").output().await.unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    for scenario in mock_server::Scenario::all() {
        assert!(list.contains(scenario.name()), "{}", scenario.name());
    }
}

#[tokio::test]
async fn both_signals_shut_it_down_gracefully_and_suspend_sessions() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut child, mut lines, client) = started(&[]).await;
        client.session().await;
        let events = client.stream(None).await;
        kill(Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()), signal).unwrap();
        assert!(events.bytes().await.1.is_ok(), "streams end cleanly");
        let status = tokio::time::timeout(SOON, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(0));
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "stopped; 1 active sessions are suspended");
    }
}

#[tokio::test]
async fn a_port_in_use_is_reported_as_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = program().args(["--port", &port]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("mock-server: cannot listen on"));
}

#[tokio::test]
async fn a_scenario_and_a_token_take_effect_and_the_log_is_readable() {
    let (mut child, _lines, client) = started(&["--scenario", "crash", "--token", "T"]).await;
    assert_eq!(client.post(request(1, "initialize", initialize_params())).await.0, 401);
    let token = client.http.post(&client.url).bearer_auth("T").header("content-type", "application/json");
    let body = request(2, "initialize", initialize_params()).to_string();
    assert_eq!(token.body(body).send().await.unwrap().status(), 200);
    child.start_kill().unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    for part in ["POST", "/v1/rpc", "initialize", "401", "200"] {
        assert!(log.contains(part), "{part} in {log}");
    }
    assert!(!log.contains("Bearer"), "no token is logged");
}

#[tokio::test]
async fn a_request_from_another_origin_is_refused_and_processes_are_off() {
    let (_child, _lines, client) = started(&[]).await;
    let get = |path: &str| client.http.get(client.url.replace("/v1/rpc", path));
    for host in ["localhost", "localhost:1", "127.0.0.1:2468", "127.8.8.8", "[::1]:80", "LOCALHOST"] {
        assert_eq!(get("/v1/health").header("host", host).send().await.unwrap().status(), 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:2468",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
    ] {
        let status = get("/v1/health").header("host", host).send().await.unwrap().status();
        assert!([400, 403].contains(&status.as_u16()), "{host}: {status}");
    }
    assert_eq!(get("/v1/processes").send().await.unwrap().status(), 404);
    let (_child, _lines, client) = started(&["--processes"]).await;
    let processes = client.http.get(client.url.replace("/v1/rpc", "/v1/processes"));
    assert_eq!(processes.send().await.unwrap().status(), 200);
}

/// The parser replaces an object with this member by the JSON in its string, whose depth is counted from zero.
#[tokio::test]
async fn a_small_body_without_a_token_does_not_overflow_the_stack() {
    let nested = (0..60).fold("0".to_owned(), |inner, _| {
        let quoted = inner.replace('\\', "\\u005c").replace('"', "\\u0022");
        let object = format!(r#"{{"$serde_json::private::RawValue":"{quoted}"}}"#);
        format!("{}{object}{}", "[".repeat(120), "]".repeat(120))
    });
    let (_child, _lines, client) = started(&["--token", "T"]).await;
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{nested}}}"#);
    for path in ["/v1/rpc", "/v1/acp/a?agent=mock", "/acp"] {
        for token in ["", "T"] {
            let post = client.http.post(client.url.replace("/v1/rpc", path)).bearer_auth(token);
            let status = post
                .header("content-type", "application/json")
                .body(body.clone())
                .send()
                .await
                .unwrap()
                .status();
            assert!(status.is_client_error(), "{path}: {status}");
        }
    }
    let post = client.http.post(&client.url).bearer_auth("T").header("content-type", "application/json");
    let body = request(2, "initialize", initialize_params()).to_string();
    assert_eq!(post.body(body).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn an_agent_command_is_run_as_the_agent() {
    let stub = env!("CARGO_BIN_EXE_stub-agent");
    let (_child, _lines, client) = started(&["--agent-command", stub]).await;
    let session = client.session().await;
    let (status, body) = client.post(prompt("p", &session, "hello")).await;
    assert_eq!((status, body.get("error")), (200, None));
    assert_ne!(body["result"]["stopReason"], json!(null));
}

#[tokio::test]
async fn a_small_soak_loses_nothing() {
    let output = Command::new(env!("CARGO_BIN_EXE_soak")).args(["20", "200"]).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("20 streams were open at once") && text.contains("none lost and none duplicated"));
}
