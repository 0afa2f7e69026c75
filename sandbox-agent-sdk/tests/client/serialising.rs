//! Events and updates as JSON, for a web back end that forwards them to a browser.

use mock_server::{MockServer, Permission, Script, Step, ToolCall};
use sandbox_agent_sdk::{Event, PermissionPolicy, ServerKind, UpdateKind};
use serde_json::{Value, json};

use super::support::{client, event, options, session, within};

#[tokio::test]
async fn all_events_of_a_turn_serialise_to_json() {
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run", "name": "bash", "kind": "execute",
        "content": [], "brandNew": 1, "_meta": {"a": 1}});
    let script = Script::steps(vec![
        Step::Update(call.clone()),
        Step::AskPermission(Permission::new(ToolCall::new("t", "Run"))),
        Step::crash(3, ["boom"]),
    ]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let mut events = session.events().deciding();
    let mut turn = session.prompt("go");

    let update = event(&mut events, |event| matches!(event, Event::Update(_)).then_some(event)).await;
    assert_eq!(
        json!(update),
        json!({"type": "update", "sessionId": session.id(), "origin": "live", "update": call})
    );
    let Event::Update(update) = update else { panic!("{update:?}") };
    let UpdateKind::ToolCall(read) = update.kind() else { panic!("{update:?}") };
    assert_eq!((read.name.as_deref(), read.meta.as_ref().unwrap()), (Some("bash"), &json!({"a": 1})));
    let mut expected = call.clone();
    expected.as_object_mut().unwrap().remove("sessionUpdate");
    assert_eq!(json!(read), expected, "a tool call preserves every member");
    assert_eq!(json!(update.kind()), json!({"type": "tool_call", "value": expected}));

    let asked = event(&mut events, |event| matches!(event, Event::Permission(_)).then_some(event)).await;
    let written: Value = json!(asked);
    assert_eq!((&written["type"], &written["sessionId"]), (&json!("permission"), &json!(session.id())));
    assert_eq!(written["toolCall"]["toolCallId"], "t");
    let Event::Permission(request) = &asked else { panic!("{asked:?}") };
    assert_eq!(written["id"], request.id(), "a browser refers to the request by its id");
    let alone: Value = json!(request);
    assert_eq!((&alone["id"], &alone["toolCall"]), (&written["id"], &written["toolCall"]));
    assert_eq!(written["options"][0]["kind"], "allow_once");
    let Event::Permission(request) = asked else { panic!("{asked:?}") };
    request.allow_once().unwrap();

    let ended = event(&mut events, |event| matches!(event, Event::SessionEnded(_)).then_some(event)).await;
    let written: Value = json!(ended);
    assert_eq!((&written["type"], &written["termination"]["exitCode"]), (&json!("sessionEnded"), &json!(3)));
    within(turn.outcome()).await.unwrap_err();
}

#[tokio::test]
async fn a_decided_permission_serialises_with_its_outcome() {
    let ask = Step::AskPermission(Permission::new(ToolCall::new("t", "Run")));
    let server = MockServer::builder().agent("mock", Script::steps(vec![ask])).start().await;
    let client = options(&server, ServerKind::Shared)
        .permissions(PermissionPolicy::BypassPermissions)
        .build()
        .unwrap();
    let session = session(&client).await;
    let mut events = client.events().deciding();
    within(session.prompt("go").outcome()).await.unwrap();
    let decided =
        event(&mut events, |event| matches!(event, Event::PermissionDecided(_)).then_some(event)).await;
    let written: Value = json!(decided);
    let outcome = json!({"outcome": "selected", "optionId": "allow_once", "kind": "allow_once"});
    assert_eq!((&written["by"], &written["outcome"]), (&json!("policy"), &outcome));
}

#[tokio::test]
async fn a_collected_turn_serialises_with_its_changes() {
    let diff = json!({"type": "diff", "path": "/a", "oldText": "x", "newText": "y"});
    let call = json!({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Edit", "content": [diff]});
    let script = Script::steps(vec![Step::Think("hm".into()), Step::Update(call), Step::Say("done".into())]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    let written: Value = json!(within(session.prompt("go").collect()).await.unwrap());
    assert_eq!((&written["text"], &written["thoughts"]), (&json!("done"), &json!("hm")));
    assert_eq!(written["toolCalls"][0]["toolCallId"], "t");
    let change = json!({"path": "/a", "oldText": "x", "newText": "y", "toolCallId": "t"});
    assert_eq!(written["changes"], json!([change]));
    assert_eq!(written["outcome"]["stopReason"], "end_turn");
}
