//! Turns.

use std::time::Duration;

use mock_server::{Cut, Fault, MockServer, Script, Step, ToolCall};
use sandbox_agent_sdk::error::Phase;
use sandbox_agent_sdk::turns::TurnState;
use sandbox_agent_sdk::{Content, DropPolicy, Error, Event, Prompt, ServerKind, StopReason, UpdateKind};
use serde_json::json;

use super::support::{KINDS, LIMIT, client, event, options, session, session_ended, text, timeouts, within};

#[tokio::test]
async fn a_turn_is_a_stream_of_updates_with_an_outcome() {
    for kind in KINDS {
        let script = Script::steps(vec![
            Step::Think("hm".into()),
            Step::ToolCall(ToolCall::new("t", "Run")),
            Step::Say("one ".into()),
            Step::Say("two".into()),
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        assert_eq!(session.turn_state(), TurnState::Running);
        let mut updates = Vec::new();
        while let Some(update) = within(turn.next()).await {
            updates.push(update);
        }
        assert_eq!(session.turn_state(), TurnState::Idle);
        assert_eq!((updates.len(), text(&updates).as_str()), (4, "one two"));
        assert!(matches!(updates[0].kind(), UpdateKind::Thought(_)));
        assert!(matches!(updates[1].kind(), UpdateKind::ToolCall(call) if call.id == "t"));
        let outcome = within(turn.outcome()).await.unwrap();
        assert_eq!(
            (outcome.stop_reason, outcome.raw["stopReason"].as_str()),
            (StopReason::EndTurn, Some("end_turn"))
        );
    }
}

#[tokio::test]
async fn the_outcome_comes_after_every_update_even_if_its_body_arrives_first() {
    for kind in KINDS {
        let late = Fault::BodyBeforeUpdates { delay: Duration::from_millis(100) }.on_method("session/prompt");
        let script = Script::steps(vec![Step::Flood { updates: 500, bytes: 10 }]);
        let server = MockServer::builder().agent("mock", script).fault(late).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        within(turn.outcome()).await.unwrap();
        let mut count = 0;
        while within(turn.next()).await.is_some() {
            count += 1;
        }
        assert_eq!(count, 500);
    }
}

#[tokio::test]
async fn a_turn_settles_from_the_stream_when_its_post_does_not() {
    for kind in KINDS {
        for fault in
            [Fault::PostHangs, Fault::PostResetAfterRead { execute: true }, Fault::post_status_executed(504)]
        {
            let server = MockServer::builder().fault(fault.on_method("session/prompt")).start().await;
            let session = session(&client(&server, kind)).await;
            assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
            assert_eq!(server.messages("session/prompt").len(), 1, "the prompt is sent once");
        }
    }
}

#[tokio::test]
async fn there_is_one_turn_at_a_time() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
        let session = session(&client(&server, kind)).await;
        let mut first = session.prompt("one");
        let mut second = session.prompt("two");
        assert!(within(second.next()).await.is_none());
        let error = within(second.outcome()).await.unwrap_err();
        assert!(matches!(&error, Error::TurnInProgress { session_id, .. } if session_id == session.id()));
        drop(second);
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        within(session.cancel()).await.unwrap();
        assert_eq!(within(first.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
        assert_eq!(server.messages("session/prompt").len(), 1, "the second one was not sent");
        assert_eq!(session.turn_state(), TurnState::Idle);
    }
}

#[tokio::test]
async fn turns_of_several_sessions_run_concurrently() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        let mut turns = Vec::new();
        for number in 0..10 {
            turns.push((number, session(&client).await.prompt(format!("slow {number}"))));
        }
        for (number, turn) in turns {
            assert_eq!(within(turn.text()).await.unwrap(), format!("mock: slow {number}"));
        }
    }
}

#[tokio::test]
async fn a_dropped_turn_is_cancelled() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.number {
            1 => vec![Step::Say("working".into()), Step::WaitForCancel],
            _ => vec![Step::Say("again".into())],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        assert_eq!(within(turn.next()).await.unwrap().to_string(), "working");
        drop(turn);
        assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await);
        // The session accepts prompts once the agent has stopped.
        let again = within(async {
            loop {
                match session.prompt("go").text().await {
                    Err(Error::TurnInProgress { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                    other => break other,
                }
            }
        })
        .await;
        assert_eq!(again.unwrap(), "again");
    }
}

#[tokio::test]
async fn a_dropped_turn_continues_if_the_options_say_so() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Wait(Duration::from_millis(200)), Step::Say("done".into())]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let session = session(&client).await;
        let mut events = session.events();
        let turn = session.prompt("go");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        drop(turn);
        let said = event(&mut events, |event| match event {
            Event::Update(update) => Some(update.to_string()),
            _ => None,
        })
        .await;
        assert_eq!(said, "done");
        assert!(server.messages("session/cancel").is_empty());
    }
}

