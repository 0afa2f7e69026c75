//! Sends captured requests and compares the answers.

use std::collections::BTreeSet;

use futures::StreamExt;
use mock_server::MockServer;
use serde_json::{Value, json};

use crate::attachment::attachment;
use crate::capture::{Answer, Exchange};
use crate::captured_agent::SECOND;
use crate::client::SOON;

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
        request = request.body(match body.strip_prefix('@') {
            Some(file) => attachment(file),
            None => body.clone().into_bytes(),
        });
    }
    let patience = match (&exchange.answer, exchange.patience) {
        (None, Some(seconds)) => SECOND.mul_f64(seconds),
        _ => SOON,
    };
    tokio::time::timeout(patience, request.send()).await.ok().map(Result::unwrap)
}

/// Sends one captured request and checks that the answer is the captured one.
pub(crate) async fn replay(server: &MockServer, exchange: &Exchange, ids: &BTreeSet<String>) {
    let response = send(server, exchange).await;
    let (response, answer) = match (response, &exchange.answer) {
        (Some(response), Some(answer)) => (response, answer),
        (None, None) => return,
        (response, answer) => panic!("{exchange:?}\nanswered {response:?} instead of {answer:?}"),
    };
    assert_eq!(response.status().as_u16(), answer.status, "{exchange:?}");
    let expected = placed(&answer.body);
    let normal = normalised(&expected, ids);
    // The paths of a capture were rewritten after its lengths were taken.
    let without_length = normal.is_some() || answer.body.contains("/srv/test");
    let seen = headers(response.headers(), without_length);
    assert_eq!(seen, expected_headers(answer, without_length), "{exchange:?}");
    if exchange.is_stream() {
        let body = stream_body(response, exchange, answer).await;
        assert_eq!(without_times(&body), without_times(answer.body.trim_end_matches('\n')), "{exchange:?}");
        return;
    }
    let body = response.text().await.unwrap();
    match normal {
        Some(expected) => assert_eq!(normalised(&body, ids), Some(expected), "{exchange:?}"),
        None => assert_eq!(body, expected.trim_end_matches('\n'), "{exchange:?}"),
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

/// A captured text with the places of the mock: its binaries, and its home, which is the root.
fn placed(text: &str) -> String {
    let text = text.replace("/srv/test/data3/", "/srv/test/data/");
    text.replace("/srv/test/data/sandbox-agent/", "/opt/sandbox-agent/").replace("/srv/test/data/home/", "/")
}

/// JSON without what differs from run to run: times, the sizes of directories, the order of their entries,
/// and servers of other captures. None when the text has nothing of the kind.
fn normalised(text: &str, ids: &BTreeSet<String>) -> Option<Value> {
    let mut value: Value = serde_json::from_str(text.trim()).ok()?;
    if let Some(servers) = value.get_mut("servers").and_then(Value::as_array_mut) {
        servers.retain(|server| ids.contains(server["serverId"].as_str().unwrap_or_default()));
        for server in servers {
            server["createdAtMs"] = json!(0);
        }
        return Some(value);
    }
    if let Some(entries) = value.as_array_mut() {
        entries.iter_mut().for_each(normalise_entry);
        entries.sort_by_key(|entry| entry["name"].to_string());
        return Some(value);
    }
    if value.get("modified").is_some() {
        normalise_entry(&mut value);
        return Some(value);
    }
    if normalise_process(&mut value) {
        return Some(value);
    }
    let uptime = value.pointer_mut("/serverStatus/uptimeMs")?;
    *uptime = json!(0);
    Some(value)
}

/// Replaces the numbers and times of processes, of their logs and of commands by zero. Returns whether there were any.
fn normalise_process(value: &mut Value) -> bool {
    let mut changed = false;
    for name in ["pid", "createdAtMs", "exitedAtMs", "timestampMs", "durationMs"] {
        if let Some(number) = value.get_mut(name) {
            *number = json!(0);
            changed = true;
        }
    }
    for list in ["processes", "entries"] {
        for item in value.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            changed |= normalise_process(item);
        }
    }
    changed
}

/// Events of a log without their times.
fn without_times(events: &str) -> String {
    let lines = events.lines().map(|line| match line.strip_prefix("data: ").map(serde_json::from_str) {
        Some(Ok(mut entry)) => {
            normalise_process(&mut entry);
            format!("data: {entry}")
        }
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Keeps the form of an entry's time and forgets which it was.
fn normalise_entry(entry: &mut Value) {
    let modified = entry["modified"].as_str().unwrap_or_default();
    entry["modified"] = modified.replace(|char: char| char.is_ascii_digit(), "0").into();
    if entry["entryType"] == "directory" {
        entry["size"] = json!(0);
    }
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

pub(crate) fn ids(exchanges: &[Exchange]) -> BTreeSet<String> {
    exchanges.iter().filter_map(|exchange| Some(exchange.server_id()?.to_owned())).collect()
}

pub(crate) async fn replay_all(server: &MockServer, exchanges: &[Exchange]) {
    let ids = ids(exchanges);
    for exchange in exchanges {
        replay(server, exchange, &ids).await;
    }
}
