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

use acp_http_client::{
    AcpHttpClient, ConnectionState, Dialect, Event, http_client_builder, schema::v1::SessionNotification,
};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::SseStream;

const UPDATES: usize = 20_000;
const CALLS: usize = 3_000;
const ROUNDS: usize = 15;
/// How many echoes may wait to be read by the bare loop.
const ECHOES: usize = 16;

/// One side of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    BareUpdates,
    RpcUpdates,
    AutoUpdates,
    /// Posts, and does not open the stream.
    BareCalls,
    /// Posts while a task reads and parses the events of the stream.
    BareStreamCalls,
    RpcCalls,
    /// As `BareStreamCalls`, and each call waits for its echo.
    BareOrderedCalls,
    RpcOrderedCalls,
    /// As `BareCalls` and `RpcCalls`, with a server that sends no echoes.
    BareSilentCalls,
    RpcSilentCalls,
}

type Labelled = (&'static str, Side);

/// Measures sides against floors.
struct Comparison {
    name: &'static str,
    floors: &'static [Labelled],
    sides: &'static [Labelled],
    /// How many updates or calls a round has.
    count: usize,
}

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        name: "updates",
        floors: &[("bare loop", Side::BareUpdates)],
        sides: &[("Dialect::RPC", Side::RpcUpdates), ("Dialect::AUTO", Side::AutoUpdates)],
        count: UPDATES,
    },
    Comparison {
        name: "unary",
        floors: &[
            ("bare loop that reads the stream", Side::BareStreamCalls),
            ("bare loop that only posts", Side::BareCalls),
        ],
        sides: &[("Dialect::RPC", Side::RpcCalls)],
        count: CALLS,
    },
    Comparison {
        name: "ordered",
        floors: &[("bare loop that waits for the echo", Side::BareOrderedCalls)],
        sides: &[("Dialect::RPC", Side::RpcOrderedCalls)],
        count: CALLS,
    },
    Comparison {
        name: "silent",
        floors: &[("bare loop that only posts", Side::BareSilentCalls)],
        sides: &[("Dialect::RPC", Side::RpcSilentCalls)],
        count: CALLS,
    },
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
        let mut known = COMPARISONS.iter().flat_map(Comparison::all).map(|(_, side)| side);
        let side = known.find(|known| format!("{known:?}") == *side).unwrap();
        return runtime.block_on(async {
            for _ in 0..rounds.parse().unwrap() {
                run(side, url).await;
            }
        });
    }
    let url = server::start(UPDATES, &server::chunk("some words "));
    let wanted = |name: &str| arguments.iter().all(|argument| argument == "instructions" || argument == name);
    for comparison in COMPARISONS.iter().filter(|comparison| wanted(comparison.name)) {
        if arguments.iter().any(|argument| argument == "instructions") {
            let each = |side: Side| {
                // What setting up costs is in both.
                let (one, three) = (instructions(side, &url, 1), instructions(side, &url, 3));
                (three - one) as f64 / (2 * comparison.count) as f64
            };
            let costs: Vec<_> = comparison.all().map(|(_, side)| each(side)).collect();
            comparison.print("instructions", &costs);
        } else {
            runtime.block_on(compare(comparison, &url));
        }
    }
}

impl Comparison {
    /// The floors, and then the sides.
    fn all(&self) -> impl Iterator<Item = Labelled> {
        self.floors.iter().chain(self.sides).copied()
    }

    /// Prints how much of each floor's rate each side reaches; `costs` are in the order of `all`.
    fn print(&self, unit: &str, costs: &[f64]) {
        let (floors, sides) = costs.split_at(self.floors.len());
        for ((label, _), ours) in self.sides.iter().zip(sides) {
            for ((floor, _), bare) in self.floors.iter().zip(floors) {
                let (name, ratio) = (self.name, 100.0 * bare / ours);
                println!("{name}, {label}: {ours:.2} {unit} each, {floor} {bare:.2}, ratio {ratio:.0} %");
            }
        }
    }
}

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

