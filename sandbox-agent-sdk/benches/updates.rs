//! Updates over a real socket, on one core: this client beside a bare loop of reqwest and serde, in one run.
//!
//! Prints for each kind of update what one takes on both sides: instructions, counted by callgrind where valgrind is
//! installed, and the best time of interleaved rounds, by the clock and on the processor. Other work on the machine
//! changes the times and not the instructions. With the argument `instructions` only those are counted.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark that cannot continue stops"
)]

#[path = "../../acp-http-client/benches/wire/server.rs"]
mod server;

use std::process::Command;
use std::time::{Duration, Instant};

use acp_http_client::http_client_builder;
use acp_http_client::schema::v1::SessionNotification;
use futures::StreamExt;
use sandbox_agent_sdk::{SandboxAgentClient, ServerKind, UpdateKind};
use serde::Deserialize;
use serde_json::{Value, json};
use sse_stream::SseStream;

/// How many rounds are timed, after two that warm up.
const ROUNDS: usize = 15;
/// How many turns a counted process runs; the difference of the two is free of what starting costs.
const COUNTED: [usize; 2] = [1, 4];

#[derive(Deserialize)]
struct Envelope {
    id: Option<String>,
    params: Option<SessionNotification>,
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let [side, url, count, turns] = &arguments[..] {
        // A separate process, under callgrind.
        let (count, turns) = (count.parse().unwrap(), turns.parse().unwrap());
        runtime.block_on(async { Side::open(side, url).await.run(count, turns).await });
        return;
    }
    let line = "A line of text, as agents write it, with \"quotes\".\n";
    let workloads = [
        ("text, a few words", 20_000, server::chunk("some words ")),
        ("text, 8 MB", 1, server::chunk(&line.repeat((8 << 20) / line.len()))),
        ("tool call", 5_000, tool_call()),
        ("plan", 5_000, plan()),
    ];
    for (name, count, update) in workloads {
        let url = server::start(count, &update);
        if let (Some(ours), Some(bare)) =
            (instructions("ours", &url, count), instructions("bare", &url, count))
        {
            print(name, "instructions", ours, bare);
        }
        if !arguments.iter().any(|argument| argument == "instructions") {
            // Each side has its own server, so that it does not read the updates of the other.
            runtime.block_on(compare(name, [&url, &server::start(count, &update)], count));
        }
    }
}

fn tool_call() -> Value {
    let text = json!({"type": "text", "text": "12 tests passed, 1 failed"});
    json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "call-1", "title": "Run the tests", "kind": "execute",
        "status": "in_progress", "rawInput": {"command": "cargo test", "cwd": "/work"},
        "content": [{"type": "content", "content": text}], "locations": [{"path": "/work/src/main.rs", "line": 7}],
    })
}

fn plan() -> Value {
    let entry =
        |content: &str, status: &str| json!({"content": content, "priority": "medium", "status": status});
    json!({"sessionUpdate": "plan", "entries": [
        entry("Find the failing test", "completed"),
        entry("Correct the parser", "in_progress"),
        entry("Run all tests", "pending"),
    ]})
}

fn print(name: &str, unit: &str, ours: f64, bare: f64) {
    let (times, rate) = (ours / bare, 100.0 * bare / ours);
    println!("{name}: {ours:.1} {unit}, bare loop {bare:.1}: {times:.2} times, {rate:.0} % of its rate");
}

/// How many instructions one update takes, counted by callgrind.
fn instructions(side: &str, url: &str, count: usize) -> Option<f64> {
    let counted = |turns: usize| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(std::env::current_exe().ok()?)
            .args([side, url, &count.to_string(), &turns.to_string()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find_map(|line| line.split_once("Collected : "))?.1.trim().to_owned();
        line.parse::<u64>().ok()
    };
    let [few, many] = COUNTED;
    let difference = counted(many)?.checked_sub(counted(few)?)?;
    Some(difference as f64 / ((many - few) * count) as f64)
}

/// Times both sides in turn.
async fn compare(name: &str, urls: [&str; 2], count: usize) {
    let (mut ours, mut bare) = (Side::open("ours", urls[0]).await, Side::open("bare", urls[1]).await);
    let mut best = [[Duration::MAX; 2]; 2];
    for round in 0..ROUNDS + 2 {
        for (side, best) in [&mut ours, &mut bare].into_iter().zip(&mut best) {
            let (began, busy_before) = (Instant::now(), busy());
            side.run(count, 1).await;
            let times = [began.elapsed(), busy().saturating_sub(busy_before)];
            if round >= 2 {
                best.iter_mut().zip(times).for_each(|(best, time)| *best = time.min(*best));
            }
        }
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    let [ours, bare] = best;
    print(name, "µs by the clock", each(ours[0]), each(bare[0]));
    print(name, "µs on the processor", each(ours[1]), each(bare[1]));
}

/// How long this thread has been on a processor; zero where the system does not say.
fn busy() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// A connection of one side.
enum Side {
    Ours(SandboxAgentClient),
    Bare(Bare),
}

impl Side {
    async fn open(side: &str, url: &str) -> Self {
        if side == "bare" {
            return Self::Bare(Bare::open(url).await);
        }
        let options = SandboxAgentClient::builder(url).agent("bench").server(ServerKind::Shared);
        let client = options.auto_authenticate(false).auto_connect(false).build().unwrap();
        client.connect().await.unwrap();
        Self::Ours(client)
    }

    /// Runs turns of so many updates.
    async fn run(&mut self, count: usize, turns: usize) {
        for _ in 0..turns {
            match self {
                Self::Ours(client) => our_turn(client, count).await,
                Self::Bare(bare) => bare.turn(count).await,
            }
        }
    }
}

async fn our_turn(client: &SandboxAgentClient, count: usize) {
    let mut turn = client.session("s-1").prompt("go");
    let mut seen = 0;
    while let Some(update) = turn.next().await {
        let kind = update.kind();
        assert!(matches!(kind, UpdateKind::Message(_) | UpdateKind::ToolCallUpdate(_) | UpdateKind::Plan(_)));
        seen += 1;
    }
    assert_eq!(seen, count);
    turn.outcome().await.unwrap();
}

struct Bare {
    http: reqwest::Client,
    endpoint: String,
    events: futures::stream::BoxStream<'static, String>,
    prompts: usize,
}

impl Bare {
    async fn open(url: &str) -> Self {
        let http = http_client_builder().build().unwrap();
        let endpoint = format!("{url}/v1/rpc");
        let response = http.get(&endpoint).header("accept", "text/event-stream").send().await.unwrap();
        let events = SseStream::from_bytes_stream(response.bytes_stream());
        let events = events.map(|event| event.unwrap().data.unwrap()).boxed();
        Self { http, endpoint, events, prompts: 0 }
    }

    async fn turn(&mut self, count: usize) {
        self.prompts += 1;
        let id = format!("bare-{}-{}", std::process::id(), self.prompts);
        let prompt =
            json!({"jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": {"sessionId": "s-1"}});
        let turn = tokio::spawn(self.http.post(&self.endpoint).body(prompt.to_string()).send());
        let mut seen = 0;
        loop {
            let data = self.events.next().await.unwrap();
            let envelope: Envelope = serde_json::from_str(&data).unwrap();
            match (envelope.params, envelope.id) {
                (Some(_), _) => seen += 1,
                (None, Some(answered)) if answered == id => break,
                _ => {}
            }
        }
        assert_eq!(seen, count);
        let answer = turn.await.unwrap().unwrap().bytes().await.unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap();
    }
}
