use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use mock_server::{MockServer, Script, State};
use serde_json::json;
use tokio::net::TcpStream;

use crate::client::{Client, SOON, ids, prompt};

#[tokio::test]
async fn a_server_is_ready_in_well_under_fifty_milliseconds() {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let server = MockServer::start().await;
        TcpStream::connect(server.address()).await.unwrap();
        best = best.min(started.elapsed());
    }
    assert!(best < Duration::from_millis(50), "{best:?}");
}

#[tokio::test]
async fn dropping_the_server_ends_its_connections_at_once() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    client.session().await;
    let events = client.stream(None).await;
    let address = server.address();
    drop(server);
    let (_, end) = events.bytes().await;
    assert!(end.is_err(), "the stream fails");
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, refused).await.expect("the port is closed");
}

#[tokio::test]
async fn a_panic_in_a_script_fails_the_owner_of_the_server() {
    let server =
        MockServer::builder().agent("mock", Script::new(|_| panic!("a bug in the test"))).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let (_, body) = client.post(prompt("p", &session, "x")).await;
    assert_eq!(body["error"]["data"]["terminationInfo"]["exitCode"], 101);
    let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(server)));
    let panic = dropped.expect_err("the drop panics");
    assert!(panic.downcast_ref::<String>().unwrap().contains("a bug in the test"));
}

#[tokio::test]
async fn a_panic_also_fails_the_next_call() {
    let server =
        MockServer::builder().agent("mock", Script::new(|_| panic!("a bug in the test"))).start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let (_, body) = client.post(prompt("p", &session, "x")).await;
    assert_eq!(body["error"]["data"]["terminationInfo"]["exitCode"], 101);
    let waited = AssertUnwindSafe(server.wait_for(|_| true, SOON)).catch_unwind().await;
    assert!(waited.is_err());
}

#[tokio::test]
async fn a_restart_that_keeps_its_state_continues_the_sequence() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    let before = server.last_event_id();
    let events = client.stream(Some(before)).await;
    let url = server.url();
    server.restart(State::Preserved).await;
    assert_eq!(server.url(), url);
    assert!(events.bytes().await.1.is_err(), "the old stream failed");
    client.result(prompt("p", &session, "again")).await;
    let seen = client.stream(Some(before)).await.until_response("p").await;
    assert_eq!(ids(&seen)[0], before + 1);
}

#[tokio::test]
async fn a_restart_that_loses_its_state_has_no_sessions_and_restarts_ids_at_one() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let session = client.session().await;
    server.restart(State::Lost).await;
    assert_eq!(server.last_event_id(), 0);
    assert_eq!(client.post(prompt("p", &session, "again")).await.0, 400);
    let new = client.session().await;
    assert_ne!(new, session, "session ids are unique across restarts");
    assert_eq!(ids(&client.stream(None).await.until_response("new").await), [1, 2]);
}

#[tokio::test]
async fn a_stopped_server_refuses_connections_until_it_is_restarted() {
    let server = MockServer::start().await;
    server.stop().await;
    assert!(TcpStream::connect(server.address()).await.is_err());
    server.restart(State::Preserved).await;
    assert!(TcpStream::connect(server.address()).await.is_ok());
}

#[tokio::test]
async fn every_request_is_recorded_with_all_its_parts() {
    let server = MockServer::start().await;
    let client = Client::new(&server);
    let url = format!("{}?a=1", client.url);
    let body = json!({ "jsonrpc": "2.0", "method": "x" });
    let post = client.http.post(url).header("x-test", "yes").header("content-type", "application/json");
    post.body(body.to_string()).send().await.unwrap();
    assert!(server.wait_for(|requests| requests.len() == 1, SOON).await);
    let request = server.requests_to("POST", "/v1/rpc").pop().unwrap();
    assert_eq!((request.query.as_str(), request.header("x-test")), ("a=1", Some("yes")));
    assert_eq!((request.json(), request.rpc_method()), (Some(body), Some("x".to_owned())));
    server.forget_requests();
    assert!(server.requests().is_empty());
}
