use mock_server::{Fault, MockServer};
use serde_json::{Value, json};

use crate::client::{Client, ids, prompt};

/// Returns a server whose replay buffer holds events 1 to 6. The last is the response to `p`.
async fn with_six_events() -> (MockServer, Client, String) {
    let server = MockServer::builder().replay_buffer(8).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    client.result(prompt("p", &session, "hello there")).await;
    assert_eq!(server.last_event_id(), 6);
    (server, client, session)
}

#[tokio::test]
async fn a_hole_skips_one_id_once_or_always() {
    let (server, client, _) = with_six_events().await;
    server.inject(Fault::Hole { id: 3 }.times(1));
    assert_eq!(ids(&client.stream(None).await.until_response("p").await), [1, 2, 4, 5, 6]);
    assert_eq!(ids(&client.stream(None).await.until_response("p").await), [1, 2, 3, 4, 5, 6]);
    server.inject(Fault::Hole { id: 4 });
    for _ in 0..2 {
        assert_eq!(ids(&client.stream(None).await.until_response("p").await), [1, 2, 3, 5, 6]);
    }
    assert_eq!(server.fired("Hole"), 3);
}

#[tokio::test]
async fn a_repeat_sends_one_event_twice() {
    let (server, client, _) = with_six_events().await;
    server.inject(Fault::Repeat { id: 3 }.times(1));
    let seen = client.stream(None).await.until_response("p").await;
    assert_eq!(ids(&seen), [1, 2, 3, 3, 4, 5, 6]);
    assert_eq!(seen[2], seen[3]);
}

#[tokio::test]
async fn a_reset_sequence_restarts_ids_at_one_on_an_open_stream() {
    let (server, client, session) = with_six_events().await;
    let mut events = client.stream(None).await;
    events.until_response("p").await;
    server.inject(Fault::SequenceReset);
    client.result(prompt("q", &session, "x")).await;
    assert_eq!(ids(&events.until_response("q").await), [1, 2, 3]);
}

#[tokio::test]
async fn an_overflow_shows_as_a_jump_in_the_ids() {
    let (server, client, session) = with_six_events().await;
    let mut open = client.stream(None).await;
    open.until_response("p").await;
    server.inject(Fault::ReplayBufferOverflow);
    client.result(prompt("q", &session, "x")).await;
    let seen = ids(&client.stream(Some(6)).await.until_response("q").await);
    assert!(seen[0] > 7, "a late reader sees a gap: {seen:?}");
    assert_eq!(*seen.last().unwrap(), server.last_event_id());
    assert!(ids(&open.until_response("q").await)[0] > 7, "an open stream sees it too");
}

#[tokio::test]
async fn a_stale_replay_buffer_has_old_responses_and_an_old_request() {
    let server = MockServer::builder().fault(Fault::StaleReplayBuffer { count: 3 }).start().await;
    let client = Client::new(&server);
    let seen =
        client.stream(None).await.until(|message| message["method"] == "session/request_permission").await;
    let old: Vec<Value> = seen.iter().map(|event| event.json()["id"].clone()).collect();
    assert_eq!(old[..4], [json!(0), json!("0"), json!(1), json!("1")]);
    assert_eq!(old.len(), 9);
    let (status, _) = client.post(json!({ "jsonrpc": "2.0", "id": old[8], "result": {} })).await;
    assert_eq!(status, 400, "no agent waits for the response");
}

#[tokio::test]
async fn an_oversize_event_arrives_whole() {
    let server = MockServer::start().await;
    server.inject(Fault::OversizeEvent { bytes: 3 << 20 });
    let event = Client::new(&server).stream(None).await.next().await.unwrap();
    assert_eq!(event.json()["params"]["text"].as_str().unwrap().len(), 3 << 20);
}

#[tokio::test]
async fn an_event_can_contain_json_that_is_not_an_object() {
    let server = MockServer::start().await;
    for text in ["42", "[1,2,3]", "\"text\"", "null"] {
        server.inject(Fault::NonObjectEvent(text.into()));
    }
    let mut events = Client::new(&server).stream(None).await;
    for text in ["42", "[1,2,3]", "\"text\"", "null"] {
        assert_eq!(events.next().await.unwrap().data, text);
    }
}

#[tokio::test]
async fn an_event_can_contain_text_that_is_not_json() {
    let server = MockServer::start().await;
    server.inject(Fault::MalformedEvent("{\"jsonrpc\":".into()));
    let event = Client::new(&server).stream(None).await.next().await.unwrap();
    assert_eq!((event.id, event.data.as_str()), (Some(1), "{\"jsonrpc\":"));
}

#[tokio::test]
async fn an_event_can_contain_invalid_utf8() {
    let server = MockServer::start().await;
    server.inject(Fault::InvalidUtf8Event);
    let seen = Client::new(&server).stream(None).await.at_least(30).await;
    assert!(seen.contains(&0xff));
    assert_eq!(server.fired("InvalidUtf8Event"), 1);
}
