//! Requests and updates of a connection arrive in one order.

use mock_server::{MockServer, Script, Step};
use sandbox_agent_sdk::{Event, ServerKind};
use serde_json::json;

use super::support::{LIMIT, client, event, session, within};

#[tokio::test]
async fn a_request_keeps_its_position_between_updates() {
    const ROUNDS: usize = 200;
    let script = Script::steps(vec![Step::WaitForCancel]);
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = client(&server, ServerKind::Shared);
    let session = session(&client).await;
    let mut events = session.events().deciding();
    let _turn = session.prompt("wait");
    assert!(server.wait_for(|_| !server.messages("session/prompt").is_empty(), LIMIT).await);
    let update = |text: String| {
        let content = json!({"type": "text", "text": text});
        let update = json!({"sessionUpdate": "agent_message_chunk", "content": content});
        let params = json!({"sessionId": session.id(), "update": update});
        server.emit(json!({"jsonrpc": "2.0", "method": "session/update", "params": params}));
    };
    // Nothing is awaited in between, so everything is available when the client reads.
    for round in 0..ROUNDS {
        update(format!("before {round}"));
        let params = json!({"sessionId": session.id(), "toolCall": {"toolCallId": round.to_string()},
            "options": [{"optionId": "no", "kind": "reject_once"}]});
        server.emit_request(json!({"method": "session/request_permission", "params": params}));
        update(format!("after {round}"));
    }
    let mut seen = Vec::new();
    while seen.len() < 3 * ROUNDS {
        let next = event(&mut events, |event| match event {
            Event::Update(update) => Some(update.to_string()),
            Event::Permission(request) => Some(request.tool_call()?.id.clone()),
            _ => None,
        });
        seen.push(within(next).await);
    }
    let expected = (0..ROUNDS)
        .flat_map(|round| [format!("before {round}"), round.to_string(), format!("after {round}")]);
    assert_eq!(seen, expected.collect::<Vec<_>>());
}
