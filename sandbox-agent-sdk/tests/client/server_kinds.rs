//! Detection of the kind of server.

use std::sync::{Arc, Mutex};

use mock_server::{Fault, MockServer};
use sandbox_agent_sdk::{Error, SandboxAgentClient, ServerKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::{client, session, timeouts, within};

async fn found(server: &MockServer) -> Result<ServerKind, Error> {
    let options = SandboxAgentClient::builder(server.url()).agent("mock").timeouts(timeouts());
    let client = options.auto_connect(false).build().unwrap();
    let can = within(client.connect()).await?;
    let session = session(&client).await;
    assert_eq!(within(session.prompt("hello").text()).await.unwrap(), "mock: hello");
    Ok(can.server)
}

#[tokio::test]
async fn a_shared_endpoint_is_detected() {
    let server = MockServer::start().await;
    assert_eq!(found(&server).await.unwrap(), ServerKind::Shared);
    assert!(server.requests().iter().all(|request| request.path == "/v1/rpc"));
}

#[tokio::test]
async fn a_released_server_is_detected() {
    let server =
        MockServer::builder().fault(Fault::StreamRefused { status: 404 }.on_path("/v1/rpc")).start().await;
    assert_eq!(found(&server).await.unwrap(), ServerKind::PerAgent);
    let posts: Vec<_> = server.requests().into_iter().filter(|request| request.method == "POST").collect();
    assert!(posts.iter().all(|post| post.path.starts_with("/v1/acp/sdk-mock-")));
    let named: Vec<_> =
        posts.iter().filter(|post| !post.query.is_empty()).map(|post| post.query.as_str()).collect();
    assert_eq!(named, ["agent=mock"], "the agent is in one request");
}

#[tokio::test]
async fn a_server_that_assigns_connection_ids_is_detected() {
    for header in ["x-acp-connection-id", "acp-connection-id"] {
        let server = MockServer::builder().connection_ids(Some(header)).start().await;
        assert_eq!(found(&server).await.unwrap(), ServerKind::ConnectionId);
        let prompts = server
            .requests()
            .into_iter()
            .filter(|request| request.rpc_method().as_deref() == Some("session/prompt"));
        assert!(prompts.map(|request| request.header(header).map(str::to_owned)).all(|id| id.is_some()));
    }
}

#[tokio::test]
async fn a_configured_kind_is_not_detected() {
    for kind in [ServerKind::Shared, ServerKind::PerAgent] {
        let server = MockServer::start().await;
        let client = client(&server, kind);
        session(&client).await;
        let path = if kind == ServerKind::Shared { "/v1/rpc" } else { "/v1/acp/" };
        assert!(server.requests().iter().all(|request| request.path.starts_with(path)));
        let looks =
            server.requests().iter().filter(|request| request.header("last-event-id").is_some()).count();
        assert_eq!(looks, 0, "{kind}");
    }
}

#[tokio::test]
async fn a_server_of_no_known_kind_is_an_error() {
    let server = MockServer::builder()
        .fault(Fault::StreamRefused { status: 404 }.on_path("/v1/rpc"))
        .fault(Fault::Redirect { to: "http://127.0.0.1:1/".into() }.on_path("/v1/acp"))
        .start()
        .await;
    assert!(matches!(found(&server).await, Err(Error::Redirected { .. })));
    let page = MockServer::builder().fault(Fault::HtmlStream).start().await;
    assert!(matches!(found(&page).await, Err(Error::UnexpectedBody { .. })));
}

/// An early server: everything under `/v1` is 410, and `/v2/rpc` assigns connection ids.
async fn early_server(seen: Arc<Mutex<Vec<String>>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(early_answer(socket, Arc::clone(&seen)));
        }
    });
    url
}

async fn early_answer(mut socket: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = socket.read(&mut chunk).await {
        head.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&head).into_owned();
        let Some((headers, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = headers
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() < length.unwrap_or(0) {
            continue;
        }
        let first = headers.lines().next().unwrap_or_default().to_owned();
        let with_id = headers.to_ascii_lowercase().contains("x-acp-connection-id: acp_conn_1");
        seen.lock().unwrap().push(format!("{first} {with_id}"));
        let id = body
            .split("\"id\":")
            .nth(1)
            .and_then(|rest| rest.split([',', '}']).next())
            .unwrap_or("null")
            .to_owned();
        let (status, extra, answer) = match first.split(' ').collect::<Vec<_>>()[..2] {
            ["GET", "/v1/rpc"] => (
                "410 Gone",
                "",
                r#"{"type":"urn:sandbox-agent:error:v1_removed","title":"v1 API removed","status":410}"#
                    .to_owned(),
            ),
            ["POST", "/v2/rpc"] => (
                "200 OK",
                "x-acp-connection-id: acp_conn_1\r\n",
                format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":{{"agentCapabilities":{{}},"sessionId":"s1","stopReason":"end_turn"}}}}"#
                ),
            ),
            ["GET", "/v2/rpc"] if with_id => {
                let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n: hi\n\n").await;
                std::future::pending::<()>().await;
                return;
            }
            _ => ("404 Not Found", "", "{}".to_owned()),
        };
        let response = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{extra}connection: close\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        );
        let _ = socket.write_all(response.as_bytes()).await;
        return;
    }
}

#[tokio::test]
async fn an_early_server_is_detected_at_its_own_path() {
    let seen = Arc::default();
    let url = early_server(Arc::clone(&seen)).await;
    let client = SandboxAgentClient::builder(url).agent("mock").timeouts(timeouts()).build().unwrap();
    let session = session(&client).await;
    assert_eq!(session.id(), "s1");
    assert_eq!(client.capabilities().unwrap().server, ServerKind::ConnectionId);
    let seen = seen.lock().unwrap().clone();
    let posts: Vec<_> = seen.iter().filter(|line| line.starts_with("POST")).collect();
    assert_eq!(
        posts,
        ["POST /v2/rpc HTTP/1.1 false", "POST /v2/rpc HTTP/1.1 true"],
        "the client sends the id back"
    );
}
