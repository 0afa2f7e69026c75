//! Turns: events, collected results, deadlines, and consecutive turns.

use std::time::Duration;

use mock_server::{Fault, MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::error::Phase;
use sandbox_agent_sdk::turns::{TurnEvent, TurnState};
use sandbox_agent_sdk::update::{Missed, ToolStatus};
use sandbox_agent_sdk::{Error, Event, ServerKind, StopReason, TurnOutcome};
use serde_json::json;

use super::support::{KINDS, LIMIT, client, event, options, session, timeouts, within};

#[tokio::test]
async fn updates_requests_and_the_end_arrive_in_one_order() {
    for kind in KINDS {
        let schema = json!({"properties": {"branch": {"type": "string"}}});
        let script = Script::steps(vec![
            Step::Say("one".into()),
            Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
            Step::Say("two".into()),
            Step::AskQuestion { message: "which?".into(), schema },
            Step::Say("three".into()),
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let mut turn = session.prompt("go");
        let mut seen = Vec::new();
        while let Some(event) = within(turn.next_event()).await {
            seen.push(match event {
                TurnEvent::Update(update) => update.message_text().unwrap_or("?").to_owned(),
                TurnEvent::Permission(request) => {
                    request.allow_once().unwrap();
                    "permission".to_owned()
                }
                TurnEvent::Question(request) => {
                    request.answer(&json!({"branch": "main"})).unwrap();
                    "question".to_owned()
                }
                TurnEvent::Ended(outcome) => outcome.unwrap().stop_reason.to_string(),
                other => panic!("{other:?}"),
            });
        }
        let order = ["one", "permission", "permission: allow_once", "two", "question"];
        assert_eq!(seen[..5], order, "{kind}");
        assert_eq!(seen.last().unwrap(), "end_turn");
        assert!(within(turn.next_event()).await.is_none());
    }
}

#[tokio::test]
async fn a_request_that_the_reader_of_the_turn_drops_is_cancelled() {
    let script = Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut turn = session.prompt("go");
    let mut text = String::new();
    while let Some(event) = within(turn.next_event()).await {
        if let TurnEvent::Update(update) = event {
            text.push_str(update.message_text().unwrap_or_default());
        }
    }
    assert_eq!(text, "permission: cancelled");
}

#[tokio::test]
async fn a_turn_is_collected_completely() {
    let diff = |new: &str| json!({"type": "diff", "path": "/a", "oldText": "x", "newText": new});
    let update = |content: serde_json::Value| {
        Step::Update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "content": [content]}))
    };
    let script = Script::steps(vec![
        Step::Think("hm".into()),
        Step::Say("one ".into()),
        Step::ToolCall(ToolCall::new("t", "Edit")),
        update(diff("y")),
        update(diff("y")),
        update(diff("z")),
        Step::ToolUpdate { id: "t".into(), status: "completed".into(), text: None },
        Step::Say("two".into()),
        Step::Finish(json!({"stopReason": "max_tokens", "usage": {"totalTokens": 7}})),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let collected = within(session.prompt("go").collect()).await.unwrap();
    assert_eq!((collected.text.as_str(), collected.thoughts.as_str()), ("one two", "hm"));
    let [call] = &collected.tool_calls[..] else { panic!("{collected:?}") };
    assert_eq!((call.title.as_deref(), call.status.as_ref()), (Some("Edit"), Some(&ToolStatus::Completed)));
    let changes: Vec<_> = collected.changes.iter().map(|change| (&*change.path, &*change.new_text)).collect();
    assert_eq!(changes, [("/a", "y"), ("/a", "z")]);
    assert_eq!(collected.usage, Some(json!({"totalTokens": 7})));
    let outcome = collected.outcome.unwrap();
    assert!(outcome.stop_reason == StopReason::MaxTokens && outcome.is_complete());
}

#[tokio::test]
async fn a_deadline_cancels_the_turn_with_a_typed_error() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "again" => vec![Step::Say("again".into())],
            _ => vec![Step::Say("begun".into()), Step::WaitForCancel],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let error = within(session.prompt("go").with_deadline(Duration::from_millis(300)).text()).await;
        let Err(Error::IncompleteTurn(turn)) = &error else { panic!("{error:?}") };
        assert_eq!((turn.collected.text.as_str(), turn.missing.len()), ("begun", 0));
        assert!(error.as_ref().unwrap_err().is_timeout());
        let mut turn = session.prompt("go").with_deadline(Duration::from_millis(100));
        let error = within(turn.outcome()).await.unwrap_err();
        assert!(matches!(&error, Error::Timeout(late) if late.phase == Phase::Deadline), "{error:?}");
        assert_eq!(server.messages("session/cancel").len(), 2);
        // A deadline that is not reached has no effect.
        let text = within(session.prompt("again").with_deadline(LIMIT).text()).await;
        assert_eq!(text.unwrap(), "again");
    }
}

