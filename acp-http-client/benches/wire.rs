//! Over a real socket, on one core: this client beside bare loops of reqwest and serde, in one run.
//!
//! Prints the medians of interleaved rounds and the ratio of the two: by the clock, and by the processor time of the
//! one thread that the client runs on, which other work on the machine hardly touches. With the argument
//! `instructions` it counts the instructions of each side under `valgrind --tool=callgrind` instead, which other work
//! does not touch at all.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot continue stops"
)]

#[path = "wire/server.rs"]
mod server;

use std::{
    process::Command,
    time::{Duration, Instant},
};

use acp_http_client::{AcpHttpClient, Dialect, Event, http_client_builder, schema::v1::SessionNotification};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::SseStream;

const UPDATES: usize = 20_000;
const CALLS: usize = 3_000;
const ROUNDS: usize = 15;

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    BareUpdates,
    RpcUpdates,
    AutoUpdates,
    BareCalls,
    RpcCalls,
}

/// A comparison: its name, the bare loop, the sides that are measured against it, and how many things a round is.
type Comparison = (&'static str, Side, &'static [(&'static str, Side)], usize);

const COMPARISONS: [Comparison; 2] = [
    (
        "updates",
        Side::BareUpdates,
        &[("Dialect::RPC", Side::RpcUpdates), ("Dialect::AUTO", Side::AutoUpdates)],
        UPDATES,
    ),
    ("unary", Side::BareCalls, &[("Dialect::RPC", Side::RpcCalls)], CALLS),
];

#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
    params: Option<SessionNotification>,
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let [side, url, rounds] = &arguments[..] {
        let side = SIDES.into_iter().find(|known| format!("{known:?}") == *side).unwrap();
        return runtime.block_on(async {
            for _ in 0..rounds.parse().unwrap() {
                run(side, url).await;
            }
        });
    }
    let url = server::start(UPDATES);
    let wanted = |name: &str| arguments.iter().all(|argument| argument == "instructions" || argument == name);
    for (name, bare, sides, count) in COMPARISONS.iter().filter(|comparison| wanted(comparison.0)) {
        if arguments.iter().any(|argument| argument == "instructions") {
            let each = |side: Side| {
                // What setting up costs is in both.
                let (one, three) = (instructions(side, &url, 1), instructions(side, &url, 3));
                (three - one) as f64 / (2 * count) as f64
            };
            let bare = each(*bare);
            for (label, side) in *sides {
                let ours = each(*side);
                let ratio = 100.0 * bare / ours;
                println!(
                    "{name}, {label}: {ours:.0} instructions each, bare loop {bare:.0}, ratio {ratio:.0} %"
                );
            }
        } else {
            runtime.block_on(compare(name, *bare, sides, *count, &url));
        }
    }
}

const SIDES: [Side; 5] =
    [Side::BareUpdates, Side::RpcUpdates, Side::AutoUpdates, Side::BareCalls, Side::RpcCalls];

/// How many instructions a process takes that runs one side for so many rounds.
fn instructions(side: Side, url: &str, rounds: usize) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args([format!("{side:?}"), url.to_owned(), rounds.to_string()])
        .output()
        .expect("valgrind is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected")).expect("callgrind counts");
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// Runs all sides in turn, and prints how much of the bare loop's rate the others reach.
async fn compare(name: &str, bare: Side, sides: &[(&str, Side)], count: usize, url: &str) {
    let all: Vec<_> = [("bare loop", bare)].into_iter().chain(sides.iter().copied()).collect();
    let mut times: Vec<Vec<Time>> = all.iter().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS + 2 {
        for ((_, side), times) in all.iter().zip(&mut times) {
            let time = run(*side, url).await;
            // The first rounds warm up.
            if round >= 2 {
                times.push(time);
            }
        }
    }
    for (clock, pick) in
        [("wall", (|time| time.wall) as fn(&Time) -> Duration), ("processor", |time| time.busy)]
    {
        let medians = times.iter().map(|times| {
            let mut times: Vec<_> = times.iter().map(pick).collect();
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6 / count as f64
        });
        let medians: Vec<f64> = medians.collect();
        let bare = medians[0];
        for ((label, _), ours) in all.iter().zip(&medians).skip(1) {
            let ratio = 100.0 * bare / ours;
            println!(
                "{name}, {label}, {clock} time: {ours:.2} µs each, bare loop {bare:.2} µs, ratio {ratio:.0} %"
            );
        }
    }
}

/// When something began, by both clocks.
struct Start {
    wall: Instant,
    busy: Duration,
}

/// How long it took.
struct Time {
    wall: Duration,
    busy: Duration,
}

impl Start {
    fn now() -> Self {
        Self { wall: Instant::now(), busy: busy() }
    }

    fn elapsed(&self) -> Time {
        Time { wall: self.wall.elapsed(), busy: busy().saturating_sub(self.busy) }
    }
}

/// How long this thread has been on a processor; zero where the system does not say.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

async fn run(side: Side, url: &str) -> Time {
    match side {
        Side::BareUpdates => bare_updates(url).await,
        Side::RpcUpdates => our_updates(url, Dialect::RPC).await,
        Side::AutoUpdates => our_updates(url, Dialect::AUTO).await,
        Side::BareCalls => bare_calls(url).await,
        Side::RpcCalls => our_calls(url).await,
    }
}

async fn our_updates(url: &str, dialect: Dialect) -> Time {
    let client = AcpHttpClient::builder(url).dialect(dialect).build().unwrap();
    client.request::<Value>("initialize", &json!({})).await.unwrap();
    let mut events = client.events();
    while client.diagnostics().messages == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = Start::now();
    let turn =
        tokio::spawn(client.request::<Value>("session/prompt", &json!({"sessionId": "s-1"})).into_future());
    let mut count = 0;
    while count < UPDATES {
        if let Some(Event::Update(update)) = events.next().await {
            assert!(update.update().is_some());
            count += 1;
        }
    }
    turn.await.unwrap().unwrap();
    started.elapsed()
}

async fn bare_updates(url: &str) -> Time {
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let response = http.get(&endpoint).header("accept", "text/event-stream").send().await.unwrap();
    let mut events = SseStream::from_bytes_stream(response.bytes_stream());
    let started = Start::now();
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
    let answer = turn.await.unwrap().unwrap().bytes().await.unwrap();
    serde_json::from_slice::<Value>(&answer).unwrap();
    started.elapsed()
}

async fn our_calls(url: &str) -> Time {
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).build().unwrap();
    client.request::<Value>("initialize", &json!({})).await.unwrap();
    let started = Start::now();
    for number in 0..CALLS {
        let answer: Value = client.request("_bench/echo", &json!({"number": number})).await.unwrap();
        assert!(answer.is_object());
    }
    started.elapsed()
}

async fn bare_calls(url: &str) -> Time {
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let started = Start::now();
    for number in 0..CALLS {
        let call = json!({"jsonrpc": "2.0", "id": format!("bare-{number}"), "method": "_bench/echo", "params": {"number": number}});
        let request = http.post(&endpoint).header("content-type", "application/json").body(call.to_string());
        let body = request.send().await.unwrap().bytes().await.unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert!(answer["result"].is_object());
    }
    started.elapsed()
}
