//! Cancels that are lost, and which turns a cancel affects.

use mock_server::{Fault, MockServer, Script, State, Step};
use sandbox_agent_sdk::turns::TurnState;
use sandbox_agent_sdk::{ServerKind, Session, StopReason, Turn};
use serde_json::{Value, json};

use super::support::{KINDS, LIMIT, client, session, within};

/// How often the protocol client sends one cancel while the stream is open.
const ATTEMPTS: usize = 4;

async fn world(kind: ServerKind, step: Step) -> (MockServer, Session) {
    let server = MockServer::builder().agent("mock", Script::steps(vec![step])).start().await;
    let session = session(&client(&server, kind)).await;
    (server, session)
}

/// Starts a turn. Returns it with the id of its prompt.
async fn begin(server: &MockServer, session: &Session) -> (Turn, Value) {
    let turn = session.prompt("go");
    (turn, prompt_sent(server, 1).await)
}

/// Waits until this many prompts were sent, and returns the id of the last one.
async fn prompt_sent(server: &MockServer, count: usize) -> Value {
    assert!(server.wait_for(|_| server.messages("session/prompt").len() >= count, LIMIT).await);
    server.messages("session/prompt")[count - 1]["id"].clone()
}

fn respond(server: &MockServer, id: &Value, reason: &str) {
    server.emit(json!({"jsonrpc": "2.0", "id": id, "result": {"stopReason": reason}}));
}

#[tokio::test]
async fn a_cancel_that_was_lost_is_sent_again_by_the_next_call() {
    for kind in KINDS {
        let (server, session) = world(kind, Step::WaitForCancel).await;
        let (mut turn, _) = begin(&server, &session).await;
        let rule = server.inject(Fault::post_status(503).on_method("session/cancel"));
        let first = tokio::spawn(session.cancel());
        assert!(server.wait_for(|_| server.fired("PostStatus") == ATTEMPTS, LIMIT).await, "{kind}");
        server.lift(rule);
        within(session.cancel()).await.unwrap();
        within(first).await.unwrap().unwrap();
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled, "{kind}");
    }
}

#[tokio::test]
async fn a_cancel_that_was_lost_with_the_stream_is_sent_again_when_the_stream_is_open_again() {
    for kind in KINDS {
        let (server, session) = world(kind, Step::WaitForCancel).await;
        let (mut turn, _) = begin(&server, &session).await;
        let rule = server.inject(Fault::post_status(503).on_method("session/cancel"));
        let cancelling = tokio::spawn(session.cancel());
        assert!(server.wait_for(|_| server.fired("PostStatus") == ATTEMPTS, LIMIT).await, "{kind}");
        server.lift(rule);
        server.restart(State::Preserved).await;
        within(cancelling).await.unwrap().unwrap();
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled, "{kind}");
    }
}

#[tokio::test]
async fn a_cancel_withdraws_a_turn_that_waits_for_a_cancelled_one() {
    for by_session in [false, true] {
        let (server, session) = world(ServerKind::Shared, Step::Hang).await;
        let (first, id) = begin(&server, &session).await;
        drop(first);
        let mut second = session.prompt("second");
        if by_session {
            let mut cancelling = session.cancel();
            assert!(futures::poll!(cancelling.as_mut()).is_pending(), "the first turn runs");
        } else {
            within(second.cancel()).await.unwrap();
        }
        assert_eq!(within(second.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
        let third = session.prompt("third");
        respond(&server, &id, "cancelled");
        let id = prompt_sent(&server, 2).await;
        let text = server.messages("session/prompt")[1].pointer("/params/prompt/0/text").cloned();
        assert_eq!(text, Some(json!("third")));
        respond(&server, &id, "end_turn");
        within(third.text()).await.unwrap();
    }
}

#[tokio::test]
async fn a_cancel_ends_with_its_turn_although_the_next_turn_runs() {
    for by_session in [false, true] {
        let (server, session) = world(ServerKind::Shared, Step::Hang).await;
        let (first, id) = begin(&server, &session).await;
        let mut cancelling = match by_session {
            true => session.cancel(),
            false => Box::pin(async move { first.cancel().await }),
        };
        assert!(futures::poll!(cancelling.as_mut()).is_pending());
        let second = session.prompt("second");
        respond(&server, &id, "cancelled");
        let id = prompt_sent(&server, 2).await;
        within(cancelling).await.unwrap();
        assert_eq!(session.turn_state(), TurnState::Running);
        respond(&server, &id, "end_turn");
        within(second.text()).await.unwrap();
    }
}

#[tokio::test]
async fn the_cancel_of_a_turn_that_has_ended_affects_no_other_turn() {
    let (server, session) = world(ServerKind::Shared, Step::Hang).await;
    let (mut first, id) = begin(&server, &session).await;
    respond(&server, &id, "end_turn");
    within(first.outcome()).await.unwrap();
    within(first.cancel()).await.unwrap();
    let second = session.prompt("second");
    let id = prompt_sent(&server, 2).await;
    within(first.cancel()).await.unwrap();
    assert_eq!(session.turn_state(), TurnState::Running);
    respond(&server, &id, "end_turn");
    within(second.text()).await.unwrap();
    assert!(server.messages("session/cancel").is_empty());
}