#[tokio::test]
async fn a_deadline_ends_the_wait_for_an_agent_that_does_not_stop() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
    let times = timeouts().cancel(Duration::from_millis(100));
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let error = within(session.prompt("go").with_deadline(Duration::from_millis(50)).collect()).await;
    assert!(error.unwrap_err().is_timeout());
    let error = within(session.prompt("again").outcome()).await.unwrap_err();
    assert!(matches!(error, Error::TurnInProgress { .. }), "{error:?}");
}

/// Checks the error of a turn that reached a limit before its prompt was sent.
fn unsent(error: Result<TurnOutcome, Error>, phase: Phase, name: &str) {
    let error = error.unwrap_err();
    assert!(matches!(&error, Error::Timeout(late) if late.phase == phase), "{name}: {error:?}");
    assert!(!error.maybe_executed(), "{name}");
}

#[tokio::test]
async fn a_limit_that_is_reached_before_the_prompt_is_sent_ends_the_turn_and_nothing_is_sent() {
    let soon = Duration::from_millis(100);
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", slow()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let prompts = || server.messages("session/prompt").len();
        unsent(
            within(session.prompt("go").with_deadline(Duration::ZERO).outcome()).await,
            Phase::Deadline,
            "past",
        );

        let stuck = || session.prompt_after("go", |_| std::future::pending());
        unsent(within(stuck().with_deadline(soon).outcome()).await, Phase::Deadline, "before_send");
        unsent(within(stuck().with_idle_timeout(soon).outcome()).await, Phase::Idle, "before_send");
        let error = within(stuck().with_deadline(soon).text()).await.unwrap_err();
        assert!(matches!(error, Error::IncompleteTurn(_)) && !error.maybe_executed(), "{error:?}");
        assert_eq!(prompts(), 0, "{kind}");
        assert_eq!(within(session.prompt("quick").text()).await.unwrap(), "done", "{kind}");

        let hangs =
            Script::default().on_request(|method, _| (method == "initialize").then(|| vec![Step::Hang]));
        let hanging = MockServer::builder().agent("mock", hangs).start().await;
        let session = super::support::client(&hanging, kind).session("s");
        let mut turn = session.prompt("go").with_deadline(soon);
        unsent(within(turn.outcome()).await, Phase::Deadline, "connecting");
        assert_eq!(session.turn_state(), TurnState::Idle, "{kind}");
    }
}

#[tokio::test]
async fn a_limit_is_reached_while_the_turn_before_is_being_cancelled() {
    let script = Script::steps(vec![Step::Say("begun".into()), Step::Hang]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let times = timeouts().cancel(LIMIT);
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let mut turn = session.prompt("first");
    within(turn.next()).await.expect("it runs");
    drop(turn);
    let mut turn = session.prompt("second").with_deadline(Duration::from_millis(100));
    unsent(
        tokio::time::timeout(LIMIT / 2, turn.outcome()).await.expect("the deadline"),
        Phase::Deadline,
        "cancelling",
    );
    assert_eq!(server.messages("session/prompt").len(), 1);
}

/// An agent that ends the prompt "quick" at once and all others when they are cancelled.
fn slow() -> Script {
    Script::new(|turn| match turn.text.as_str() {
        "quick" => vec![Step::Say("done".into())],
        _ => vec![Step::Say("slow".into()), Step::WaitForCancel],
    })
}

#[tokio::test]
async fn a_prompt_after_a_dropped_turn_waits_for_its_cancel() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", slow()).start().await;
        let session = session(&client(&server, kind)).await;
        for _ in 0..5 {
            let turn = session.prompt("slow");
            drop(turn);
            assert_eq!(within(session.prompt("quick").text()).await.unwrap(), "done", "{kind}");
        }
        let slow = tokio::time::timeout(Duration::from_millis(100), session.prompt("slow").text()).await;
        assert!(slow.is_err());
        assert_eq!(within(session.prompt("quick").text()).await.unwrap(), "done", "{kind}");
        // While a turn handle exists, another prompt is rejected.
        let held = session.prompt("slow");
        let error = within(session.prompt("quick").outcome()).await.unwrap_err();
        assert!(matches!(error, Error::TurnInProgress { .. }), "{error:?}");
        drop(held);
    }
}

