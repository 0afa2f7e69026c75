//! The program `record`, as a first-time user sees it.

use std::{fs, path::Path, process::Stdio};

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::ClientOptions;
use sdk_tests::{Capture, Replay, Scenario, within};
use tokio::process::Command;

/// The exit code and the output.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

async fn record(words: &[&str], token: &str) -> Ended {
    // The program looks for the stub agent beside itself.
    assert!(Path::new(super::servers::STUB).exists());
    let mut program = Command::new(env!("CARGO_BIN_EXE_record"));
    program.args(words).env("SANDBOX_AGENT_TOKEN", token).stdin(Stdio::null()).kill_on_drop(true);
    let output = within("a recording", program.output()).await.expect("the program runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test]
async fn help_names_every_scenario() {
    let ended = record(&["--help"], "").await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    for scenario in Scenario::ALL {
        assert!(ended.out.contains(scenario.name()), "{}", ended.out);
    }
}

#[tokio::test]
async fn an_invalid_argument_is_reported_in_one_line() {
    for words in [&["--loud"][..], &["--scenario"], &["--scenario", "dance"], &["turn"], &["--url"]] {
        let ended = record(words, "").await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{words:?}");
        assert!(ended.err.starts_with("record: ") && ended.err.ends_with("; see --help\n"), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported_in_one_line() {
    // A port that was free a moment ago, so nothing listens on it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for url in [url.as_str(), "nonsense"] {
        let ended = record(&["--url", url, "--scenario", "turn"], "").await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
        assert!(ended.err.starts_with(&format!("record: turn: failed to reach {url}: ")), "{}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
}

#[tokio::test]
async fn a_rejected_token_is_reported_in_one_line() {
    let server = MockServer::builder().token("right").start().await;
    let ended = record(&["--url", &server.url(), "--scenario", "turn"], "wrong").await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    assert!(ended.err.starts_with("record: turn: ") && ended.err.contains("token"), "{}", ended.err);
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}

/// The agent repeats the token, and the name of its endpoint is secret.
#[tokio::test]
async fn no_secret_gets_into_a_recording() {
    const TOKEN: &str = "hush-hush-0123456789";
    let script = Script::new(|_| vec![Step::Say(format!("my token is {TOKEN}"))]);
    let server = MockServer::builder().agent("mock", script).token(TOKEN).start().await;
    let ended = record(&["--url", &server.url(), "--scenario", "turn"], TOKEN).await;
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert!(ended.out.contains("my token is TOKEN"), "{}", ended.out);
    assert!(!ended.out.contains("hush") && !ended.out.to_lowercase().contains("bearer"), "{}", ended.out);
}

#[tokio::test]
async fn a_recording_is_not_replaced_by_accident_and_can_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("captures").display().to_string();
    let words = ["--mock", "--scenario", "permission", "--out", &out];
    let ended = record(&words, "").await;
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    let file = folder.path().join("captures/mock-server-permission.jsonl");
    let first = fs::read_to_string(&file).unwrap();

    let again = record(&words, "").await;
    assert_eq!(again.code, Some(1));
    assert!(again.err.contains("mock-server-permission.jsonl: File exists"), "{}", again.err);
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    let replaced = record(&[&words[..], &["--overwrite"]].concat(), "").await;
    assert_eq!(replaced.code, Some(0), "{}", replaced.err);

    let capture = Capture::read(&file).expect("a capture");
    let replay = Replay::start(&capture).await;
    let observed = Scenario::Permission.run(ClientOptions::new(replay.url()).agent("mock"));
    let observed = within("the replay", observed).await.expect("a connection and a session");
    assert_eq!(observed, capture.observed);
    assert_eq!(replay.unexpected(), Vec::<String>::new());
}
