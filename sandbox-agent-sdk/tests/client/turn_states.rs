//! Turns that end by a `state_update`, as in the draft of version 2 of the protocol.

use mock_server::{MockServer, Permission, Script, State, Step, ToolCall};
use sandbox_agent_sdk::turns::{TurnEvent, TurnState};
use sandbox_agent_sdk::usage::Counts;
use sandbox_agent_sdk::{Error, ServerKind, Session, StopReason, Turn};
use serde_json::{Value, json};

use super::support::{KINDS, client, session, within};

/// Returns a session of an agent whose responses only accept prompts.
async fn world(kind: ServerKind, script: Script) -> (MockServer, Session) {
    let server = MockServer::builder().agent("mock", script.ends_by_state(true)).start().await;
    let session = session(&client(&server, kind)).await;
    (server, session)
}

async fn first_text(turn: &mut Turn) -> String {
    loop {
        let update = within(turn.next()).await.expect("the turn runs");
        if let Some(text) = update.message_text() {
            return text.to_owned();
        }
    }
}

#[tokio::test]
async fn the_state_report_ends_the_turn_with_its_reason_and_usage_after_all_updates() {
    for kind in KINDS {
        let usage = json!({"inputTokens": 7, "outputTokens": 3});
        let script = Script::steps(vec![
            Step::Say("one ".into()),
            Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
            Step::Finish(json!({"stopReason": "max_tokens", "usage": usage})),
        ]);
        let (_server, session) = world(kind, script).await;
        for number in 1..=2 {
            let mut turn = session.prompt("go");
            let mut text = String::new();
            let outcome = loop {
                match within(turn.next_event()).await.expect("the turn ends first") {
                    TurnEvent::Update(update) => text.push_str(update.message_text().unwrap_or_default()),
                    TurnEvent::Permission(request) => request.allow_once().unwrap(),
                    TurnEvent::Ended(outcome) => break outcome.unwrap(),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(text, "one permission: allow_once", "{kind}");
            assert_eq!(outcome.stop_reason, StopReason::MaxTokens);
            assert_eq!(outcome.usage.tokens.map(|tokens| tokens.all()), Some(10));
            assert_eq!(outcome.usage.counts, Some(Counts::Turn));
            assert_eq!(outcome.raw["state"], "idle");
            assert_eq!(session.usage().turns, number);
            assert_eq!(session.turn_state(), TurnState::Idle);
        }
    }
}

#[tokio::test]
async fn an_accepted_prompt_keeps_the_session_busy_until_the_report() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Say("begun".into()), Step::WaitForCancel]);
        let (_server, session) = world(kind, script).await;
        let mut turn = session.prompt("go");
        assert_eq!(first_text(&mut turn).await, "begun");
        let error = within(session.prompt("too early").outcome()).await.unwrap_err();
        assert!(matches!(error, Error::TurnInProgress { .. }), "{kind}: {error:?}");
        within(turn.cancel()).await.unwrap();
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
        assert_eq!(session.turn_state(), TurnState::Idle);
    }
}

#[tokio::test]
async fn a_failure_in_the_report_is_the_error_of_the_turn() {
    for kind in KINDS {
        let data = Some(json!({"model": "down"}));
        let fail = Step::Fail { code: -32603, message: "no idea".into(), data };
        let (_server, session) = world(kind, Script::steps(vec![Step::Say("x".into()), fail])).await;
        let error = within(session.prompt("go").outcome()).await.unwrap_err();
        let rpc = error.rpc_error().unwrap_or_else(|| panic!("{kind}: {error:?}"));
        assert_eq!((rpc.code, rpc.message.as_str()), (-32603, "no idea"));
        assert_eq!(rpc.data, Some(json!({"model": "down"})));
        assert!(error.maybe_executed());
    }
}

#[tokio::test]
async fn a_report_may_arrive_before_the_response() {
    for kind in KINDS {
        let state = |name: &str| {
            let mut update = json!({"sessionUpdate": "state_update", "state": name});
            if name == "idle" {
                update["stopReason"] = json!("refusal");
            }
            Step::Update(update)
        };
        // The state from before the turn is reported again, which ends nothing.
        let steps = vec![
            state("idle"),
            state("running"),
            Step::Say("quick".into()),
            state("idle"),
            Step::Finish(json!({"messageId": "m"})),
        ];
        let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        assert_eq!(first_text(&mut turn).await, "quick");
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Refusal, "{kind}");
    }
}

#[tokio::test]
async fn an_agent_that_dies_after_it_accepted_the_prompt_fails_the_turn() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Say("begun".into()), Step::crash(7, ["no more"])]);
        let (_server, session) = world(kind, script).await;
        let error = within(session.prompt("go").outcome()).await.unwrap_err();
        let end = error.termination().unwrap_or_else(|| panic!("{kind}: {error:?}"));
        assert_eq!(end.exit_code, Some(7));
        assert!(error.maybe_executed());
    }
}

#[tokio::test]
async fn a_server_that_restarts_after_it_accepted_the_prompt_fails_the_turn() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Say("begun".into()), Step::Hang]);
        let (server, session) = world(kind, script).await;
        let mut turn = session.prompt("go");
        assert_eq!(first_text(&mut turn).await, "begun");
        server.restart(State::Lost).await;
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(error.maybe_executed(), "{kind}: {error:?}");
    }
}

#[tokio::test]
async fn a_response_with_neither_reason_nor_message_still_ends_the_turn() {
    let script = Script::steps(vec![Step::Finish(Value::Null)]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let outcome = within(session.prompt("go").outcome()).await.unwrap();
    assert_eq!(outcome.stop_reason.as_str(), "");
}
