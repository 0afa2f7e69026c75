//! The captures of the released server, replayed: what it answered then, the mock answers now.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use mock_server::MockServer;
use serde_json::{Value, json};

use crate::capture::{Answer, Exchange, read};
use crate::captured_agent::{CapturedAgent, SECOND};
use crate::client::{Client, SOON};

/// The released server was told to give up on an agent after four seconds.
const LIMIT: Duration = Duration::from_millis(300);

/// The released server sent a comment after fifteen seconds of silence.
const HEARTBEAT: Duration = Duration::from_millis(15 * 75);

async fn server() -> MockServer {
    MockServer::builder()
        .agent("mock", CapturedAgent::default())
        .request_timeout(LIMIT)
        .heartbeat(HEARTBEAT)
        .start()
        .await
}

/// Sends one captured request. None when no answer came in as many of the agent's seconds as the capture
/// waited.
async fn send(server: &MockServer, exchange: &Exchange) -> Option<reqwest::Response> {
    let http = crate::http_client::builder().build().unwrap();
    let method = exchange.method.parse::<reqwest::Method>().unwrap();
    let mut request = http.request(method, format!("{}{}", server.url(), exchange.target));
    for (name, value) in exchange.headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(name, value);
    }
    if let Some(body) = &exchange.body {
        request = request.body(body.clone());
    }
    let patience = match (&exchange.answer, exchange.patience) {
        (None, Some(seconds)) => SECOND.mul_f64(seconds),
        _ => SOON,
    };
    tokio::time::timeout(patience, request.send()).await.ok().map(Result::unwrap)
}

/// Sends one captured request and checks that the answer is the captured one.
async fn replay(server: &MockServer, exchange: &Exchange, ids: &BTreeSet<String>) {
    let response = send(server, exchange).await;
    let (response, answer) = match (response, &exchange.answer) {
        (Some(response), Some(answer)) => (response, answer),
        (None, None) => return,
        (response, answer) => panic!("{exchange:?}\nanswered {response:?} instead of {answer:?}"),
    };
    assert_eq!(response.status().as_u16(), answer.status, "{exchange:?}");
    let normal = normalised(&answer.body, ids);
    let seen = headers(response.headers(), normal.is_some());
    assert_eq!(seen, expected_headers(answer, normal.is_some()), "{exchange:?}");
    if exchange.is_stream() {
        let body = stream_body(response, exchange, answer).await;
        assert_eq!(body, answer.body.trim_end_matches('\n'), "{exchange:?}");
        return;
    }
    let body = response.text().await.unwrap();
    match normal {
        Some(expected) => assert_eq!(normalised(&body, ids), Some(expected), "{exchange:?}"),
        None => assert_eq!(body, answer.body.trim_end_matches('\n'), "{exchange:?}"),
    }
}

/// As much of a stream as the capture has, or all of it if it ended.
async fn stream_body(response: reqwest::Response, exchange: &Exchange, answer: &Answer) -> String {
    let mut stream = response.bytes_stream();
    let mut body = Vec::new();
    let expected = answer.body.trim_end_matches('\n').len();
    while !exchange.gave_up || body.len() < expected {
        let next = tokio::time::timeout(SOON, stream.next()).await;
        let Some(chunk) = next.unwrap_or_else(|_| panic!("too little of {answer:?}")) else { break };
        body.extend_from_slice(&chunk.unwrap());
    }
    String::from_utf8(body).unwrap().trim_end_matches('\n').to_owned()
}

/// JSON whose times are set to zero and whose list holds only the servers of this capture; none when the
/// text has nothing of the kind.
fn normalised(text: &str, ids: &BTreeSet<String>) -> Option<Value> {
    let mut value: Value = serde_json::from_str(text.trim()).ok()?;
    if let Some(servers) = value.get_mut("servers").and_then(Value::as_array_mut) {
        servers.retain(|server| ids.contains(server["serverId"].as_str().unwrap_or_default()));
        for server in servers {
            server["createdAtMs"] = json!(0);
        }
        return Some(value);
    }
    let uptime = value.pointer_mut("/serverStatus/uptimeMs")?;
    *uptime = json!(0);
    Some(value)
}

/// The headers that matter: all but the date, and the length only of bodies that are compared as they are.
fn headers(headers: &reqwest::header::HeaderMap, without_length: bool) -> Vec<(String, String)> {
    let all = headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    relevant(all, without_length)
}

fn expected_headers(answer: &Answer, without_length: bool) -> Vec<(String, String)> {
    relevant(answer.headers.iter().cloned(), without_length)
}

