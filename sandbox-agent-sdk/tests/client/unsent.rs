//! Turns that end before their prompt is sent, and prompts that wait for a turn to stop.

use std::sync::Arc;

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::turns::TurnState;
use sandbox_agent_sdk::{Error, ServerKind, Session, StopReason};
use tokio::sync::Notify;

use super::support::{KINDS, client, session, within};

async fn idle(session: &Session) {
    within(async {
        while session.turn_state() != TurnState::Idle {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_turn_that_is_dropped_or_cancelled_while_its_prompt_is_stored_frees_the_session() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let session = session(&client(&server, kind)).await;
        for is_cancelled in [false, true] {
            let entered = Arc::new(Notify::new());
            let notice = Arc::clone(&entered);
            let mut turn = session.prompt_after("never", |_| async move {
                notice.notify_one();
                std::future::pending().await
            });
            within(entered.notified()).await;
            if is_cancelled {
                within(turn.cancel()).await.unwrap();
                assert_eq!(
                    within(turn.outcome()).await.unwrap().stop_reason,
                    StopReason::Cancelled,
                    "{kind}"
                );
            } else {
                drop(turn);
            }
            assert_eq!(within(session.prompt("hi").text()).await.unwrap(), "mock: hi", "{kind}");
        }
        assert_eq!(server.messages("session/prompt").len(), 2, "{kind}");
    }
}

#[tokio::test]
async fn a_turn_that_is_dropped_while_the_client_connects_frees_the_session() {
    for kind in KINDS {
        let hangs =
            Script::default().on_request(|method, _| (method == "initialize").then(|| vec![Step::Hang]));
        let server = MockServer::builder().agent("mock", hangs).start().await;
        let session = client(&server, kind).session("s");
        let turn = session.prompt("never");
        assert_eq!(session.turn_state(), TurnState::Running);
        drop(turn);
        idle(&session).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_prompts_that_wait_for_a_cancel_the_first_is_sent() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "slow" => vec![Step::WaitForCancel],
        text => vec![Step::Say(text.to_owned())],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    for round in 0..30 {
        let count = server.messages("session/prompt").len();
        let slow = session.prompt("slow");
        assert!(
            server.wait_for(|_| server.messages("session/prompt").len() > count, super::support::LIMIT).await
        );
        drop(slow);
        // A prompt that no longer waits does not hold up the next one.
        drop(session.prompt("0"));
        let (first, second) = (session.prompt("1"), session.prompt("2"));
        let (first, second) = within(async { futures::join!(first.text(), second.text()) }).await;
        assert_eq!(first.unwrap(), "1", "{round}");
        match second {
            Ok(text) => assert_eq!(text, "2"),
            Err(error) => assert!(matches!(error, Error::TurnInProgress { .. }), "{error:?}"),
        }
        server.forget_requests();
    }
}
