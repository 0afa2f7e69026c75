//! Sends captured requests and compares the responses.

use std::collections::BTreeSet;

use futures::StreamExt;
use mock_server::MockServer;
use serde_json::{Value, json};

use crate::attachment::attachment;
use crate::capture::{Answer, Exchange};
use crate::captured_agent::SECOND;
use crate::client::SOON;

/// Sends one captured request. `None` if no response arrives within the captured timeout, scaled to the speed of
/// the agent.
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
    let timeout = match (&exchange.answer, exchange.timeout) {
        (None, Some(seconds)) => SECOND.mul_f64(seconds),
        _ => SOON,
    };
    tokio::time::timeout(timeout, request.send()).await.ok().map(Result::unwrap)
}

/// Sends one captured request and compares the response with the captured one.
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
    // Paths were replaced in the captured body but not in its content length.
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

/// Reads as much of a stream as the capture has, or all of it if it ended.
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

/// Replaces captured paths by those of the mock: the agents' directory, and the home directory, which is the root.
fn placed(text: &str) -> String {
    let text = text.replace("/srv/test/data3/", "/srv/test/data/");
    text.replace("/srv/test/data/sandbox-agent/", "/opt/sandbox-agent/").replace("/srv/test/data/home/", "/")
}

/// Normalises JSON that differs from run to run: times, directory sizes and entry order, servers of other captures.
/// `None` if the text contains nothing of that kind.
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

/// Replaces process ids, sequence numbers and times by zero. Returns whether there were any.
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

/// Removes the times from log events.
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

/// Replaces the time of an entry by a placeholder of the same format.
fn normalise_entry(entry: &mut Value) {
    let modified = entry["modified"].as_str().unwrap_or_default();
    entry["modified"] = modified.replace(|char: char| char.is_ascii_digit(), "0").into();
    if entry["entryType"] == "directory" {
        entry["size"] = json!(0);
    }
}

/// Returns the headers to compare: all except the date, and the length only if the body is compared unchanged.
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