fn relevant(headers: impl Iterator<Item = (String, String)>, without_length: bool) -> Vec<(String, String)> {
    let mut all: Vec<_> =
        headers.filter(|(name, _)| name != "date" && !(without_length && name == "content-length")).collect();
    all.sort();
    all
}

fn ids(exchanges: &[Exchange]) -> BTreeSet<String> {
    exchanges.iter().filter_map(|exchange| Some(exchange.server_id()?.to_owned())).collect()
}

async fn replay_all(server: &MockServer, exchanges: &[Exchange]) {
    let ids = ids(exchanges);
    for exchange in exchanges {
        replay(server, exchange, &ids).await;
    }
}

/// Replays a capture whose stream was open in the background from its first command on.
async fn replay_with_stream(name: &str, stream: &str) {
    let server = server().await;
    let exchanges = read(name);
    let (first, rest) = exchanges.split_first().unwrap();
    replay(&server, first, &ids(&exchanges)).await;
    let stream = read(stream).remove(0);
    let none = BTreeSet::new();
    tokio::join!(replay(&server, &stream, &none), replay_all(&server, rest));
}

#[tokio::test]
async fn requests_and_their_streams_agree_with_the_captures() {
    let server = server().await;
    replay_all(&server, &read("04-acp-basic")).await;
    replay_all(&server, &read("05-sse")).await;
}

#[tokio::test]
async fn a_crash_during_a_request_agrees_with_the_capture() {
    replay_with_stream("06-crash-mid-request", "06-crash-mid-request-sse").await;
}

#[tokio::test]
async fn a_silent_agent_agrees_with_the_capture() {
    replay_all(&server().await, &read("07-timeout-live-agent")).await;
}

#[tokio::test]
async fn a_delete_of_a_live_agent_agrees_with_the_capture() {
    replay_with_stream("08-delete-live", "08-delete-live-sse").await;
}

#[tokio::test]
async fn a_crash_while_idle_agrees_with_the_capture() {
    replay_with_stream("09-crash-idle", "09-crash-idle-sse").await;
}

#[tokio::test]
async fn garbage_and_doubled_answers_agree_with_the_capture() {
    replay_all(&server().await, &read("10-invalid-stdout")).await;
}

#[tokio::test]
async fn an_agent_request_agrees_with_the_capture() {
    let server = server().await;
    let exchanges = read("11-agent-request");
    let (first, rest) = exchanges.split_first().unwrap();
    let none = BTreeSet::new();
    replay(&server, first, &none).await;
    let stream = read("11-agent-request-sse").remove(0);
    let prompt = read("11-agent-request-prompt-post").remove(0);
    let answers = async {
        let mut events = Client::at(format!("{}/v1/acp/p1", server.url())).stream(None).await;
        events.until(|message| message["method"] == "session/request_permission").await;
        replay_all(&server, rest).await;
    };
    tokio::join!(replay(&server, &stream, &none), replay(&server, &prompt, &none), answers);
}

#[tokio::test]
async fn colliding_ids_agree_with_the_capture() {
    let server = server().await;
    let exchanges = read("13-id-collision");
    let (first, rest) = exchanges.split_first().unwrap();
    let none = BTreeSet::new();
    replay(&server, first, &none).await;
    let first = read("13-id-collision-first").remove(0);
    let second = async {
        assert!(server.wait_for(|requests| requests.len() == 2, SOON).await);
        replay_all(&server, rest).await;
    };
    tokio::join!(replay(&server, &first, &none), second);
}

#[tokio::test]
async fn odd_ids_heads_and_paths_agree_with_the_captures() {
    let server = server().await;
    let kept = |exchange: &Exchange| {
        let target = exchange.target.as_str();
        exchange.method == "HEAD"
            || exchange.method == "OPTIONS"
            || target == "/v1/acp/"
            || target.contains("%2F")
            || target.contains("/y1")
    };
    let exchanges: Vec<_> = read("23-misc").into_iter().filter(kept).collect();
    assert_eq!(exchanges.len(), 6);
    replay_all(&server, &exchanges).await;
}

#[tokio::test]
async fn authentication_agrees_with_the_captures() {
    let server = MockServer::builder().agent("mock", CapturedAgent::default()).token("sekret").start().await;
    // Processes, desktop and the other protocol are not served.
    let served = |exchange: &Exchange| {
        !["/v1/processes", "/v1/desktop", "/opencode"].iter().any(|path| exchange.target.starts_with(path))
    };
    let exchanges: Vec<_> = read("03-auth").into_iter().filter(served).collect();
    assert_eq!(exchanges.len(), 9);
    replay_all(&server, &exchanges).await;
}
