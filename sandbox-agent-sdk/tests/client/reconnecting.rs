//! Connections that are opened again by themselves, and the deadline of their end.

use std::time::{Duration, Instant};

use mock_server::{Fault, MockServer, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::requests::{PermissionDecision, PermissionRequest};
use sandbox_agent_sdk::{Error, NewSession, ServerKind};

use super::support::{options, session, timeouts, within};

#[tokio::test]
async fn the_next_call_retries_a_failed_reconnect_with_the_same_agent() {
    let server = MockServer::builder().agent("other", Script::default()).start().await;
    let client = options(&server, ServerKind::PerAgent).auto_connect(false).build().unwrap();
    within(client.connect_with("other")).await.unwrap();
    session(&client).await;
    server.restart(State::Lost).await;
    let rule = server.inject(Fault::post_status(500).on_method("initialize"));
    for _ in 0..2 {
        let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
        assert!(!matches!(error, Error::NotConnected), "{error:?}");
    }
    server.lift(rule);
    session(&client).await;
    let agents: Vec<_> = server
        .messages("initialize")
        .into_iter()
        .map(|message| message.pointer("/params/_meta/sandboxagent.dev/agent").cloned().unwrap_or_default())
        .collect();
    assert_eq!(agents.len(), 4);
    assert!(agents.iter().all(|agent| agent == "other"), "{agents:?}");
    within(client.disconnect()).await.unwrap();
    let error = within(client.new_session(NewSession::in_dir("/"))).await.unwrap_err();
    assert!(matches!(error, Error::NotConnected), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn disconnecting_has_one_deadline_while_an_old_connection_is_closed_too() {
    const DEADLINE: Duration = Duration::from_secs(2);
    let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
    let (entered, mut waiting) = tokio::sync::mpsc::channel(1);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    // A policy that blocks the thread that reads the connection.
    let policy = move |_: &PermissionRequest| {
        entered.try_send(()).unwrap();
        let _ = released.lock().unwrap().recv();
        PermissionDecision::Refuse
    };
    let times = timeouts().disconnect(DEADLINE);
    let client =
        options(&server, ServerKind::PerAgent).timeouts(times).permission_policy(policy).build().unwrap();
    let session = session(&client).await;
    let turn = session.prompt("go");
    within(waiting.recv()).await.unwrap();
    let mut restarting = client.restart_agent();
    assert!(futures::poll!(restarting.as_mut()).is_pending());
    drop(restarting);
    let began = Instant::now();
    within(client.disconnect()).await.unwrap();
    let elapsed = began.elapsed();
    drop(release);
    assert!(elapsed < DEADLINE.mul_f32(1.6), "{elapsed:?}");
    drop(turn);
}
