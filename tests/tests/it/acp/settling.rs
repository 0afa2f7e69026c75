//! Agent requests that are cancelled, closed or cannot be delivered.

use acp_http_client::Event;
use mock_server::{Script, Step};
use sdk_tests::{LIMIT, acp_server, client, prompt, session, within};
use serde_json::json;

fn asks() -> Script {
    Script::steps(vec![Step::FireRequests(2)])
}

#[tokio::test]
async fn open_agent_requests_can_be_cancelled_and_their_responders_close() {
    let server = acp_server(|_| vec![]).agent("mock", asks()).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, mut one) = within("a request", requests.next()).await.unwrap();
    let (_, two) = within("a request", requests.next()).await.unwrap();
    within("nothing", client.control().cancel_agent_requests(Some("another session"))).await;
    assert!(!one.is_closed() && !two.is_closed());
    within("the responses", client.control().cancel_agent_requests(None)).await;
    within("the end of the wait", one.closed()).await;
    assert!(two.is_closed() && !two.respond(&json!({})));
    within("the turn", turn).await.unwrap().unwrap();
    let cancelled = json!({"outcome": {"outcome": "cancelled"}});
    assert!(server.answers().iter().all(|answer| answer.result() == &cancelled));
    assert_eq!(server.answers().len(), 2);
}

#[tokio::test]
async fn requests_of_an_agent_that_is_gone_close_without_a_response() {
    let server = acp_server(|_| vec![]).agent("mock", asks()).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let session = session(&client).await;
    let _turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, mut one) = within("a request", requests.next()).await.unwrap();
    let (_, two) = within("a request", requests.next()).await.unwrap();
    assert_eq!(client.control().forget_agent_requests(Some("another session")), 0);
    assert_eq!(client.control().forget_agent_requests(Some(&session.0)), 2);
    within("the end of the wait", one.closed()).await;
    assert!(!one.respond(&json!({})));
    drop(two);
    // A response would have arrived before this.
    let id = server.emit_request(json!({"method": "_x/unknown", "params": {}}));
    let (request, responder) = within("the request", requests.next()).await.unwrap();
    assert!(request.id().as_json().contains(&id));
    responder.respond(&json!({}));
    assert!(server.wait_for_answers(|answers| !answers.is_empty(), LIMIT).await);
    let answers = server.answers();
    assert!(answers.iter().all(|answer| answer.method == "_x/unknown"), "{answers:?}");
}

#[tokio::test]
async fn a_response_over_the_servers_limit_is_replaced_by_an_error() {
    let ask = Step::Request { method: "_x/large".into(), params: json!({}) };
    let server = acp_server(move |_| vec![ask.clone()]).body_limit(10_000).start().await;
    let (builder, mut requests) = client(&server).agent_requests();
    let client = builder.build().unwrap();
    let mut events = client.events();
    let session = session(&client).await;
    let turn = tokio::spawn(prompt(&client, &session, "go"));
    let (_, responder) = within("the request", requests.next()).await.unwrap();
    assert!(responder.respond(&json!({"text": "x".repeat(20_000)})));
    within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(server.answers().len(), 1);
    assert_eq!(server.answers()[0].answer["error"]["code"], -32603);
    let lost = sdk_tests::collect_until(&mut events, "the report", |event| {
        matches!(event, Event::ResponseLost { .. })
    });
    lost.await;
}
