//! Processes: working directory, limits and exit.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use mock_server::ControlPlane;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{JSON, Reply, Server};

async fn post(server: &Server, target: &str, body: Value) -> Reply {
    server.send(Method::POST, target, JSON, body.to_string()).await
}

#[tokio::test]
async fn a_process_starts_in_the_root_and_its_directory_cannot_leave_it() {
    let server = Server::start().await;
    let root = fs::canonicalize(server.control.root()).unwrap();
    fs::create_dir(root.join("inside")).unwrap();
    symlink("inside", root.join("link")).unwrap();
    symlink("/etc", root.join("out")).unwrap();
    let table = [
        (None, "".to_owned()),
        (Some("/inside"), "/inside".to_owned()),
        (Some("link"), "/inside".to_owned()),
    ];
    for (cwd, expected) in table {
        let run =
            post(&server, "/v1/processes/run", json!({ "command": "pwd", "args": ["-P"], "cwd": cwd })).await;
        let run = run.json(200);
        assert_eq!(run["stdout"], format!("{}{expected}\n", root.display()), "{cwd:?}");
    }
    for cwd in ["/out", "../..", "/../../etc"] {
        let run = post(&server, "/v1/processes/run", json!({ "command": "pwd", "cwd": cwd })).await;
        assert!(run.status == 400 || run.status == 502, "{cwd}: {}", run.body);
        let created = post(&server, "/v1/processes", json!({ "command": "pwd", "cwd": cwd })).await;
        assert!(created.status == 400 || created.status == 502, "{cwd}: {}", created.body);
    }
    let missing = post(&server, "/v1/processes/run", json!({ "command": "pwd", "cwd": "/none" })).await;
    assert!(missing.problem(502, "stream_error").contains("No such file"), "{}", missing.body);
}

#[tokio::test]
async fn without_processes_their_paths_are_unknown() {
    let server = Server::with(ControlPlane::builder().processes(false)).await;
    assert_eq!(server.get("/v1/processes").await.problem(404, "invalid_request"), "endpoint not found");
    server.get("/v1/processes/proc_1/terminal/ws").await.problem(404, "invalid_request");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed_with_its_children() {
    let server = Server::start().await;
    let script = "sleep 600 & echo $!; wait";
    let order = json!({ "command": "sh", "args": ["-c", script], "timeoutMs": 300 });
    let run = post(&server, "/v1/processes/run", order).await.json(200);
    assert_eq!((&run["timedOut"], &run["exitCode"]), (&json!(true), &Value::Null));
    let child = format!("/proc/{}", run["stdout"].as_str().unwrap().trim());
    gone(Path::new(&child)).await;
}

#[tokio::test]
async fn a_log_drops_its_oldest_entries_and_keeps_their_numbers() {
    let server = Server::start().await;
    let mut limits = server.get("/v1/processes/config").await.json(200);
    limits["maxLogBytesPerProcess"] = json!(100_000);
    post(&server, "/v1/processes/config", limits).await.json(200);
    let order = json!({ "command": "head", "args": ["-c", "1000000", "/dev/zero"] });
    let id = post(&server, "/v1/processes", order).await.json(200)["id"].as_str().unwrap().to_owned();
    let exited = async {
        while server.get(&format!("/v1/processes/{id}")).await.json(200)["status"] != "exited" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), exited).await.unwrap();
    let entries = server.get(&format!("/v1/processes/{id}/logs")).await.json(200)["entries"].clone();
    let entries = entries.as_array().unwrap();
    assert!(entries.len() <= 200 && entries[0]["sequence"].as_u64().unwrap() > 1, "{}", entries.len());
    let numbers: Vec<u64> = entries.iter().map(|entry| entry["sequence"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
}

#[tokio::test]
async fn processes_end_with_their_control_plane() {
    let mut pids = Vec::new();
    {
        let server = Server::start().await;
        for tty in [false, true] {
            let order =
                json!({ "command": "sh", "args": ["-c", "trap '' HUP TERM; cat; sleep 600"], "tty": tty });
            let info = post(&server, "/v1/processes", order).await.json(200);
            pids.push(info["pid"].as_u64().unwrap());
        }
    }
    for pid in pids {
        gone(Path::new(&format!("/proc/{pid}"))).await;
    }
}

/// Waits until a process is gone or a zombie.
async fn gone(process: &Path) {
    let waiting = async {
        loop {
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
            if matches!(state, None | Some('Z')) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("the process ends");
}
