//! What other agents and clients of a shared endpoint cannot do to this client.

use std::sync::Arc;
use std::time::Duration;

use mock_server::{Fault, MockServer, Permission, Reply, Script, Step, ToolCall};
use sandbox_agent_sdk::limits::Limits;
use sandbox_agent_sdk::{
    ConnectionState, Error, Event, PermissionDecision, PermissionPolicy, ServerKind, StopReason,
};
use serde_json::json;

use super::support::{LIMIT, client, event, options, session, within};

#[tokio::test]
async fn requests_of_others_do_not_use_up_the_memory_of_our_own() {
    let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .limits(Limits::default().open_request_bytes(20_000))
        .build()
        .unwrap();
    let session = session(&client).await;
    // Nobody reads this subscription, so the request in it stays open.
    let unread = client.events();
    let mut read = client.events();
    server.emit_request(json!({
        "method": "_x/foreign", "params": {"sessionId": "theirs", "data": "x".repeat(15_000)},
    }));
    event(&mut read, |event| match event {
        Event::UnclaimedRequest(request) => Some(request),
        _ => None,
    })
    .await;
    assert_eq!(within(session.prompt("go").text()).await.unwrap(), "permission: allow_once");
    drop(unread);
}

#[tokio::test]
async fn the_end_of_another_agent_ends_only_the_session_of_the_call() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "wait" => vec![Step::WaitForCancel],
        _ => vec![Step::Say("done".into())],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::Shared);
    let (ours, theirs) = (session(&client).await, session(&client).await);
    let mut events = client.events();
    let mut turn = ours.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let problem = json!({
        "type": "urn:sandbox-agent:error:agent_process_exited", "status": 500, "agent": "other",
        "details": {"exitCode": 3, "stderr": "boom"},
    });
    let content_type = Some("application/problem+json".to_owned());
    let reply = Reply { body: problem.to_string(), content_type, ..Reply::default() };
    let fault = Fault::PostStatus { status: 500, reply: Some(reply), execute: false };
    server.inject(fault.clone().on_method("session/prompt").times(1));
    let error = within(theirs.prompt("go").outcome()).await.unwrap_err();
    let Error::AgentEnded(end) = &error else { panic!("{error:?}") };
    assert_eq!((end.session_id.as_deref(), end.info.exit_code), (Some(theirs.id()), Some(3)));
    assert!(!end.connection_ended);
    // A call about no session ends nothing.
    server.inject(fault.on_method("_x/any").times(1));
    let error = within(client.raw_request("_x/any", json!({}))).await.unwrap_err();
    assert!(error.termination().is_some_and(|end| end.exit_code == Some(3)), "{error:?}");
    assert_eq!(client.state(), ConnectionState::Connected);
    within(ours.cancel()).await.unwrap();
    assert_eq!(within(turn.outcome()).await.unwrap().stop_reason, StopReason::Cancelled);
    assert_eq!(within(ours.prompt("again").text()).await.unwrap(), "done");
    let ends = super::support::ends_so_far(&mut events);
    let ended: Vec<_> = ends.iter().map(|end| end.session_id.as_str()).collect();
    assert_eq!(ended, [theirs.id()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_requests_does_not_hold_up_other_calls() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "wait" => vec![Step::WaitForCancel],
        _ => vec![Step::Say("done".into())],
    });
    let server = Arc::new(MockServer::builder().agent("mock", script).start().await);
    // The policy is slower than the agent, so that there is always another request.
    #[allow(clippy::disallowed_methods, reason = "a policy that blocks is the point")]
    let slow = PermissionPolicy::function(|_| {
        std::thread::sleep(Duration::from_millis(2));
        PermissionDecision::Refuse
    });
    let client = options(&server, ServerKind::Shared).permissions(slow).build().unwrap();
    let (busy, other) = (session(&client).await, session(&client).await);
    let mut events = client.events();
    let _turn = busy.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let (flooding, id) = (Arc::clone(&server), busy.id().to_owned());
    let flood = tokio::spawn(async move {
        let options = json!([{"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let params = json!({"sessionId": id, "toolCall": {"toolCallId": "t"}, "options": options});
        let mut next = tokio::time::interval(Duration::from_millis(1));
        loop {
            next.tick().await;
            flooding.emit_request(json!({"method": "session/request_permission", "params": params}));
        }
    });
    event(&mut events, |event| matches!(event, Event::PermissionDecided(_)).then_some(())).await;
    assert_eq!(within(other.prompt("go").text()).await.unwrap(), "done");
    flood.abort();
}
