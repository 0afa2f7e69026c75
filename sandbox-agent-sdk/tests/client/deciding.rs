//! What decides permission requests, and what only observes them.

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::error::Phase;
use sandbox_agent_sdk::event::TurnEnded;
use sandbox_agent_sdk::requests::{AgentRequest, DecidedBy, PermissionDecided, PermissionOutcome};
use sandbox_agent_sdk::requests::{PermissionKind, PermissionReply, ReplyError};
use sandbox_agent_sdk::turns::TurnEvent;
use sandbox_agent_sdk::update::ToolKind;
use sandbox_agent_sdk::{Error, Event, Events, PermissionDecision, PermissionPolicy, ServerKind};
use serde_json::json;
use tokio::sync::oneshot;

use super::permissions::permission;
use super::support::{KINDS, client, event, options, session, timeouts, within};

fn asks() -> Script {
    Script::steps(vec![Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))])
}

async fn decided(events: &mut Events) -> PermissionDecided {
    event(events, |event| match event {
        Event::PermissionDecided(decided) => Some(decided),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_subscription_that_only_observes_never_decides() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let (mut log, _unread) = (client.events(), session.events());
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: reject_once");
        let seen = permission(&mut log).await;
        assert!(!seen.is_open() && seen.allow_once() == Err(ReplyError::Stale));
        let decided = decided(&mut log).await;
        assert_eq!(decided.by, DecidedBy::Default);
        let outcome = decided.request.outcome();
        let Some(PermissionOutcome::Selected { option_id, kind, .. }) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((option_id.as_str(), kind), ("reject_once", Some(PermissionKind::RejectOnce)));
    }
}

#[tokio::test]
async fn a_copy_that_only_observes_does_not_keep_a_request_open() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut log = client.events();
    let mut decider = session.events().deciding();
    let turn = session.prompt("go");
    let (held, request) = (permission(&mut log).await, permission(&mut decider).await);
    drop(turn.session().clone());
    drop(decider);
    assert!(held.is_open());
    let turn = tokio::spawn(turn.text());
    drop(request);
    assert_eq!(within(turn).await.unwrap().unwrap(), "permission: cancelled");
    assert_eq!(held.outcome(), Some(PermissionOutcome::Cancelled));
}

#[tokio::test]
async fn a_handler_decides_and_gets_the_tool_call_as_it_was_reported() {
    for kind in KINDS {
        let mut call = ToolCall::new("t", "Edit main.rs");
        call.kind = "edit".into();
        call.input = json!({"path": "/main.rs"});
        let diff = json!({"type": "diff", "path": "/main.rs", "oldText": "a", "newText": "b"});
        let report = json!({"sessionUpdate": "tool_call_update", "toolCallId": "t", "content": [diff]});
        // The request itself contains almost nothing.
        let params = json!({
            "toolCall": {"toolCallId": "t", "status": "pending"},
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}],
        });
        let script = Script::steps(vec![
            Step::ToolCall(call),
            Step::Update(report),
            Step::Request { method: "session/request_permission".into(), params },
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let requests = Arc::clone(&seen);
        let client = options(&server, kind)
            .permission_handler(move |request| {
                let requests = Arc::clone(&requests);
                async move {
                    requests.lock().unwrap().push(request);
                    PermissionDecision::Reply(PermissionReply::Once)
                }
            })
            .build()
            .unwrap();
        let session = session(&client).await;
        let mut log = client.events();
        within(session.prompt("go").outcome()).await.unwrap();
        assert_eq!(server.answers()[0].answer["result"]["outcome"]["optionId"], "yes");
        let request = seen.lock().unwrap().remove(0);
        let call = request.tool_call().unwrap();
        assert_eq!(
            (call.title.as_deref(), call.kind.as_ref()),
            (Some("Edit main.rs"), Some(&ToolKind::Edit))
        );
        assert_eq!((call.input.as_ref().unwrap(), call.content.len()), (&json!({"path": "/main.rs"}), 1));
        assert!(!request.id().is_empty());
        let options = serde_json::to_value(request.options()).unwrap();
        assert_eq!(options, json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]));
        assert_eq!(decided(&mut log).await.by, DecidedBy::Handler);
    }
}

