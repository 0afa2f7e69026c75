//! Load test with many open streams and many prompts. It checks every response and every update.
//!
//! `soak [STREAMS] [PROMPTS]` opens STREAMS connections with a stream each (1,000 by default), sends PROMPTS
//! prompts over them as fast as possible (10,000 by default), and prints the results. It exits with 1 if an
//! event was lost, duplicated or out of order.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mock_server::{MockServer, Script, Step};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const HEADER: &str = "x-acp-connection-id";

/// How many updates each prompt streams before its response.
const UPDATES: usize = 3;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let (streams, prompts) = match (numbers.next().unwrap_or(Ok(1_000)), numbers.next().unwrap_or(Ok(10_000)))
    {
        (Ok(streams), Ok(prompts)) if streams > 0 => (streams, prompts),
        _ => {
            eprintln!("soak: usage: soak [STREAMS] [PROMPTS]");
            return ExitCode::from(2);
        }
    };
    match soak(streams, prompts).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn soak(streams: usize, prompts: usize) -> Result<(), Failure> {
    let script = Script::new(|turn| vec![Step::Say(turn.text.clone()); UPDATES]);
    let server =
        MockServer::builder().agent("mock", script).connection_ids(Some(HEADER)).record(0).start().await;
    let server = Arc::new(server);
    let opened = Instant::now();
    let mut peers = JoinSet::new();
    let ready = Arc::new(tokio::sync::Barrier::new(streams + 1));
    for number in 0..streams {
        let share = prompts / streams + usize::from(number < prompts % streams);
        peers.spawn(peer(Arc::clone(&server), share, Arc::clone(&ready)));
    }
    tokio::select! {
        _ = ready.wait() => {}
        // No peer completes before all are ready, so this one failed.
        Some(failed) = peers.join_next() => return failed?.map(drop),
    }
    println!("{streams} streams open after {:.2} s", opened.elapsed().as_secs_f64());
    let (started, open) = (Instant::now(), server.open_streams());
    let mut slowest = Duration::ZERO;
    let mut events = 0;
    while let Some(done) = peers.join_next().await {
        let report = done??;
        slowest = slowest.max(report.slowest);
        events += report.events;
    }
    let took = started.elapsed();
    let per_minute = prompts as f64 / took.as_secs_f64() * 60.0;
    println!("{open} streams were open at once");
    println!(
        "{prompts} prompts in {:.2} s: {per_minute:.0} a minute, slowest {slowest:.0?}",
        took.as_secs_f64()
    );
    println!("{events} events, none lost and none duplicated");
    println!("resident memory {}", resident().unwrap_or_else(|| "unknown".to_owned()));
    Ok(())
}

struct Report {
    slowest: Duration,
    events: usize,
}

/// One client: initialises, creates a session, opens its stream, and sends prompts.
async fn peer(
    server: Arc<MockServer>,
    prompts: usize,
    ready: Arc<tokio::sync::Barrier>,
) -> Result<Report, Failure> {
    let mut posts = Wire::connect(&server).await?;
    let meta = json!({ "sandboxagent.dev": { "agent": "mock" } });
    let params = json!({ "protocolVersion": 1, "clientCapabilities": {}, "_meta": meta });
    let (connection, _) = posts.post(None, &request(json!(0), "initialize", params)).await?;
    let connection = connection.ok_or("no connection id")?;
    let params = json!({ "cwd": "/", "mcpServers": [], "_meta": meta });
    let (_, new) = posts.post(Some(&connection), &request(json!(1), "session/new", params)).await?;
    let session = new.pointer("/result/sessionId").cloned().ok_or("no session")?;
    let mut stream = Wire::connect(&server).await?;
    stream.open(&connection).await?;
    stream.events(2, 1).await?;
    ready.wait().await;
    let mut report = Report { slowest: Duration::ZERO, events: 2 };
    for number in 0..prompts {
        let blocks = json!([{ "type": "text", "text": "word" }]);
        let params = json!({ "sessionId": session, "prompt": blocks });
        let asked = Instant::now();
        let (_, answer) =
            posts.post(Some(&connection), &request(json!(number + 2), "session/prompt", params)).await?;
        if answer.pointer("/result/stopReason") != Some(&json!("end_turn")) {
            return Err(format!("prompt {number} failed: {answer}").into());
        }
        report.slowest = report.slowest.max(asked.elapsed());
        stream.events(UPDATES + 1, report.events + 1).await?;
        report.events += UPDATES + 1;
    }
    Ok(report)
}

fn request(id: Value, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// A minimal HTTP/1.1 connection.
struct Wire {
    socket: BufReader<TcpStream>,
}

impl Wire {
    async fn connect(server: &MockServer) -> Result<Self, Failure> {
        Ok(Self { socket: BufReader::new(TcpStream::connect(server.address()).await?) })
    }

    /// Sends one message. Returns the connection id and the body of the response.
    async fn post(
        &mut self,
        connection: Option<&str>,
        body: &str,
    ) -> Result<(Option<String>, Value), Failure> {
        let id = connection.map(|id| format!("{HEADER}: {id}\r\n")).unwrap_or_default();
        let head = format!(
            "POST /v1/rpc HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{id}\r\n",
            body.len()
        );
        self.socket.write_all(head.as_bytes()).await?;
        self.socket.write_all(body.as_bytes()).await?;
        let headers = self.head().await?;
        let header = |name: &str| {
            let mut all = headers.iter();
            all.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let length = header("content-length").ok_or("no content length")?.parse()?;
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body).await?;
        Ok((header(HEADER), serde_json::from_slice(&body)?))
    }

    async fn open(&mut self, connection: &str) -> Result<(), Failure> {
        let head = format!("GET /v1/rpc HTTP/1.1\r\nhost: soak\r\n{HEADER}: {connection}\r\n\r\n");
        self.socket.write_all(head.as_bytes()).await?;
        self.head().await.map(drop)
    }

    /// Reads the head of a response with status 200, as lower-case lines.
    async fn head(&mut self) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            self.socket.read_line(&mut line).await?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        match lines.first() {
            Some(status) if status.starts_with("http/1.1 200") => Ok(lines),
            other => Err(format!("not 200 but {other:?}").into()),
        }
    }

    /// Reads `count` events, whose ids must increase by one from `first`.
    async fn events(&mut self, count: usize, first: usize) -> Result<(), Failure> {
        let mut expected = first;
        let mut line = String::new();
        while expected < first + count {
            line.clear();
            if self.socket.read_line(&mut line).await? == 0 {
                return Err("the stream ended".into());
            }
            if let Some(id) = line.trim_end().strip_prefix("id: ") {
                if id.parse::<usize>()? != expected {
                    return Err(format!("received event {id}, expected {expected}").into());
                }
                expected += 1;
            }
        }
        Ok(())
    }
}

/// Returns the resident memory of this process, as reported by Linux.
fn resident() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().to_owned())
}
