//! A prompt returns only after its updates.

use std::time::Duration;

use acp_http_client::{
    AcpHttpClient, Dialect, Order,
    schema::v1::{ContentBlock, PromptRequest, TextContent},
};
use mock_server::{Echo, Fault, Step};
use sdk_tests::{acp_server, client, eventually, handshake, numbered, prompt, session, texts, within};
use serde_json::{Value, json};

use super::raw::{RawServer, result};

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn every_update_is_delivered_before_the_prompt_returns() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly, Echo::StreamOnly] {
        let server = acp_server(|_| numbered(500)).echo(echo).start().await;
        let client = client(&server).build().unwrap();
        let session = session(&client).await;
        for turn in 0..3 {
            let mut events = client.events();
            let reply = within("the prompt", prompt(&client, &session, "go")).await.unwrap();
            assert_eq!(texts(&mut events), expected(500), "turn {turn} with {echo:?}");
            assert_eq!(reply.raw().to_value().unwrap()["stopReason"], "end_turn");
        }
        client.close().await;
    }
}

#[tokio::test]
async fn twenty_thousand_updates_are_delivered_before_the_prompt_returns() {
    for echo in [Echo::BodyAndStream, Echo::BodyOnly, Echo::StreamOnly] {
        let server = acp_server(|_| vec![Step::Flood { updates: 20_000, bytes: 20 }])
            .replay_buffer(usize::MAX)
            .echo(echo)
            .start()
            .await;
        let client = client(&server).build().unwrap();
        let session = session(&client).await;
        let mut events = client.events();
        within("the prompt", prompt(&client, &session, "go")).await.unwrap();
        assert_eq!(texts(&mut events).len(), 20_000, "with {echo:?}");
    }
}

#[tokio::test]
async fn a_response_that_overtakes_the_stream_is_deferred_until_its_updates() {
    let server = acp_server(|_| numbered(500)).start().await;
    let client = client(&server).build().unwrap();
    let session = session(&client).await;
    server.inject(
        Fault::BodyBeforeUpdates { delay: Duration::from_millis(300) }.on_method("session/prompt").times(1),
    );
    let mut events = client.events();
    within("the prompt", prompt(&client, &session, "go")).await.unwrap();
    assert_eq!(server.fired("BodyBeforeUpdates"), 1);
    assert_eq!(texts(&mut events), expected(500));
}

#[tokio::test]
async fn a_response_whose_echo_lies_in_a_gap_is_deferred_until_the_updates_behind_the_gap() {
    let server = RawServer::obliging().await;
    let send = |id: u64, message: Value| server.send(format!("id: {id}\ndata: {message}\n\n"));
    let say = |text: &str| {
        let update =
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
        let params = json!({"sessionId": "s", "update": update});
        json!({"jsonrpc": "2.0", "method": "session/update", "params": params})
    };
    let posted = |method: &str| {
        server.received().into_iter().map(|request| request.body).rfind(|body| body["method"] == method)
    };
    let echo = |request: &Value| json!({"jsonrpc": "2.0", "id": request["id"], "result": result(request)});
    let builder = AcpHttpClient::builder(&server.url).dialect(Dialect::RPC).probe("_ping", json!({}));
    let client = builder.build().unwrap();
    within("the handshake", handshake(&client)).await.unwrap();
    send(1, echo(&posted("initialize").unwrap()));

    let mut events = client.events();
    let text = ContentBlock::Text(TextContent::new("go"));
    let turn = tokio::spawn(client.prompt(PromptRequest::new("s", vec![text])).with_order());
    eventually("the prompt", || posted("session/prompt").is_some()).await;
    eventually("its response", || client.diagnostics().streams.iter().any(|stream| stream.deferred > 0))
        .await;
    // Event 2 is lost; the echo of the response may be it.
    send(3, say("behind the gap"));
    eventually("the probe", || posted("_ping").is_some()).await;
    // It was sent before the response, and is late. Only the echo of the probe shows that nothing follows.
    send(4, say("late"));
    send(5, echo(&posted("_ping").unwrap()));
    let (_, order) = within("the turn", turn).await.unwrap().unwrap();
    assert_eq!(order, Order::Verified);
    assert_eq!(texts(&mut events), ["behind the gap", "late"]);
}