#[tokio::test]
async fn a_handler_that_has_decided_runs_to_its_end_and_its_decision_is_published() {
    for (kind, forwarded) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let (release, released) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel();
        let ends = Arc::new(Mutex::new(Some((released, done))));
        let client = options(&server, kind)
            .permission_handler(move |request| {
                let (released, done) = ends.lock().unwrap().take().unwrap();
                async move {
                    request.allow_once().unwrap();
                    // Writes its log, for example.
                    released.await.unwrap();
                    done.send(()).unwrap();
                    PermissionDecision::Ask
                }
            })
            .build()
            .unwrap();
        if forwarded {
            client.requests().register(|_| true, AgentRequest::forward).detach();
        }
        let session = session(&client).await;
        let mut log = client.events();
        let text = within(session.prompt("go").text()).await.unwrap();
        assert_eq!(text, "permission: allow_once", "{kind} {forwarded}");
        let decided = decided(&mut log).await;
        let Some(PermissionOutcome::Selected { option_id, .. }) = decided.request.outcome() else { panic!() };
        assert_eq!((decided.by, option_id.as_str()), (DecidedBy::Handler, "allow_once"));
        release.send(()).unwrap();
        within(finished).await.expect("the handler was dropped");
    }
}

#[tokio::test]
async fn a_slow_handler_decides_and_others_only_observe() {
    let server = MockServer::builder().agent("mock", asks()).start().await;
    let (answer, wait) = oneshot::channel::<PermissionReply>();
    let wait = Arc::new(Mutex::new(Some(wait)));
    let client = options(&server, ServerKind::Shared)
        .permission_handler(move |_| {
            let wait = wait.lock().unwrap().take().unwrap();
            async move { PermissionDecision::Reply(wait.await.unwrap()) }
        })
        .build()
        .unwrap();
    let session = session(&client).await;
    let (mut decider, mut log) = (client.events().deciding(), client.events());
    let turn = tokio::spawn(session.prompt("go").text());
    for events in [&mut decider, &mut log] {
        let observed = permission(events).await;
        assert_eq!(observed.allow_once(), Err(ReplyError::OnlyObserves));
        assert_eq!(observed.respond_raw(&json!({})), Err(ReplyError::OnlyObserves));
        assert_eq!(
            (observed.is_open(), observed.choose("no such option")),
            (true, Err(ReplyError::NotOffered))
        );
    }
    drop(decider);
    within(client.list_models(None)).await.unwrap();
    assert!(server.answers().is_empty());
    answer.send(PermissionReply::Always).unwrap();
    assert_eq!(within(turn).await.unwrap().unwrap(), "permission: allow_always");
    assert_eq!(decided(&mut log).await.by, DecidedBy::Handler);
}

#[tokio::test]
async fn a_handler_that_panics_or_does_not_decide_rejects() {
    for panics in [true, false] {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = options(&server, ServerKind::PerAgent)
            .permission_handler(move |_| {
                assert!(!panics, "a handler that panics");
                async { PermissionDecision::Ask }
            })
            .build()
            .unwrap();
        let session = session(&client).await;
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: reject_once");
    }
}

#[tokio::test]
async fn the_end_of_a_request_wakes_all_waiting_tasks_and_drops_the_handler() {
    for kind in KINDS {
        let script = Script::steps(vec![
            Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
            Step::WaitForCancel,
        ]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let (ended, end) = oneshot::channel::<()>();
        let ended = Arc::new(Mutex::new(Some(ended)));
        let client = options(&server, kind)
            .permission_handler(move |_| {
                // Dropped with the future of the handler.
                let ended = ended.lock().unwrap().take();
                async move {
                    let _ended = ended;
                    pending().await
                }
            })
            .build()
            .unwrap();
        let session = session(&client).await;
        let mut log = client.events();
        let mut turn = session.prompt("go");
        let request = permission(&mut log).await;
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let request = request.clone();
                tokio::spawn(async move { request.closed().await })
            })
            .collect();
        within(session.cancel()).await.unwrap();
        for task in waiting {
            within(task).await.unwrap();
        }
        within(end).await.unwrap_err();
        assert!(!request.is_open());
        within(turn.outcome()).await.unwrap();
    }
}

#[tokio::test]
async fn decisions_of_a_policy_are_visible() {
    for (policy, id) in
        [(PermissionPolicy::BypassPermissions, "allow_once"), (PermissionPolicy::Deny, "reject_once")]
    {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = options(&server, ServerKind::Shared).permissions(policy).build().unwrap();
        let session = session(&client).await;
        let (mut log, mut of_session) = (client.events(), session.events());
        within(session.prompt("go").outcome()).await.unwrap();
        for events in [&mut log, &mut of_session] {
            let decided = decided(events).await;
            assert_eq!((decided.by, decided.request.session_id()), (DecidedBy::Policy, Some(session.id())));
            let outcome = decided.request.outcome();
            assert!(
                matches!(outcome, Some(PermissionOutcome::Selected { option_id, .. }) if option_id == id)
            );
        }
    }
}