#[tokio::test]
async fn cancelling_cancels_open_permissions_first_and_waits_for_the_turn() {
    for kind in KINDS {
        let server = MockServer::builder().fault(Fault::PermissionWaitsForCancel).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let request = event(&mut events, |event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        })
        .await;
        within(session.cancel()).await.unwrap();
        assert_eq!(session.turn_state(), TurnState::Idle);
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
        assert!(request.refuse().is_err(), "the decision is too late");
        let posts: Vec<_> = server.requests().into_iter().filter_map(|request| request.json()).collect();
        let answer = posts.iter().position(|post| post.pointer("/result/outcome/outcome").is_some());
        let cancel = posts.iter().position(|post| post["method"] == "session/cancel");
        assert!(answer.unwrap() < cancel.unwrap(), "the response is sent before the cancellation");
        assert_eq!(posts[answer.unwrap()]["result"]["outcome"]["outcome"], "cancelled");
    }
}

#[tokio::test]
async fn cancelling_is_bounded_and_the_turn_stays_active() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
        let times = timeouts().cancel(Duration::from_millis(100));
        let client = options(&server, kind).timeouts(times).build().unwrap();
        let session = session(&client).await;
        let turn = session.prompt("go");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        let error = within(turn.cancel()).await.unwrap_err();
        assert!(matches!(&error, Error::Timeout(timeout) if timeout.phase == Phase::Cancel), "{error:?}");
        assert_eq!(session.turn_state(), TurnState::Cancelling);
        let mut another = session.prompt("more");
        assert!(matches!(within(another.outcome()).await, Err(Error::TurnInProgress { .. })));
    }
}

#[tokio::test]
async fn cancelling_an_idle_session_is_not_an_error() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let session = session(&client(&server, kind)).await;
        within(session.cancel()).await.unwrap();
        assert_eq!(server.messages("session/cancel").len(), 1);
    }
}

#[tokio::test]
async fn unknown_updates_are_delivered_raw() {
    for kind in KINDS {
        let server = MockServer::builder().fault(Fault::UnknownVariants).start().await;
        let client = options(&server, kind)
            .permission_policy(|_| sandbox_agent_sdk::PermissionDecision::Ask)
            .build()
            .unwrap();
        let session = session(&client).await;
        let mut turn = session.prompt("go");
        let mut unknown = Vec::new();
        while let Some(update) = within(turn.next()).await {
            match update.kind() {
                UpdateKind::Other { kind, .. } => unknown.push((kind.clone(), update.raw().clone())),
                UpdateKind::Message(chunk) => {
                    assert!(matches!(chunk.content, Content::Other(_) | Content::Text { .. }))
                }
                _ => {}
            }
        }
        assert!(!unknown.is_empty() && unknown[0].1["sessionUpdate"] == unknown[0].0.as_str());
        let outcome = within(turn.outcome()).await.unwrap();
        assert!(
            matches!(&outcome.stop_reason, StopReason::Other(reason) if outcome.raw["stopReason"] == reason.as_str())
        );
    }
}

#[tokio::test]
async fn a_prompt_may_contain_more_than_text() {
    let server = MockServer::start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let image = Content::image("aGk=", "image/png");
    within(session.prompt(Prompt::from("look").with(image)).outcome()).await.unwrap();
    assert_eq!(
        server.messages("session/prompt")[0]["params"]["prompt"],
        json!([{"type": "text", "text": "look"}, {"type": "image", "data": "aGk=", "mimeType": "image/png"}])
    );
}

#[tokio::test]
async fn an_error_of_the_agent_has_its_code_message_and_data() {
    for kind in KINDS {
        let fail = Step::Fail {
            code: -32603,
            message: "out of credits".into(),
            data: Some(json!({"plan": "free"})),
        };
        let server = MockServer::builder()
            .agent("mock", Script::steps(vec![Step::Say("a".into()), fail]))
            .start()
            .await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        let error = within(turn.outcome()).await.unwrap_err();
        let rpc = error.rpc_error().unwrap();
        assert_eq!(
            (rpc.code, rpc.message.as_str(), &rpc.data.as_ref().unwrap()["plan"]),
            (-32603, "out of credits", &json!("free"))
        );
        assert_eq!(
            within(turn.next()).await.unwrap().to_string(),
            "a",
            "updates before the error are delivered"
        );
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_large_is_a_typed_error() {
    for kind in KINDS {
        let server = MockServer::start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("x".repeat((2 << 20) + 1000)).outcome()).await.unwrap_err();
        assert!(matches!(error, Error::PayloadTooLarge { .. }) && !error.maybe_executed(), "{error:?}");
        assert_eq!(within(session.prompt("small").text()).await.unwrap(), "mock: small");
    }
}

#[tokio::test]
async fn a_turn_survives_a_lost_stream() {
    for kind in KINDS {
        let words: Vec<String> = (0..50).map(|number| format!("{number} ")).collect();
        let said = words.concat();
        let script = Script::new(move |_| words.iter().cloned().map(Step::Say).collect());
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        server.inject(Fault::StreamCutAt { byte: 2000, cut: Cut::Reset }.times(3));
        server.inject(Fault::PostHangs.on_method("session/prompt"));
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), said);
    }
}

