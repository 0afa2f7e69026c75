//! Agents that ask too much, and programs that do not read.

use mock_server::{Fault, MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::requests::ReplyError;
use sandbox_agent_sdk::{Event, PermissionPolicy, ServerKind};
use serde_json::json;

use super::open_requests::asked;
use super::permissions::permission;
use super::support::{KINDS, LIMIT, client, event, options, session, within};

fn asks() -> Step {
    Step::AskPermission(Permission::new(ToolCall::new("t", "Run")))
}

#[tokio::test]
async fn sessions_that_an_agent_invents_leave_no_tasks_behind() {
    const SESSIONS: usize = 300;
    let ask = |number: usize| Step::Request {
        method: "session/request_permission".into(),
        params: json!({"sessionId": format!("invented-{number}"), "options": []}),
    };
    let script = Script::steps((0..SESSIONS).map(ask).collect());
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = options(&server, ServerKind::PerAgent).permissions(PermissionPolicy::Deny).build().unwrap();
    let session = session(&client).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    within(session.prompt("go").outcome()).await.unwrap();
    assert_eq!(server.answers().len(), SESSIONS, "each is answered");
    assert!(tasks() < before + SESSIONS / 2, "{before} {}", tasks());
}

#[tokio::test]
async fn a_large_request_that_finds_no_room_is_counted_and_cancelled() {
    for kind in KINDS {
        let script = Script::new(|_| {
            let mut call = ToolCall::new("t", "Run");
            call.input = json!({"text": "x".repeat(10 << 20)});
            vec![Step::AskPermission(Permission::new(call))]
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = options(&server, kind).event_budget(1 << 20).build().unwrap();
        let (one, two) = (session(&client).await, session(&client).await);
        let mut events = client.events().deciding();
        let first = one.prompt("go");
        // The first waits, unread, when the second comes.
        assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
        let mut waiting = one.events().deciding();
        let request = permission(&mut waiting).await;
        drop(waiting);
        assert_eq!(within(two.prompt("go").text()).await.unwrap(), "permission: cancelled");
        assert!(request.is_open(), "the other one is still there to be answered");
        let shown = event(&mut events, |event| match event {
            Event::Permission(request) => Some(request),
            _ => None,
        })
        .await;
        assert_eq!(shown.session_id(), Some(one.id()));
        event(&mut events, |event| matches!(event, Event::Lagged(count) if count > 0).then_some(())).await;
        shown.allow_once().unwrap();
        assert_eq!(within(first.text()).await.unwrap(), "permission: allow_once");
        assert!(asked(&mut events).is_empty());
    }
}

#[tokio::test]
async fn notifications_of_any_size_count_in_the_budget() {
    let big = Step::Notify { method: "_x/big".into(), params: json!({"text": "x".repeat(100_000)}) };
    let server = MockServer::builder().agent("mock", Script::steps(vec![big; 50])).start().await;
    let client = options(&server, ServerKind::Shared).event_budget(1 << 20).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events().deciding();
    within(session.prompt("go").outcome()).await.unwrap();
    let received: Vec<_> = std::iter::from_fn(|| events.try_next()).collect();
    let big = received.iter().filter(|event| matches!(event, Event::Other { .. })).count();
    assert!((5..=11).contains(&big), "{big}");
    let lost: u64 =
        received.iter().map(|event| if let Event::Lagged(count) = event { *count } else { 0 }).sum();
    assert_eq!(big as u64 + lost, 50);
}

#[tokio::test]
async fn a_responder_may_call_the_client_and_cancel_the_turn_of_the_request() {
    for kind in KINDS {
        let script = Script::steps(vec![asks(), Step::WaitForCancel]);
        let server = MockServer::builder().agent("mock", script).start().await;
        let client = client(&server, kind);
        let session = session(&client).await;
        let mut events = session.events().deciding();
        let mut turn = session.prompt("go");
        let request = permission(&mut events).await;
        let _ = within(client.list_models(None)).await;
        let other = super::support::session(&client).await;
        within(other.cancel()).await.unwrap();
        assert!(request.is_open());
        within(session.cancel()).await.unwrap();
        assert_eq!(request.allow_once(), Err(ReplyError::Stale));
        assert_eq!(within(turn.outcome()).await.unwrap().stop_reason.as_str(), "cancelled");
        let sent: Vec<_> = server.requests().iter().filter_map(|request| request.json()).collect();
        let answer = sent.iter().position(|message| message.pointer("/result/outcome").is_some()).unwrap();
        let of_session = |message: &&serde_json::Value| {
            message["method"] == "session/cancel" && message["params"]["sessionId"] == session.id()
        };
        let cancel = sent.iter().position(|message| of_session(&message)).unwrap();
        assert!(answer < cancel, "the agent gets its response before the cancel");
    }
}

#[tokio::test]
async fn an_answer_whose_post_is_lost_is_sent_once_and_its_request_is_not_shown_again() {
    for kind in KINDS {
        for fault in [Fault::PostResetAfterRead { execute: true }, Fault::PostHangs] {
            let server = MockServer::builder().agent("mock", Script::steps(vec![asks()])).start().await;
            let client = client(&server, kind);
            let session = session(&client).await;
            let mut events = client.events().deciding();
            let turn = session.prompt("go");
            let request = permission(&mut events).await;
            server.inject(fault.clone().times(1));
            request.allow_once().unwrap();
            assert_eq!(within(turn.text()).await.unwrap(), "permission: allow_once", "{kind} {fault:?}");
            assert_eq!((server.answers().len(), asked(&mut events).len()), (1, 0), "{kind} {fault:?}");
        }
    }
}