#[tokio::test]
async fn a_refusal_by_default_is_visible_even_if_the_turn_is_read_after_the_request() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut log = client.events();
        let turn = session.prompt("go");
        drop(permission(&mut log).await);
        assert_eq!(within(turn.text()).await.unwrap(), "permission: reject_once");
        assert_eq!(decided(&mut log).await.by, DecidedBy::Default, "{kind}");
        // A layer that passes its events on refuses in the same way.
        let turn = futures::stream::unfold(session.prompt("go"), |mut turn| async move {
            let event = turn.next_event().await?;
            Some((event, turn))
        });
        let layered = sandbox_agent_sdk::Turn::from_events(session.clone(), turn);
        assert_eq!(within(layered.text()).await.unwrap(), "permission: reject_once");
        assert_eq!(decided(&mut log).await.by, DecidedBy::Default, "{kind}");
    }
}

/// A permission request for a tool call of which only the id is known.
fn bare_request(id: &str) -> Step {
    let params = json!({
        "toolCall": {"toolCallId": id, "status": "pending"},
        "options": [
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ],
    });
    Step::Request { method: "session/request_permission".into(), params }
}

#[tokio::test]
async fn a_permission_includes_nothing_of_a_tool_call_of_an_earlier_turn() {
    for kind in KINDS {
        let mut call = ToolCall::new("1", "Edit main.rs");
        call.kind = "edit".into();
        let edits = vec![Step::ToolCall(call.clone()), bare_request("1")];
        let reported = serde_json::to_value(json!({
            "sessionUpdate": "tool_call", "toolCallId": "1", "title": "Edit", "kind": "edit",
        }))
        .unwrap();
        let script = Script::new(move |turn| match turn.text.as_str() {
            "edit" => edits.clone(),
            _ => vec![bare_request("1")],
        })
        .history(move |_| vec![reported.clone()]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).permissions(PermissionPolicy::AcceptEdits).build().unwrap();
        let session = session(&client).await;
        let choices = || -> Vec<_> {
            let answers = server.answers();
            answers.iter().map(|answer| answer.answer["result"]["outcome"]["optionId"].clone()).collect()
        };
        within(session.prompt("edit").outcome()).await.unwrap();
        assert_eq!(choices(), ["yes"], "{kind}: the call of the turn itself is known");
        within(session.prompt("run").outcome()).await.unwrap();
        assert_eq!(choices(), ["yes", "no"], "{kind}: the number is used again");
        // An agent may replay a part of the history when the next turn has begun.
        let _loaded = within(session.reload()).await.unwrap();
        within(session.prompt("run").outcome()).await.unwrap();
        assert_eq!(choices(), ["yes", "no", "no"], "{kind}");
    }
}

async fn turn_ended(events: &mut Events) -> TurnEnded {
    event(events, |event| match event {
        Event::TurnEnded(ended) => Some(*ended),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_request_in_a_turn_that_is_held_and_never_read_is_rejected() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let times = timeouts().unread_request(Duration::from_millis(100));
        let client = options(&server, kind).timeouts(times).build().unwrap();
        let session = session(&client).await;
        let mut log = client.events();
        let _turn = session.prompt("go");
        assert_eq!(decided(&mut log).await.by, DecidedBy::Default, "{kind}");
        turn_ended(&mut log).await.outcome.unwrap();
        // A layer that passes its events on does not read them for the application.
        let turn = futures::stream::unfold(session.prompt("go"), |mut turn| async move {
            let event = turn.next_event().await?;
            Some((event, turn))
        });
        let _layered = sandbox_agent_sdk::Turn::from_events(session.clone(), turn);
        assert_eq!(decided(&mut log).await.by, DecidedBy::Default, "{kind}");
        turn_ended(&mut log).await.outcome.unwrap();
    }
}

#[tokio::test]
async fn the_idle_timeout_runs_while_a_request_waits_in_a_turn_that_is_not_read() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut log = client.events();
        let _turn = session.prompt("go").with_idle_timeout(Duration::from_millis(100));
        let error = turn_ended(&mut log).await.outcome.unwrap_err();
        assert!(matches!(&error, Error::Timeout(late) if late.phase == Phase::Idle), "{kind}: {error:?}");
    }
}

#[tokio::test]
async fn a_request_that_arrives_before_the_first_event_is_read_is_decided_by_the_turn() {
    for kind in KINDS {
        let server = MockServer::builder().agent("mock", asks()).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut log = client.events();
        let mut turn = session.prompt("go");
        drop(permission(&mut log).await);
        while let Some(event) = within(turn.next_event()).await {
            if let TurnEvent::Permission(request) = event {
                request.allow_once().unwrap();
            }
        }
        let answer = &server.answers()[0].answer["result"]["outcome"];
        assert_eq!(answer["optionId"], "allow_once", "{kind}");
    }
}
