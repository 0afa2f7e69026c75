//! Runs independent clients from npm against the server.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mock_server::MockServer;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

const PACKAGES: [&str; 2] = ["acp-http-client@0.4.2", "sandbox-agent@0.4.2"];

/// The timeout of installing the packages.
const FETCH_LIMIT: Duration = Duration::from_secs(240);

/// The timeout of one script. It includes the two seconds that the clients wait for a hanging DELETE.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// Returns the folder with the packages, installed once; `None` if npm or the network is unavailable.
async fn packages() -> Option<&'static PathBuf> {
    static FETCHED: OnceCell<Result<PathBuf, String>> = OnceCell::const_new();
    match FETCHED.get_or_init(fetch).await {
        Ok(folder) => Some(folder),
        Err(why) if std::env::var_os("CI").is_some() => panic!("the npm clients cannot be run: {why}"),
        Err(why) => {
            eprintln!("NOT RUN: the npm clients cannot be run: {why}");
            None
        }
    }
}

async fn fetch() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("npm-clients-0.4.2");
    if !folder.join("node_modules/sandbox-agent/package.json").exists() {
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        std::fs::write(folder.join("package.json"), "{\"private\":true}")
            .map_err(|error| error.to_string())?;
        let mut npm = Command::new("npm");
        npm.current_dir(&folder).args([
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--omit=optional",
        ]);
        npm.args(PACKAGES).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(FETCH_LIMIT, npm.output()).await;
        let output = output.map_err(|_| "npm took too long")?.map_err(|error| format!("npm: {error}"))?;
        if !output.status.success() {
            return Err(format!("npm: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(folder)
}

/// Runs a script with the packages and returns its output.
async fn run(folder: &Path, script: &str, arguments: &[&str]) -> Value {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/npm").join(script);
    // Node resolves packages from the directory of the script.
    let copy = folder.join(script);
    let part = folder.join(format!("{script}.{}.{}", std::process::id(), arguments.len()));
    std::fs::copy(source, &part).unwrap();
    std::fs::rename(part, &copy).unwrap();
    let mut node = Command::new("node");
    node.arg(&copy).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(RUN_LIMIT, node.output()).await.expect("node in time").unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[tokio::test]
async fn the_npm_protocol_client_runs_a_whole_session_over_both_of_its_paths() {
    let Some(folder) = packages().await else { return };
    for arguments in [vec!["/v1/rpc"], vec!["/v1/acp/from-node", "mock"]] {
        let server = MockServer::builder().request_timeout(Duration::from_secs(3)).start().await;
        let url = server.url();
        let seen =
            run(folder, "acp-http-client.mjs", &[vec![url.as_str()], arguments.clone()].concat()).await;
        assert_eq!((&seen["version"], &seen["modes"]), (&json!(1), &json!(2)));
        assert_eq!(seen["first"], json!({ "stopReason": "end_turn", "text": "mock: hello from node" }));
        assert_eq!(seen["second"]["stopReason"], "end_turn");
        assert_eq!(seen["asked"], json!([["allow_once", "allow_always", "reject_once"]]));
        assert_eq!(seen["loaded"], true);
        let failed = if arguments.len() == 1 { json!({ "code": -32000 }) } else { json!({ "status": 500 }) };
        assert_eq!(seen["error"], failed, "a crash fails the prompt");
        assert_eq!(server.answers().len(), 1);
    }
}

#[tokio::test]
async fn the_npm_sdk_runs_a_whole_session() {
    let Some(folder) = packages().await else { return };
    let server = MockServer::builder().token("secret").start().await;
    let seen = run(folder, "sandbox-agent.mjs", &[&server.url(), "secret"]).await;
    assert_eq!(seen["health"], json!({ "status": "ok" }));
    assert_eq!(seen["agents"], json!(["claude", "codex", "opencode", "amp", "pi", "cursor", "mock"]));
    assert_eq!(seen["install"]["already_installed"], true);
    assert_eq!((&seen["file"], &seen["entries"]), (&json!("hello"), &json!(["hello.txt"])));
    assert_eq!(seen["mcp"]["url"], "http://127.0.0.1:9");
    assert_eq!(seen["first"]["stopReason"], "end_turn");
    assert_eq!(seen["second"]["stopReason"], "end_turn");
    assert_eq!(seen["replies"], json!([["once", "always", "reject"]]));
    assert_eq!(seen["servers"], 1);
    let refused = json!({ "status": 400, "type": "urn:sandbox-agent:error:unsupported_agent" });
    assert_eq!(seen["refused"], refused);
    assert_eq!(server.messages("session/prompt").len(), 2);
}
