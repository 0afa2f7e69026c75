//! Repeated agent requests: from the replay buffer, or from an agent that restarted.

use acp_http_client::{AgentRequests, Event};
use mock_server::{MockServer, State};
use sdk_tests::{acp_server, client, collect_until, eventually, handshake, prompt, session, within};
use serde_json::json;

/// The agent sends the same request under the same id.
fn ask(server: &MockServer, session: &str) {
    let params = json!({"sessionId": session, "n": 1});
    server.emit(json!({"jsonrpc": "2.0", "id": "ask-1", "method": "_x/slow", "params": params}));
}

/// How often the agent was answered.
fn answers(server: &MockServer) -> usize {
    let posts = server.requests().into_iter().filter_map(|request| request.json());
    posts.filter(|message| message["id"] == "ask-1" && message.get("result").is_some()).count()
}

async fn answer(requests: &mut AgentRequests) {
    let (_, responder) = within("the request", requests.next()).await.unwrap();
    assert!(responder.respond(&json!({})));
}

#[tokio::test]
async fn a_restarted_agent_gets_a_response_to_the_same_request_under_the_same_id() {
    let server = acp_server(|_| vec![]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    for round in 1..=3 {
        ask(&server, &session.to_string());
        answer(&mut requests).await;
        eventually("the response", || answers(&server) == round).await;
        // The turn is over, with the agent or without it.
        within("the turn", prompt(&client, &session, "go")).await.unwrap();
    }
}

#[tokio::test]
async fn a_repeated_agent_request_gets_no_second_response_until_the_agent_restarts() {
    let server = acp_server(|_| vec![]).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await.to_string();
    let mut events = client.events();
    ask(&server, &session);
    answer(&mut requests).await;
    eventually("the response", || answers(&server) == 1).await;
    server.restart(State::Preserved).await;
    collect_until(&mut events, "the stream", |event| matches!(event, Event::Reconnected { .. })).await;
    // The server takes it to be open still, and has given it another number.
    ask(&server, &session);
    server.emit(json!({"jsonrpc": "2.0", "method": "_x/behind"}));
    collect_until(
        &mut events,
        "what is behind it",
        |event| matches!(event, Event::Notification(notification) if notification.method == "_x/behind"),
    )
    .await;
    assert!(client.diagnostics().open_agent_requests.is_empty(), "it was answered");
    // The session has ended and its agent has exited: this is another agent, which counts from one.
    client.control().forget_agent_requests(Some("another session"));
    client.control().forget_agent_requests(Some(&session));
    ask(&server, &session);
    answer(&mut requests).await;
    eventually("the response", || answers(&server) == 2).await;
    // So is an agent after another `initialize`.
    server.restart(State::Preserved).await;
    collect_until(&mut events, "the stream", |event| matches!(event, Event::Reconnected { .. })).await;
    handshake(&client).await.unwrap();
    ask(&server, &session);
    answer(&mut requests).await;
    eventually("the response", || answers(&server) == 3).await;
}
