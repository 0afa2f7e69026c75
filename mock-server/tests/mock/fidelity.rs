//! Replays the captures of the released server and compares the responses.

use std::collections::BTreeSet;
use std::time::Duration;

use mock_server::MockServer;

use crate::capture::{Exchange, read, text};
use crate::captured_agent::CapturedAgent;
use crate::client::{Client, SOON, ids as ids_of, initialize_params, prompt, request};
use crate::replay::{ids, replay, replay_all};

/// The request timeout. It was four seconds when the released server was captured.
const LIMIT: Duration = Duration::from_millis(300);

/// The heartbeat interval. The released server sends a comment after fifteen seconds of silence.
const HEARTBEAT: Duration = Duration::from_millis(15 * 75);

async fn server() -> MockServer {
    MockServer::builder()
        .agent("mock", CapturedAgent::default())
        .request_timeout(LIMIT)
        .heartbeat(HEARTBEAT)
        .start()
        .await
}

/// Replays a capture whose stream was open during all its commands.
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
    let extension: Vec<_> =
        read("23-misc").into_iter().filter(|exchange| exchange.target == "/v1/acp/s1").collect();
    assert_eq!(extension.len(), 1);
    replay_all(&server, &extension).await;
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
async fn a_delete_during_a_prompt_agrees_with_the_capture() {
    let server = server().await;
    let exchanges = read("23-misc");
    let (first, rest) = exchanges.split_first().unwrap();
    let ids = ids(&exchanges[..2]);
    replay(&server, first, &ids).await;
    let prompt = read("23-misc-pending-prompt").remove(0);
    let delete = async {
        assert!(server.wait_for(|requests| requests.len() == 2, SOON).await);
        for exchange in &rest[..2] {
            replay(&server, exchange, &ids).await;
        }
    };
    tokio::join!(replay(&server, &prompt, &ids), delete);
}

#[tokio::test]
async fn a_crash_while_idle_agrees_with_the_capture() {
    replay_with_stream("09-crash-idle", "09-crash-idle-sse").await;
}

#[tokio::test]
async fn garbage_and_duplicate_responses_agree_with_the_capture() {
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
async fn the_replay_buffer_after_a_flood_agrees_with_the_capture() {
    let server = MockServer::builder().agent("mock", CapturedAgent::default()).start().await;
    let first = Client::at(format!("{}/v1/acp/f1?agent=mock", server.url()));
    first.result(request(1, "initialize", initialize_params())).await;
    let client = Client::at(format!("{}/v1/acp/f1", server.url()));
    client.result(prompt(2, "s1", "flood:60000")).await;
    let capture = text("12-flood-ring-lag");
    for (name, seen) in [("w/o Last-Event-ID", None), ("Last-Event-ID 10", Some(10))] {
        let line =
            capture.lines().find(|line| line.starts_with(&format!("late subscriber {name}:"))).unwrap();
        let (_, figures) = line.split_once(": ").unwrap();
        let mut events = client.stream(seen).await;
        let ids = ids_of(&events.until(|message| message["id"] == 2).await);
        assert!(ids.windows(2).all(|pair| pair[1] == pair[0] + 1), "no hole");
        let (start, end) = (ids.first().unwrap(), ids.last().unwrap());
        assert_eq!(format!("received {} first {start} last {end}", ids.len()), figures);
    }
}

#[tokio::test]
async fn colliding_ids_agree_with_the_capture() {
    // In the capture, the client aborted these requests, not the server.
    let server = MockServer::builder().agent("mock", CapturedAgent::default()).start().await;
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
async fn unusual_ids_headers_and_paths_agree_with_the_captures() {
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