/// Runs all sides in turn, round by round, and prints their medians.
async fn compare(comparison: &Comparison, url: &str) {
    let mut times: Vec<Vec<Time>> = comparison.all().map(|_| Vec::new()).collect();
    for round in 0..ROUNDS + 2 {
        for ((_, side), times) in comparison.all().zip(&mut times) {
            let time = run(side, url).await;
            // The first rounds warm up.
            if round >= 2 {
                times.push(time);
            }
        }
    }
    let median = |times: &[Time], clock: fn(&Time) -> Duration| {
        let mut times: Vec<_> = times.iter().map(clock).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e6 / comparison.count as f64
    };
    let wall: Vec<_> = times.iter().map(|times| median(times, |time| time.wall)).collect();
    comparison.print("µs by the clock", &wall);
    let busy: Vec<_> = times.iter().map(|times| median(times, |time| time.busy)).collect();
    comparison.print("µs of processor time", &busy);
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
        Side::BareSilentCalls => bare_calls(&server::silent(url)).await,
        Side::BareStreamCalls => bare_stream_calls(url, false).await,
        Side::BareOrderedCalls => bare_stream_calls(url, true).await,
        Side::RpcCalls => our_calls(url, false).await,
        Side::RpcSilentCalls => our_calls(&server::silent(url), false).await,
        Side::RpcOrderedCalls => our_calls(url, true).await,
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

/// The parameters of a call. One that names a session is ordered behind the updates of the session.
fn params(number: usize, ordered: bool) -> Value {
    if ordered { json!({"sessionId": "s-1", "number": number}) } else { json!({"number": number}) }
}

async fn our_calls(url: &str, ordered: bool) -> Time {
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).build().unwrap();
    client.request::<Value>("initialize", &json!({})).await.unwrap();
    while !matches!(client.state(), ConnectionState::Live) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let started = Start::now();
    for number in 0..CALLS {
        let answer: Value = client.request("_bench/echo", &params(number, ordered)).await.unwrap();
        assert!(answer.is_object());
    }
    started.elapsed()
}

/// Posts one call and reads its response.
async fn bare_call(http: &reqwest::Client, endpoint: &str, id: &str, params: Value) {
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "_bench/echo", "params": params});
    let request = http.post(endpoint).header("content-type", "application/json").body(call.to_string());
    let body = request.send().await.unwrap().bytes().await.unwrap();
    let answer: Value = serde_json::from_slice(&body).unwrap();
    assert!(answer["result"].is_object());
}

async fn bare_calls(url: &str) -> Time {
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let started = Start::now();
    for number in 0..CALLS {
        bare_call(&http, &endpoint, &format!("bare-{number}"), params(number, false)).await;
    }
    started.elapsed()
}

/// What a client has to do whose server echoes its responses: it reads and parses every event. With `ordered` each call
/// waits for its echo, as it has to if it must not overtake the updates before its response.
async fn bare_stream_calls(url: &str, ordered: bool) -> Time {
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let response = http.get(&endpoint).header("accept", "text/event-stream").send().await.unwrap();
    let (sender, mut echoes) = tokio::sync::mpsc::channel(ECHOES);
    let reading = tokio::spawn(async move {
        let mut events = SseStream::from_bytes_stream(response.bytes_stream());
        while let Some(Ok(event)) = events.next().await {
            let envelope: Envelope = serde_json::from_str(&event.data.unwrap()).unwrap();
            if let Some(id) = envelope.id.filter(|_| ordered) {
                sender.send(id).await.unwrap();
            }
        }
    });
    let started = Start::now();
    for number in 0..CALLS {
        let id = format!("bare-{number}");
        bare_call(&http, &endpoint, &id, params(number, ordered)).await;
        while ordered && echoes.recv().await.unwrap() != id {}
    }
    let time = started.elapsed();
    reading.abort();
    time
}
