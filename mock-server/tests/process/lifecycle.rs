//! How a process is ended, and that it leaves nothing behind.

use std::time::{Duration, Instant};

use mock_server::ExitStatus;
use serde_json::json;

use crate::probe::{Probe, group_is_gone, group_members, pid_of, stub};

#[tokio::test]
async fn closing_the_input_makes_a_well_behaved_agent_exit() {
    let (probe, session) = Probe::session(&[]).await;
    probe.running().close_input();
    assert_eq!(probe.exit().await.status, ExitStatus::Code(0));
    assert_eq!(group_members(pid_of(&session)), Vec::<u32>::new());
}

#[tokio::test]
async fn killing_ends_even_a_stubborn_agent() {
    let (probe, session) = Probe::session(&["--ignore-eof", "--ignore-sigterm"]).await;
    probe.running().close_input();
    probe.running().kill();
    assert_eq!(probe.exit().await.status, ExitStatus::Signal(9));
    assert_eq!(group_members(pid_of(&session)), Vec::<u32>::new());
}

#[tokio::test]
async fn a_message_after_the_end_is_not_delivered() {
    let (probe, _) = Probe::session(&[]).await;
    probe.running().kill();
    probe.exit().await;
    assert!(probe.send(json!({ "jsonrpc": "2.0", "method": "x" })).await.is_err());
}

#[tokio::test]
async fn a_message_to_an_agent_that_does_not_read_fails_when_it_dies() {
    let probe = Probe::launch(&stub(&["--at-start", "freeze"])).await;
    let more_than_a_pipe_holds = json!({ "text": "x".repeat(4 * 1024 * 1024) });
    let delivery = probe.send(more_than_a_pipe_holds);
    let death = async {
        tokio::task::yield_now().await;
        probe.running().kill();
    };
    let (delivered, ()) = tokio::join!(delivery, death);
    assert!(delivered.is_err());
    assert_eq!(probe.exit().await.status, ExitStatus::Signal(9));
}

#[tokio::test]
async fn dropping_the_handle_terminates_an_agent_that_ignores_the_end_of_its_input() {
    let (mut probe, session) = Probe::session(&["--ignore-eof"]).await;
    probe.drop_handle();
    assert_eq!(probe.exit().await.status, ExitStatus::Signal(15));
    group_is_gone(pid_of(&session)).await;
}

#[tokio::test]
async fn dropping_the_handle_kills_an_agent_that_ignores_sigterm() {
    let grace = Duration::from_millis(200);
    let agent = stub(&["--ignore-eof", "--ignore-sigterm", "--at-start", "child 300"]).grace(grace);
    let mut probe = Probe::launch(&agent).await;
    let created = probe.call(1, "session/new", json!({})).await;
    let group = pid_of(created["result"]["sessionId"].as_str().unwrap());
    assert_eq!(group_members(group).len(), 2, "the agent and its child");
    let start = Instant::now();
    probe.drop_handle();
    assert_eq!(probe.exit().await.status, ExitStatus::Signal(9));
    assert!(start.elapsed() >= grace, "SIGTERM was sent first");
    group_is_gone(group).await;
}

#[tokio::test]
async fn children_left_in_the_group_end_with_the_agent() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "child 300; child 300; stderr 1; exit 1").await;
    let exit = probe.exit().await;
    assert_eq!(exit.status, ExitStatus::Code(1));
    assert_eq!(exit.stderr.head.as_deref(), Some("stderr line 1"));
    group_is_gone(pid_of(&session)).await;
}

#[tokio::test]
async fn pipes_held_open_from_outside_the_group_delay_the_exit_by_a_bounded_time() {
    const HELD: u64 = 15;
    let (probe, session) = Probe::session(&[]).await;
    let start = Instant::now();
    probe.prompt(3, &session, &format!("linger {HELD}; say goodbye; stderr 3; exit 9")).await;
    let exit = probe.exit().await;
    assert!(start.elapsed() < Duration::from_secs(HELD), "reported while the pipes are still open");
    assert_eq!(exit.status, ExitStatus::Code(9));
    assert_eq!(exit.stderr.total_lines, 3);
    assert_eq!(probe.texts(), ["goodbye"]);
}

#[test]
fn agents_end_with_their_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let arguments = ["--ignore-eof", "--ignore-sigterm"];
    let (probe, session) = runtime.block_on(Probe::session(&arguments));
    let group = pid_of(&session);
    assert_eq!(group_members(group), [group]);
    drop(runtime);
    let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    waiting.block_on(group_is_gone(group));
    drop(probe);
}
