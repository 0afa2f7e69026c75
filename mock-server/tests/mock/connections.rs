use mock_server::MockServer;
use serde_json::{Value, json};

use crate::client::{Events, SOON, initialize_params, prompt, request};

const HEADER: &str = "X-ACP-Connection-Id";

async fn server() -> MockServer {
    MockServer::builder().connection_ids(Some(HEADER)).start().await
}

async fn post(server: &MockServer, id: Option<&str>, message: Value) -> reqwest::Response {
    let http = crate::http_client::builder().build().unwrap();
    let mut post = http.post(format!("{}/v1/rpc", server.url())).header("content-type", "application/json");
    if let Some(id) = id {
        post = post.header(HEADER, id);
    }
    tokio::time::timeout(SOON, post.body(message.to_string()).send()).await.unwrap().unwrap()
}

async fn connect(server: &MockServer) -> String {
    let response = post(server, None, request(1, "initialize", initialize_params())).await;
    assert_eq!(response.status(), 200);
    response.headers()[HEADER].to_str().unwrap().to_owned()
}

async fn open(server: &MockServer, id: &str) -> Events {
    let http = crate::http_client::builder().build().unwrap();
    Events::new(http.get(format!("{}/v1/rpc", server.url())).header(HEADER, id).send().await.unwrap())
}

#[tokio::test]
async fn a_connection_id_is_assigned_and_required() {
    let server = server().await;
    assert_eq!(post(&server, None, prompt(1, "s", "x")).await.status(), 400);
    assert_eq!(post(&server, Some("acp_conn_9"), prompt(1, "s", "x")).await.status(), 404);
    assert_eq!(connect(&server).await, "acp_conn_1");
    assert_eq!(connect(&server).await, "acp_conn_2");
}

#[tokio::test]
async fn each_connection_has_its_own_replay_buffer() {
    let server = server().await;
    let (one, two) = (connect(&server).await, connect(&server).await);
    let meta = json!({ "sandboxagent.dev": { "agent": "mock" } });
    let params = json!({ "cwd": "/", "mcpServers": [], "_meta": meta });
    let new = post(&server, Some(&one), request(2, "session/new", params)).await;
    let new: Value = serde_json::from_slice(&new.bytes().await.unwrap()).unwrap();
    let session = new["result"]["sessionId"].as_str().unwrap();
    post(&server, Some(&one), prompt(3, session, "x")).await;
    let seen = open(&server, &one).await.until(|message| message["id"] == 3).await;
    assert_eq!(seen.len(), 5);
    let mut other = open(&server, &two).await;
    assert_eq!(other.next().await.unwrap().json()["id"], 1);
    assert!(other.is_quiet().await, "the other connection receives nothing");
}

#[tokio::test]
async fn a_response_from_the_wrong_connection_is_denied_and_consumes_the_request() {
    let server = server().await;
    let (one, two) = (connect(&server).await, connect(&server).await);
    let meta = json!({ "sandboxagent.dev": { "agent": "mock" } });
    let params = json!({ "cwd": "/", "mcpServers": [], "_meta": meta });
    let new = post(&server, Some(&one), request(2, "session/new", params)).await;
    let new: Value = serde_json::from_slice(&new.bytes().await.unwrap()).unwrap();
    let session = new["result"]["sessionId"].as_str().unwrap().to_owned();
    let mut events = open(&server, &one).await;
    let turn = post(&server, Some(&one), prompt(3, &session, "permission"));
    let drive = async {
        let seen = events.until(|message| message["method"] == "session/request_permission").await;
        let id = seen.last().unwrap().json()["id"].clone();
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": {} });
        assert_eq!(post(&server, Some(&two), answer.clone()).await.status(), 403);
        assert_eq!(post(&server, Some(&one), answer).await.status(), 400);
    };
    tokio::select! {
        _ = turn => panic!("the request never got a response"),
        () = drive => {}
    }
}

#[tokio::test]
async fn delete_removes_the_connection() {
    let server = server().await;
    let id = connect(&server).await;
    let events = open(&server, &id).await;
    let http = crate::http_client::builder().build().unwrap();
    let delete = || http.delete(format!("{}/v1/rpc", server.url())).header(HEADER, &id).send();
    assert_eq!(delete().await.unwrap().status(), 204);
    assert!(events.bytes().await.1.is_ok());
    assert_eq!(delete().await.unwrap().status(), 204, "a second DELETE succeeds");
    assert_eq!(post(&server, Some(&id), prompt(1, "s", "x")).await.status(), 404);
}

#[tokio::test]
async fn a_connection_has_one_stream_at_a_time() {
    let server = server().await;
    let id = connect(&server).await;
    let first = open(&server, &id).await;
    let http = crate::http_client::builder().build().unwrap();
    let get = || http.get(format!("{}/v1/rpc", server.url())).header(HEADER, &id).send();
    assert_eq!(get().await.unwrap().status(), 409);
    drop(first);
    assert!(server.wait_for_streams(|count| count == 0, SOON).await);
    assert_eq!(get().await.unwrap().status(), 200, "the slot is free again");
}
