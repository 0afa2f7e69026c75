//! Over a real socket, on one core: this client beside bare loops of reqwest and serde, in one run.
//!
//! Prints the medians of interleaved rounds and the ratio of the two: by the clock, and by the processor time of the
//! one thread that the client runs on, which other work on the machine hardly touches.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot go on stops"
)]

#[path = "wire/server.rs"]
mod server;

use std::time::{Duration, Instant};

use acp_http_client::{AcpHttpClient, Dialect, Event, http_client_builder, schema::v1::SessionNotification};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::SseStream;

const UPDATES: usize = 20_000;
const CALLS: usize = 3_000;
const ROUNDS: usize = 15;

#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
    params: Option<SessionNotification>,
}

fn main() {
    let url = server::start(UPDATES);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // `cargo bench --bench wire -- updates` or `-- unary` runs one of them.
    let wanted = |name: &str| {
        let mut names = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|argument| argument == name)
    };
    runtime.block_on(async {
        if wanted("updates") {
            report("typed updates over the stream", UPDATES, updates(&url).await);
        }
        if wanted("unary") {
            report("unary calls", CALLS, unary(&url).await);
        }
    });
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

/// How long this thread has been on a processor; nothing where the system does not tell.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Medians of both sides, and how much of the peer's rate this client reaches.
fn report(what: &str, count: usize, (ours, bare): (Vec<Time>, Vec<Time>)) {
    for (clock, pick) in
        [("wall", (|time| time.wall) as fn(&Time) -> Duration), ("processor", |time| time.busy)]
    {
        let each = |times: &[Time]| {
            let mut times: Vec<_> = times.iter().map(pick).collect();
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64() * 1e6 / count as f64
        };
        let (ours, bare) = (each(&ours), each(&bare));
        let ratio = 100.0 * bare / ours;
        println!(
            "{what}, {clock} time: this client {ours:.2} µs each, bare loop {bare:.2} µs each, ratio {ratio:.0} %"
        );
    }
}

async fn updates(url: &str) -> (Vec<Time>, Vec<Time>) {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 2 {
        let times = (our_updates(url).await, bare_updates(url).await);
        // The first rounds warm up.
        if round >= 2 {
            ours.push(times.0);
            bare.push(times.1);
        }
    }
    (ours, bare)
}

async fn our_updates(url: &str) -> Time {
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).build().unwrap();
    client.request::<Value>("initialize", &json!({})).await.unwrap();
    // The stream's first event is the copy of the answer: it is open now.
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

async fn unary(url: &str) -> (Vec<Time>, Vec<Time>) {
    let client = AcpHttpClient::builder(url).dialect(Dialect::RPC).build().unwrap();
    client.request::<Value>("initialize", &json!({})).await.unwrap();
    let http = http_client_builder().build().unwrap();
    let endpoint = format!("{url}/v1/rpc");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + 2 {
        let started = Start::now();
        for number in 0..CALLS {
            let answer: Value = client.request("_bench/echo", &json!({"number": number})).await.unwrap();
            assert!(answer.is_object());
        }
        let first = started.elapsed();
        let started = Start::now();
        for number in 0..CALLS {
            let call = json!({"jsonrpc": "2.0", "id": format!("bare-{number}"), "method": "_bench/echo", "params": {"number": number}});
            let request =
                http.post(&endpoint).header("content-type", "application/json").body(call.to_string());
            let body = request.send().await.unwrap().bytes().await.unwrap();
            let answer: Value = serde_json::from_slice(&body).unwrap();
            assert!(answer["result"].is_object());
        }
        if round >= 2 {
            ours.push(first);
            bare.push(started.elapsed());
        }
    }
    (ours, bare)
}
