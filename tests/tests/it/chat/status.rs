//! The status line.

use mock_server::State;
use serde_json::json;

use super::agent::server;
use super::terminal::{Start, Terminal, tmux_is_missing};

/// The seconds beside `working`; `None` without a status line, 0 if none are shown.
fn seconds(screen: &str) -> Option<u64> {
    let (_, after) = screen.lines().find_map(|line| line.split_once(" working"))?;
    let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
    Some(digits.parse().unwrap_or(0))
}

#[tokio::test]
async fn an_update_resets_the_time() {
    chat!(server, terminal);
    terminal.line("stream").await;
    terminal.until("3 s of silence", |screen| seconds(screen) >= Some(3)).await;
    let update = json!({
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": " and more words"},
    });
    let params = json!({"sessionId": "mock-session-1", "update": update});
    server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    let is_reset = |screen: &str| screen.contains("and more words") && seconds(screen).is_some_and(|s| s < 3);
    terminal.until("time from the update on", is_reset).await;
}

#[tokio::test]
async fn a_cancel_is_named_until_the_agent_has_stopped() {
    chat!(server, terminal);
    terminal.line("stubborn").await;
    terminal.see("working").await;
    terminal.key("C-c").await;
    let screen = terminal.see("cancelling").await;
    assert!(!screen.contains("working"), "{screen}");
    assert!(screen.contains("Ctrl-C again leaves"), "{screen}");
}

#[tokio::test]
async fn a_notice_replaces_the_line_while_it_is_true() {
    chat!(server, terminal);
    terminal.line("stream").await;
    terminal.see("working").await;
    server.stop().await;
    let screen = terminal.see("the connection is reconnecting").await;
    assert!(!screen.contains("working"), "{screen}");
    server.restart(State::Preserved).await;
    let is_back = |screen: &str| seconds(screen).is_some() && !screen.contains("reconnecting");
    terminal.until("status line again", is_back).await;
}
