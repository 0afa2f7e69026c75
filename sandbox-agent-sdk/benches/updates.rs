//! Updates over a real socket, on one core: this client beside a bare loop of reqwest and serde, in one run.
//!
//! Prints the medians of interleaved rounds, the rate of this client in percent of the bare loop's, and how many
//! instructions an update takes on both sides, counted by callgrind where valgrind is installed.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on stops"
)]

#[path = "../../acp-http-client/benches/wire/server.rs"]
mod server;

use std::process::Command;
use std::time::{Duration, Instant};

use acp_http_client::http_client_builder;
use acp_http_client::schema::v1::SessionNotification;
use futures::StreamExt;
use sandbox_agent_sdk::{SandboxAgentClient, ServerKind};
use serde::Deserialize;
use serde_json::json;
use sse_stream::SseStream;

const UPDATES: usize = 20_000;
const ROUNDS: usize = 7;
/// How many turns a counted process runs; the difference of the two is free of what starting costs.
const COUNTED: [usize; 2] = [1, 3];

#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
    params: Option<SessionNotification>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let [side, url, turns] = &arguments[..] {
        // A process of its own, under callgrind.
        for _ in 0..turns.parse().unwrap() {
            runtime.block_on(async {
                match side.as_str() {
                    "ours" => our_updates(url).await,
                    _ => bare_updates(url).await,
                }
            });
        }
        return;
    }
    let url = server::start(UPDATES);
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 2 {
        let times = runtime.block_on(async { (our_updates(&url).await, bare_updates(&url).await) });
        // The first rounds warm up.
        if round >= 2 {
            ours.push(times.0);
            bare.push(times.1);
        }
    }
    let each = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6 / UPDATES as f64
    };
    let (ours, bare) = (each(&mut ours), each(&mut bare));
    let ratio = 100.0 * bare / ours;
    println!("updates: this client {ours:.2} µs each, bare loop {bare:.2} µs each, rate {ratio:.0} %");
    match (instructions("ours", &url), instructions("bare", &url)) {
        (Some(ours), Some(bare)) => {
            let ratio = ours as f64 / bare as f64;
            println!("instructions: this client {ours} each, bare loop {bare} each, {ratio:.2} times");
        }
        _ => println!("instructions: not counted, valgrind is not installed"),
    }
}

/// How many instructions one update takes, counted by callgrind.
fn instructions(side: &str, url: &str) -> Option<u64> {
    let count = |turns: usize| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args([side, url, &turns.to_string()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find_map(|line| line.split_once("Collected : "))?.1.trim().to_owned();
        line.parse::<u64>().ok()
    };
    let [few, many] = COUNTED;
    let difference = count(many)?.checked_sub(count(few)?)?;
    Some(difference / ((many - few) * UPDATES) as u64)
}

async fn our_updates(url: &str) -> Duration {
    let options = SandboxAgentClient::builder(url).agent("bench").server(ServerKind::Shared);
    let client = options.auto_authenticate(false).auto_connect(false).build().unwrap();
    client.connect().await.unwrap();
    let started = Instant::now();
    let mut turn = client.session("s-1").prompt("go");
    let mut count = 0;
    while let Some(update) = turn.next().await {
        assert!(update.message_text().is_some());
        count += 1;
    }
    assert_eq!(count, UPDATES);
    turn.outcome().await.unwrap();
    started.elapsed()
}

async fn bare_updates(url: &str) -> Duration {
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let response = http.get(&endpoint).header("accept", "text/event-stream").send().await.unwrap();
    let mut events = SseStream::from_bytes_stream(response.bytes_stream());
    let started = Instant::now();
    let prompt =
        json!({"jsonrpc": "2.0", "id": "bare-1", "method": "session/prompt", "params": {"sessionId": "s-1"}});
    let turn = tokio::spawn(http.post(&endpoint).body(prompt.to_string()).send());
    let mut count = 0;
    loop {
        let data = events.next().await.unwrap().unwrap().data.unwrap();
        let envelope: Envelope = serde_json::from_str(&data).unwrap();
        match (envelope.params, envelope.id) {
            (Some(_), _) => count += 1,
            (None, Some(id)) if id == "bare-1" => break,
            _ => {}
        }
    }
    assert_eq!(count, UPDATES);
    turn.await.unwrap().unwrap();
    started.elapsed()
}
