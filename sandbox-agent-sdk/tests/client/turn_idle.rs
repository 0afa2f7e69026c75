//! Turns of silent agents, and agents that report the reason of their silence.

use std::time::Duration;

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::error::Phase;
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::update::NoticeSeverity;
use sandbox_agent_sdk::{Error, NewSession, ServerKind, StopReason, UpdateKind};
use serde_json::{Value, json};

use super::support::{KINDS, LIMIT, client, options, session, within};

#[tokio::test]
async fn an_idle_timeout_cancels_a_silent_turn_with_a_typed_error() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "again" => vec![Step::Say("again".into())],
            _ => vec![Step::Say("begun".into()), Step::WaitForCancel],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("go").with_idle_timeout(Duration::from_millis(400)).text()).await;
        let Err(Error::IncompleteTurn(turn)) = &error else { panic!("{error:?}") };
        assert_eq!((turn.collected.text.as_str(), turn.missing.len()), ("begun", 0));
        assert!(error.as_ref().unwrap_err().is_timeout());
        let mut turn = session.prompt("go").with_idle_timeout(Duration::from_millis(100));
        let error = within(turn.outcome()).await.unwrap_err();
        let Error::Timeout(late) = &error else { panic!("{error:?}") };
        assert_eq!((late.phase, late.elapsed), (Phase::Idle, Duration::from_millis(100)));
        assert!(error.to_string().contains("an update of the turn"), "{error}");
        assert_eq!(server.messages("session/cancel").len(), 2);
        // A timeout that is not reached has no effect.
        let text = within(session.prompt("again").with_idle_timeout(LIMIT).text()).await;
        assert_eq!(text.unwrap(), "again");
    }
}

#[tokio::test]
async fn an_agent_that_waits_for_a_decision_is_not_idle() {
    for kind in KINDS {
        let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
        let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        let request = loop {
            match within(turn.next_event()).await.expect("the agent asks") {
                TurnEvent::Permission(request) => break request,
                TurnEvent::Update(_) => {}
                other => panic!("{other:?}"),
            }
        };
        // Only the deadline can end this turn.
        turn = turn.with_idle_timeout(Duration::from_millis(50)).with_deadline(Duration::from_millis(500));
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(matches!(&error, Error::Timeout(late) if late.phase == Phase::Deadline), "{kind}: {error:?}");
        drop(request);
    }
}

fn retry(session: &str) -> Step {
    let message = json!({
        "type": "system", "subtype": "api_retry", "attempt": 3, "max_retries": 10, "retry_delay_ms": 2136.4,
        "error_status": 500, "error": "server_error", "session_id": session,
    });
    let params = json!({"sessionId": session, "message": message});
    Step::Notify { method: "_claude/sdkMessage".into(), params }
}

/// The member of `session/new` that requests reports of claude.
fn wanted(params: &Value) -> &Value {
    &params["params"]["_meta"]["claudeCode"]["emitRawSDKMessages"]
}

#[tokio::test]
async fn the_retries_of_claude_are_notices() {
    for kind in KINDS {
        let script = Script::new(|turn| vec![retry(&turn.session_id), Step::Say("done".into())]);
        let server = MockServer::builder().agent("claude", script).start().await;
        let client = options(&server, kind).agent("claude").build().unwrap();
        let session = session(&client).await;
        let asked = server.messages("session/new");
        let reports = json!([
            {"type": "result", "subtype": "error_during_execution"}, {"type": "system", "subtype": "api_retry"},
        ]);
        assert_eq!(wanted(&asked[0]), &reports, "{kind}");
        let mut turn = session.prompt("go");
        let first = within(turn.next()).await.unwrap();
        let UpdateKind::Notice(notice) = first.kind() else { panic!("{first:?}") };
        assert_eq!(notice.severity, NoticeSeverity::Warning);
        assert_eq!(notice.title, "The model failed with status 500 (server_error): retry 3 of 10 in 2.1 s");
        assert_eq!(notice.meta.as_ref().unwrap()["claudeCode"]["attempt"], 3);
        let outcome = within(turn.outcome()).await.unwrap();
        assert_eq!(outcome.stop_reason, StopReason::EndTurn);
    }
}

#[tokio::test]
async fn retries_are_requested_only_from_claude_and_never_override_the_application() {
    let own = json!({"emitRawSDKMessages": true});
    let table: [(&str, bool, Option<Value>, Value); 3] = [
        ("mock", true, None, Value::Null),
        ("claude", false, None, json!([{"type": "result", "subtype": "error_during_execution"}])),
        ("claude", true, Some(own), json!(true)),
    ];
    for (agent, notices, own, expected) in table {
        let server = MockServer::builder().agent(agent, Script::steps(vec![])).start().await;
        let client = options(&server, ServerKind::PerAgent).agent(agent).notices(notices).build().unwrap();
        let mut new = NewSession::in_dir("/");
        if let Some(own) = own {
            new = new.meta("claudeCode", own);
        }
        within(client.new_session(new)).await.unwrap();
        assert_eq!(wanted(&server.messages("session/new")[0]), &expected, "{agent} {notices}");
    }
}