#[tokio::test]
async fn a_prompt_after_a_dropped_turn_that_does_not_stop_fails_in_time() {
    let server = MockServer::builder().agent("mock", Script::steps(vec![Step::Hang])).start().await;
    let times = timeouts().cancel(Duration::from_millis(200));
    let client = options(&server, ServerKind::Shared).timeouts(times).build().unwrap();
    let session = session(&client).await;
    let turn = session.prompt("go");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    drop(turn);
    let error = within(session.prompt("again").outcome()).await.unwrap_err();
    assert!(matches!(error, Error::TurnInProgress { .. }) && !error.maybe_executed(), "{error:?}");
    assert_eq!(server.messages("session/prompt").len(), 1);
}

#[tokio::test]
async fn the_outcome_reports_what_is_missing_and_text_is_an_error_with_the_received_part() {
    let script = || Script::new(|_| ["a", "b", "c", "d"].map(|text| Step::Say(text.into())).to_vec());
    let server = MockServer::builder().agent("mock", script()).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let next = server.last_event_id();
    // The second chunk of the turn is lost.
    server.inject(Fault::Hole { id: next + 2 });
    let error = within(session.prompt("go").text()).await;
    let Err(Error::IncompleteTurn(turn)) = &error else { panic!("{error:?}") };
    assert_eq!((turn.collected.text.as_str(), turn.missing.len()), ("acd", 1));
    assert!(!turn.collected.outcome.as_ref().unwrap().is_complete());
    assert!(error.unwrap_err().maybe_executed());
    assert_eq!(within(session.prompt("go").text()).await.unwrap(), "abcd", "the next turn is complete");
}

#[tokio::test]
async fn a_turn_that_reached_a_limit_reports_what_is_missing_before() {
    let mut steps = ["a", "b", "c", "d"].map(|text| Step::Say(text.into())).to_vec();
    steps.push(Step::WaitForCancel);
    let server = MockServer::builder().agent("mock", Script::steps(steps)).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = client.events();
    server.inject(Fault::Hole { id: server.last_event_id() + 2 });
    let turn = session.prompt("go");
    event(&mut events, |event| matches!(event, Event::Gap(_)).then_some(())).await;
    let error = within(turn.with_deadline(Duration::ZERO).collect()).await.unwrap_err();
    let Error::IncompleteTurn(turn) = &error else { panic!("{error:?}") };
    assert!(matches!(turn.missing[..], [Missed::Gap(_)]), "{:?}", turn.missing);
    assert_eq!(turn.collected.text, "acd");
    assert!(error.is_timeout());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_ne!(cause, error.to_string(), "each cause is shown once");
}