#[tokio::test]
async fn ten_thousand_updates_come_in_order_before_the_outcome() {
    for kind in KINDS {
        let script = Script::new(|_| (0..10_000).map(|number| Step::Say(format!("{number},"))).collect());
        let server = MockServer::builder().agent("mock", script).replay_buffer(usize::MAX).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("count");
        within(turn.outcome()).await.unwrap();
        let mut next = 0;
        while let Some(update) = within(turn.next()).await {
            assert_eq!(update.to_string(), format!("{next},"));
            next += 1;
        }
        assert_eq!(next, 10_000);
    }
}

#[tokio::test]
async fn what_was_reported_before_the_prompt_is_not_in_the_turn() {
    for kind in KINDS {
        let script = Script::steps(vec![Step::Say("live".into())]).on_request(|method, _| {
            let steps = vec![Step::Flood { updates: 2_000, bytes: 8 }, Step::Finish(json!({}))];
            (method == "session/set_mode").then_some(steps)
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        within(session.set_mode("code")).await.unwrap();
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "live", "{kind}");
    }
}

#[tokio::test]
async fn a_detached_prompt_is_sent_after_the_cancel_that_it_waits_for() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "first" => vec![Step::WaitForCancel],
            _ => vec![Step::Say("second".into())],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let session = session(&client).await;
        let first = session.prompt("first");
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        let mut cancelling = std::pin::pin!(first.cancel());
        assert!(futures::poll!(cancelling.as_mut()).is_pending());
        assert_eq!(session.turn_state(), TurnState::Cancelling);
        drop(session.prompt("second"));
        within(cancelling).await.unwrap();
        assert!(server.wait_for(|_| server.messages("session/prompt").len() == 2, LIMIT).await, "{kind}");
    }
}

#[tokio::test]
async fn a_detached_turn_has_its_deadline() {
    for kind in KINDS {
        let server =
            MockServer::builder().agent("mock", Script::steps(vec![Step::WaitForCancel])).start().await;
        let client = options(&server, kind).on_turn_drop(DropPolicy::Detach).build().unwrap();
        let session = session(&client).await;
        let turn = session.prompt("go").with_deadline(Duration::from_millis(300));
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        drop(turn);
        assert!(server.wait_for(|_| !server.messages("session/cancel").is_empty(), LIMIT).await, "{kind}");
    }
}

#[tokio::test]
async fn the_longest_durations_are_no_limits() {
    let long = Duration::MAX;
    for kind in KINDS {
        let server = MockServer::start().await;
        let times = timeouts().cancel(long).termination(long).start(long).request(long);
        let times = if kind == ServerKind::Shared { times.disconnect(long) } else { times };
        let client = options(&server, kind).timeouts(times).build().unwrap();
        let session = session(&client).await;
        let turn = session.prompt("hi").with_deadline(long).with_idle_timeout(long);
        assert_eq!(within(turn.text()).await.unwrap(), "mock: hi");
        let inner = session.prompt("hi");
        let events = futures::stream::unfold(inner, |mut turn| async move {
            let event = turn.next_event().await?;
            Some((event, turn))
        });
        let turn = sandbox_agent_sdk::Turn::from_events(session.clone(), events);
        let turn = turn.with_deadline(long).with_idle_timeout(long);
        assert_eq!(within(turn.text()).await.unwrap(), "mock: hi");
        // The end of the agent is published before its details, which may take as long as they like.
        let mut events = client.events();
        let _turn = session.prompt("crash");
        session_ended(&mut events).await;
        within(client.disconnect()).await.unwrap();
    }
}

#[tokio::test]
async fn an_error_response_to_a_prompt_may_have_been_executed_although_it_reports_an_ended_session() {
    let fail = || Step::Fail { code: -32000, message: "session already ended".into(), data: None };
    let script = Script::new(move |turn| match turn.text.as_str() {
        "work" => vec![Step::Say("working".into()), fail()],
        _ => vec![fail()],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    assert!(within(session.prompt("work").outcome()).await.unwrap_err().maybe_executed());
    let error = within(session.prompt("rest").outcome()).await.unwrap_err();
    assert!(error.rpc_error().is_some() && error.maybe_executed(), "the session runs: {error:?}");
}

#[tokio::test]
async fn a_prompt_to_a_session_that_the_agent_does_not_have_has_not_run_unless_it_reported_work() {
    let fail = || Step::Fail { code: -32002, message: "no such session".into(), data: None };
    let script = Script::new(move |turn| match turn.text.as_str() {
        "work" => vec![Step::Say("working".into()), fail()],
        _ => vec![fail()],
    });
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", script.clone()).start().await;
        let session = session(&client(&server, kind)).await;
        for (prompt, may_have_run) in [("work", true), ("rest", false), ("work", true)] {
            let error = within(session.prompt(prompt).outcome()).await.unwrap_err();
            assert!(error.rpc_error().is_some(), "{error:?}");
            assert_eq!(error.maybe_executed(), may_have_run, "{prompt}: {error:?}");
        }
    }
}
