use mock_server::{Fault, MockServer};
use serde_json::json;

use crate::client::{Client, SOON, prompt};

#[tokio::test]
async fn a_permission_request_can_wait_for_a_cancel() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    server.inject(Fault::PermissionWaitsForCancel.times(1));
    let turn = prompt("p", &session, "hello");
    let turn = client.post(turn);
    let drive = async {
        let seen = events.until(|message| message["method"] == "session/request_permission").await;
        let id = seen.last().unwrap().json()["id"].clone();
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
        assert_eq!(client.post(cancel).await.0, 202);
        assert!(server.answers().is_empty(), "the cancel alone does not end the turn");
        let answer =
            json!({ "jsonrpc": "2.0", "id": id, "result": { "outcome": { "outcome": "cancelled" } } });
        assert_eq!(client.post(answer.clone()).await.0, 202);
        assert_eq!(client.post(answer).await.0, 400, "a second response is rejected");
    };
    let ((_, body), ()) = tokio::join!(turn, drive);
    assert_eq!(body["result"]["stopReason"], "cancelled");
    assert!(server.wait_for_answers(|answers| answers.len() == 1, SOON).await);
    assert_eq!(server.answers()[0].result()["outcome"]["outcome"], "cancelled");
}

#[tokio::test]
async fn a_turn_can_be_full_of_unknown_variants() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let mut events = client.stream(None).await;
    server.inject(Fault::UnknownVariants.times(1));
    let turn = prompt("p", &session, "hello");
    let turn = client.post(turn);
    let drive = async {
        let seen = events.until(|message| message["method"] == "session/request_permission").await;
        let texts: String = seen.iter().map(|event| event.data.clone()).collect();
        for unknown in ["future_update", "hologram", "_vendor/unknown", "allow_for_today", "teleport"] {
            assert!(texts.contains(unknown), "{unknown}");
        }
        let id = seen.last().unwrap().json()["id"].clone();
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "today" } });
        client.post(json!({ "jsonrpc": "2.0", "id": id, "result": outcome })).await;
    };
    let ((_, body), ()) = tokio::join!(turn, drive);
    assert_eq!(body["result"]["stopReason"], "future_reason");
}
