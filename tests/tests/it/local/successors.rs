//! Processes that take the port of a server that no longer listens there.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
};

use futures::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sandbox_agent_sdk::control::processes::{CreateProcess, FollowOptions};
use sandbox_agent_sdk::provider::{BubblewrapProvider, LocalProvider, SandboxProvider};
use sandbox_agent_sdk::{ConnectionState, NewSession, SandboxAgentClient};
use sdk_tests::{eventually, within};

use super::attacks::Rival;
use super::{Home, VERSION};
use crate::provider::has_bubblewrap;
use crate::servers::{STUB, released};

fn port_of(url: &str) -> u16 {
    url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap()
}

/// Signals a process, and takes its port before anything else can notice that it is free.
async fn succeed(pid: u32, signal: Signal, port: u16) -> Rival {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    let mut listener = None;
    eventually("the port to be free", || {
        listener = listener.take().or_else(|| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
        listener.is_some()
    })
    .await;
    let rival = Rival::default();
    rival.serve(listener.unwrap());
    rival
}

#[tokio::test]
async fn a_client_sends_its_token_to_no_successor_of_its_server() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let start = home.options(&binary).agent("mock").start();
    let server = within("the start", start).await.expect("a server");
    let client = server.client().clone();
    let session = within("a session", client.new_session(NewSession::in_dir("/"))).await.unwrap();
    let rival = succeed(server.pid(), Signal::SIGKILL, port_of(server.url())).await;
    assert!(within("a health check", client.health().check()).await.is_err());
    assert!(within("a turn", session.prompt("say more").outcome()).await.is_err());
    within("the exit", server.ended()).await;
    assert!(within("a new connection", client.connect()).await.is_err());
    assert!(within("a health check", client.health().check()).await.is_err());
    assert!(within("a list", client.agents().list()).await.is_err());
    assert!(!matches!(client.state(), ConnectionState::Connected | ConnectionState::Reconnecting { .. }));
    let received = rival.received().to_lowercase();
    assert!(!received.contains("authorization") && !received.contains(server.token()), "{received}");
}

/// A wrapper that does not exit with the server, and starts it again when it may.
const WRAPPER: &str = "while :; do PROGRAM \"$@\" & echo $! > pid.new; mv pid.new pid; wait $!; \
    while [ ! -e again ]; do sleep 0.01; done; done";

#[tokio::test]
async fn a_client_sends_its_token_to_no_successor_of_a_server_behind_a_wrapper() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let script = home.script(&WRAPPER.replace("PROGRAM", &format!("'{}'", binary.display())));
    let server = within("the start", home.options(script).start()).await.expect("a server");
    let client = server.client().clone();
    within("a health check", client.health().check()).await.unwrap();
    let rival = succeed(home.pid().await, Signal::SIGKILL, port_of(server.url())).await;
    for _ in 0..3 {
        assert!(within("a health check", client.health().check()).await.is_err());
        assert!(within("a list", client.agents().list()).await.is_err());
    }
    assert_eq!(rival.received(), "");
    assert_eq!(server.exit(), None, "the wrapper is running");
    // The server that the wrapper starts next belongs to it.
    rival.stop();
    fs::write(home.path().join("again"), "").unwrap();
    let health = client.health();
    within("a server again", async {
        while health.check().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    within("closing", server.close()).await;
}

#[tokio::test]
async fn a_client_sends_its_token_to_no_successor_of_a_server_that_only_finishes_its_responses() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let server = within("the start", home.options(&binary).start()).await.expect("a server");
    let client = server.client().clone();
    let command = CreateProcess::new("sh").args(["-c", "echo ready; exec sleep 1000"]);
    let process = within("a process", client.processes().create(command)).await.unwrap();
    let mut follow = client.processes().follow(&process.id, FollowOptions::new());
    within("the output", follow.next()).await.unwrap().unwrap();
    // The server closes its listener and stays until that response ends.
    let rival = succeed(server.pid(), Signal::SIGINT, port_of(server.url())).await;
    assert_eq!(server.exit(), None, "it is still running");
    for _ in 0..3 {
        assert!(within("a health check", client.health().check()).await.is_err());
        assert!(within("a list", client.agents().list()).await.is_err());
    }
    assert_eq!(rival.received(), "");
    within("closing", server.close()).await;
}

/// Lets another process take the port of a sandbox's server, and uses the client of the sandbox.
async fn attack_client_of(provider: impl SandboxProvider, server: impl AsyncFnOnce(&str) -> u32) {
    let start = SandboxAgentClient::with_provider(provider).agent("mock");
    let sandbox = within("the start", start.start()).await.expect("a sandbox");
    let id = sandbox.id();
    let (_, raw) = id.split_once('/').unwrap();
    let endpoint = sandbox.provider().endpoint(raw).await.unwrap();
    let client = sandbox.client().clone();
    let session = within("a session", client.new_session(NewSession::in_dir("/"))).await.unwrap();
    let pid = server(raw).await;
    let rival = succeed(pid, Signal::SIGKILL, port_of(&endpoint.url)).await;
    assert!(within("a health check", client.health().check()).await.is_err());
    assert!(within("a turn", session.prompt("say more").outcome()).await.is_err());
    assert!(within("a list", client.agents().list()).await.is_err());
    if pid.to_string() == raw {
        eventually("the end of the client", || !client.state().is_usable()).await;
    }
    assert!(within("a new connection", client.connect()).await.is_err());
    let received = rival.received().to_lowercase();
    let token = endpoint.token().unwrap();
    assert!(!received.contains("authorization") && !received.contains(token), "{received}");
    within("destroying", sandbox.destroy()).await.unwrap();
}

#[tokio::test]
async fn a_client_of_a_provider_sends_its_token_to_no_successor_of_its_server() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Home::new(&[]);
    let provider = LocalProvider::with_options(move || home.options(&binary));
    attack_client_of(provider, async |id| id.parse().unwrap()).await;
}

#[tokio::test]
async fn a_client_of_a_provider_sends_its_token_to_no_successor_of_a_server_behind_a_wrapper() {
    let Some(binary) = released(VERSION).await else { return };
    let home = Arc::new(Home::new(&[]));
    let script = home.script(&WRAPPER.replace("PROGRAM", &format!("'{}'", binary.display())));
    let shared = Arc::clone(&home);
    let provider = LocalProvider::with_options(move || shared.options(&script));
    attack_client_of(provider, async |_| home.pid().await).await;
}

#[tokio::test]
async fn a_client_of_a_sandbox_without_a_network_sends_its_token_to_no_successor_of_its_relay() {
    if !has_bubblewrap() {
        return;
    }
    let Some(binary) = released(VERSION).await else { return };
    let (home, homes) = (Home::new(&[]), tempfile::tempdir().unwrap());
    let data = home.path().display().to_string();
    let provider = BubblewrapProvider::new(binary, homes.path())
        .without_network()
        .read_only(STUB, STUB)
        .writable(&data, &data)
        .env("XDG_DATA_HOME", &data);
    attack_client_of(provider, async |id| id.parse().unwrap()).await;
}
