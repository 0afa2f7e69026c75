//! The captures of the released server's control plane, replayed.

use std::fs;
use std::os::unix::fs::symlink;

use mock_server::{MockServer, Script};

use crate::capture::{Exchange, read, text};
use crate::captured_agent::{EchoAgent, StubbornAgent};
use crate::client::SOON;
use crate::replay::replay_all;

#[tokio::test]
async fn root_health_and_unknown_paths_agree_with_the_captures() {
    // The inspector page is not served.
    let exchanges: Vec<_> =
        read("01-root-health").into_iter().filter(|exchange| exchange.target != "/ui/").collect();
    assert_eq!(exchanges.len(), 5);
    replay_all(&MockServer::start().await, &exchanges).await;
}

#[tokio::test]
async fn agents_and_their_installation_agree_with_the_captures() {
    let server = MockServer::builder().agent("mock", Script::default()).agent("pi", Script::default());
    let server = server.start().await;
    let exchanges = read("02-agents");
    assert_eq!(exchanges.len(), 11);
    replay_all(&server, &exchanges).await;
}

#[tokio::test]
async fn limits_of_bodies_agree_with_the_captures() {
    let exchanges = read("14-limits");
    assert_eq!(exchanges.len(), 3);
    replay_all(&MockServer::start().await, &exchanges).await;
}

#[tokio::test]
async fn files_agree_with_the_captures() {
    let root = tempfile::tempdir().unwrap();
    let server = MockServer::builder().files(root.path()).start().await;
    // The home directory is the root here, so it is not empty.
    let exchanges: Vec<Exchange> =
        read("15-fs").into_iter().filter(|exchange| exchange.target != "/v1/fs/entries").collect();
    assert_eq!(exchanges.len(), 29);
    let (before, after) = exchanges.split_at(5);
    replay_all(&server, before).await;
    let directory = root.path().join("srv/test/fsx");
    symlink("/srv/test/fsx", directory.join("dirlink")).unwrap();
    symlink("/gone-too", directory.join("dangling")).unwrap();
    replay_all(&server, after).await;
}

#[tokio::test]
async fn configuration_agrees_with_the_captures() {
    let root = tempfile::tempdir().unwrap();
    let server = MockServer::builder().files(root.path()).start().await;
    let exchanges = read("16-config");
    assert_eq!(exchanges.len(), 17);
    replay_all(&server, &exchanges).await;
    let capture = text("16-config");
    let (_, on_disk) = capture.split_once("# on-disk mcp.json\n").unwrap();
    let written =
        fs::read_to_string(root.path().join("srv/test/cfg/.sandbox-agent/config/mcp.json")).unwrap();
    assert_eq!(written.trim_end(), on_disk.trim_end());
}

#[tokio::test]
async fn processes_agree_with_the_captures() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("srv")).unwrap();
    let server = MockServer::builder().files(root.path()).start().await;
    // WebSockets have separate tests.
    let exchanges: Vec<Exchange> = read("17-processes")
        .into_iter()
        .filter(|exchange| !exchange.target.ends_with("/terminal/ws"))
        .collect();
    assert!(exchanges.len() > 30, "{}", exchanges.len());
    for (at, exchange) in exchanges.iter().enumerate() {
        // Output is read by separate tasks, so the test waits until the captured output is in the log.
        if exchange.method == "GET" && exchange.target.contains("/proc_1/logs") {
            written(&server, "proc_1", "dGV4dAo=").await;
        }
        replay_all(&server, &exchanges[at..=at]).await;
    }
}

/// Waits until the log of a process has an entry with this data.
async fn written(server: &MockServer, id: &str, data: &str) {
    let url = format!("{}/v1/processes/{id}/logs", server.url());
    let http = crate::http_client::builder().build().unwrap();
    let waiting = async {
        while !http.get(&url).send().await.unwrap().text().await.unwrap().contains(data) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, waiting).await.expect("the output arrives");
}

#[tokio::test]
async fn a_desktop_that_is_not_installed_agrees_with_the_captures() {
    let exchanges = read("19-desktop");
    assert_eq!(exchanges.len(), 30);
    replay_all(&MockServer::start().await, &exchanges).await;
}

#[tokio::test]
async fn a_server_without_agents_agrees_with_the_captures() {
    let server = MockServer::builder().agent("mock", EchoAgent).require_preinstall(true).start().await;
    let exchanges = read("20-install-and-missing");
    assert_eq!(exchanges.len(), 9);
    replay_all(&server, &exchanges).await;
}

#[tokio::test]
async fn a_delete_of_an_agent_that_does_not_stop_agrees_with_the_capture() {
    let agent = StubbornAgent::default();
    let mut alive = agent.alive();
    let server = MockServer::builder().agent("pi", agent).start().await;
    let exchanges = read("22-delete-stubborn");
    assert_eq!(exchanges.len(), 4);
    replay_all(&server, &exchanges).await;
    assert_eq!(*alive.borrow(), 2, "the old agent keeps running beside the new one");
    drop(server);
    let gone = tokio::time::timeout(SOON, alive.wait_for(|alive| *alive == 0));
    assert!(gone.await.is_ok(), "no agent outlives the server");
}