#[tokio::test]
async fn what_a_failed_turn_received_is_collected() {
    let change = |path: &str| {
        let diff = json!({"type": "diff", "path": path, "newText": "x"});
        Step::Update(
            json!({"sessionUpdate": "tool_call", "toolCallId": path, "title": "Edit", "content": [diff]}),
        )
    };
    for kind in KINDS {
        let script = Script::new(move |turn| match turn.text.as_str() {
            "fail" => vec![change("/a"), Step::Fail { code: -32603, message: "no model".into(), data: None }],
            _ => vec![Step::Say("begun".into()), change("/a"), Step::crash(7, ["boom"])],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let session = session(&client(&server, kind)).await;
        let failed = within(session.prompt("fail").collect_partial()).await.unwrap_err();
        assert_eq!(failed.collected.changes[0].path, "/a", "{kind}");
        let error = Error::from(failed);
        assert!(matches!(error, Error::Rpc { .. }) && error.maybe_executed(), "{kind}: {error:?}");

        let failed = within(session.prompt("crash").collect_partial()).await.unwrap_err();
        assert_eq!((failed.collected.text.as_str(), failed.collected.changes.len()), ("begun", 1), "{kind}");
        assert!(failed.collected.outcome.is_none() && failed.missing.is_empty(), "{kind}: {failed:?}");
        let error = Error::from(failed);
        assert_eq!(error.termination().unwrap().exit_code, Some(7), "{kind}");
        assert!(matches!(error, Error::AgentEnded(_)), "{kind}: {error:?}");
        let shown = error.to_string();
        assert!(shown.contains("exit code 7") && !shown.contains("boom"), "{kind}: {shown}");
    }
}

#[tokio::test]
async fn a_response_without_proof_of_its_order_makes_the_turn_incomplete() {
    for kind in KINDS {
        let script = || Script::steps(vec![Step::Say("all".into())]);
        let server = MockServer::builder().agent("mock", script()).start().await;
        let session = session(&client(&server, kind)).await;
        // There is no echoed response that proves that every update arrived.
        server.inject(Fault::ResponseInBodyOnly.on_method("session/prompt").times(1));
        let error = within(session.prompt("go").text()).await;
        let Err(Error::IncompleteTurn(turn)) = &error else { panic!("{kind}: {error:?}") };
        assert_eq!((turn.collected.text.as_str(), &turn.missing[..]), ("all", &[Missed::Unverified][..]));
        assert_eq!(
            within(session.prompt("go").text()).await.unwrap(),
            "all",
            "{kind}: the next turn is complete"
        );
    }
}

#[tokio::test]
async fn updates_that_a_turn_does_not_read_in_time_are_missing_too() {
    let script = Script::steps(vec![Step::Flood { updates: 100, bytes: 10_000 }]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = options(&server, ServerKind::Shared).event_budget(100_000).build().unwrap();
    let session = session(&client).await;
    let mut log = client.events();
    let turn = session.prompt("go");
    // The turn ends before it is read.
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    event(&mut log, |event| matches!(event, Event::Lagged(_)).then_some(())).await;
    let error = within(turn.collect()).await;
    let Err(Error::IncompleteTurn(turn)) = &error else { panic!("{error:?}") };
    assert!(!turn.missing.is_empty() && turn.collected.text.len() < 1_000_000);
}

#[tokio::test]
async fn an_empty_prompt_is_rejected_before_anything_is_sent() {
    let server = MockServer::start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    for prompt in
        [sandbox_agent_sdk::Prompt::from(""), " \n".into(), sandbox_agent_sdk::Prompt::new([] as [&str; 0])]
    {
        let mut turn = session.prompt(prompt);
        assert!(within(turn.next()).await.is_none());
        assert!(matches!(within(turn.outcome()).await, Err(Error::Config(_))));
    }
    assert!(server.messages("session/prompt").is_empty());
    assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
}

#[tokio::test]
async fn the_end_of_a_turn_is_an_event_behind_its_updates_and_the_session_is_free() {
    for kind in KINDS {
        let script = Script::new(|turn| match turn.text.as_str() {
            "fail" => vec![Step::Say("so far".into()), Step::crash(3, ["boom"])],
            text => vec![Step::Say(text.to_owned())],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let (mut of_session, mut of_client) = (session.events(), client.events());
        let ended = |event: Event| match event {
            Event::Update(update) => Some(Err(update.to_string())),
            Event::TurnEnded(ended) => Some(Ok(ended)),
            _ => None,
        };
        for number in 0..20 {
            let turn = session.prompt(number.to_string());
            for events in [&mut of_session, &mut of_client] {
                assert_eq!(event(events, ended).await.unwrap_err(), number.to_string(), "{kind}");
                let ended = event(events, ended).await.unwrap();
                assert_eq!(ended.session_id, session.id());
                assert_eq!(ended.outcome.unwrap().stop_reason, StopReason::EndTurn);
                assert!(ended.request_id.is_some());
            }
            // A prompt in response to the event is never one during a turn.
            drop(turn);
        }
        let mut turn = session.prompt("fail");
        assert!(event(&mut of_session, ended).await.is_err());
        let ended = event(&mut of_session, ended).await.unwrap();
        assert_eq!(ended.outcome.as_ref().unwrap_err().termination().unwrap().exit_code, Some(3));
        let written = json!(Event::TurnEnded(ended));
        assert_eq!((&written["type"], &written["sessionId"]), (&json!("turnEnded"), &json!(session.id())));
        assert_eq!(written["error"]["termination"]["exitCode"], 3);
        within(turn.outcome()).await.unwrap_err();
    }
}

#[tokio::test]
async fn every_event_of_a_turn_can_be_passed_on_as_json() {
    let script = Script::steps(vec![
        Step::Say("one".into()),
        Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut turn = session.prompt("go");
    let mut written = Vec::new();
    while let Some(event) = within(turn.next_event()).await {
        written.push(json!(event));
        if let TurnEvent::Permission(request) = event {
            assert_eq!(written[1]["id"], request.id());
            request.allow_once().unwrap();
        }
    }
    let kinds: Vec<_> = written.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["update", "permission", "update", "turnEnded"]);
    assert_eq!(written[0]["update"]["content"]["text"], "one");
    assert_eq!(written[3]["outcome"]["stopReason"], "end_turn");
}
