//! Observes one launched process from the server's side.

use std::{
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mock_server::{Agent, Exit, Outlet, Output, ProcessAgent, Running, Undelivered};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// The timeout of one step of a test, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A running process and all its output.
pub(crate) struct Probe {
    running: Option<Arc<dyn Running>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    outputs: Mutex<Vec<Output>>,
    changed: Notify,
}

/// Returns the stub agent with these arguments.
pub(crate) fn stub(args: &[&str]) -> ProcessAgent {
    ProcessAgent::new(env!("CARGO_BIN_EXE_stub-agent")).args(args)
}

impl Probe {
    pub(crate) async fn launch(agent: &ProcessAgent) -> Self {
        Self::launch_slow(agent, Duration::ZERO).await
    }

    /// Launches an agent behind a server that takes this long to process each line.
    pub(crate) async fn launch_slow(agent: &ProcessAgent, delay: Duration) -> Self {
        let seen = Arc::new(Seen::default());
        let sink = Arc::clone(&seen);
        let outlet = Outlet::new(move |output| {
            let start = Instant::now();
            while start.elapsed() < delay {
                std::hint::spin_loop();
            }
            sink.outputs.lock().unwrap().push(output);
            sink.changed.notify_waiters();
        });
        let running = agent.launch(outlet).await.expect("the agent starts");
        Self { running: Some(running), seen }
    }

    /// Launches the stub agent, performs the handshake and creates a session.
    pub(crate) async fn session(args: &[&str]) -> (Self, String) {
        let probe = Self::launch(&stub(args)).await;
        probe.call(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })).await;
        let created = probe.call(2, "session/new", json!({ "cwd": "/", "mcpServers": [] })).await;
        let session = created["result"]["sessionId"].as_str().expect("a session id").to_owned();
        (probe, session)
    }

    pub(crate) fn running(&self) -> &dyn Running {
        self.running.as_deref().expect("not dropped yet")
    }

    /// Drops the handle of the process, like a server that shuts down.
    pub(crate) fn drop_handle(&mut self) {
        self.running = None;
    }

    pub(crate) async fn send(&self, message: Value) -> Result<(), Undelivered> {
        tokio::time::timeout(LIMIT, self.running().deliver(message)).await.expect("delivered in time")
    }

    /// Sends a request and waits for its response.
    pub(crate) async fn call(&self, id: u64, method: &str, params: Value) -> Value {
        self.request(id, method, params).await;
        self.message(|message| message["id"] == id && message.get("method").is_none()).await
    }

    pub(crate) async fn request(&self, id: u64, method: &str, params: Value) {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.send(request).await.expect("the agent reads its input");
    }

    /// Sends a prompt without waiting for the response.
    pub(crate) async fn prompt(&self, id: u64, session: &str, text: &str) {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request(id, "session/prompt", json!({ "sessionId": session, "prompt": prompt })).await;
    }

    /// Waits for the first message that `fits` accepts.
    pub(crate) async fn message(&self, fits: impl Fn(&Value) -> bool) -> Value {
        self.find(|outputs| outputs.iter().filter_map(parsed).find(|message| fits(message))).await
    }

    pub(crate) async fn exit(&self) -> Exit {
        self.find(|outputs| outputs.iter().find_map(exit_of)).await
    }

    /// Waits until this is the last line of standard error.
    pub(crate) async fn stderr_line(&self, line: &str) {
        let seen = async {
            while self.running().stderr_tail().last().map(String::as_str) != Some(line) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, seen).await.expect("standard error in time");
    }

    /// Returns all lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen.outputs.lock().unwrap().iter().filter_map(line_of).collect()
    }

    /// Returns the number of outputs so far, including the exit.
    pub(crate) fn count(&self) -> usize {
        self.seen.outputs.lock().unwrap().len()
    }

    /// Returns the texts of all updates so far.
    pub(crate) fn texts(&self) -> Vec<String> {
        let lines = self.lines();
        let messages = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        messages.filter_map(|m| Some(m["params"]["update"]["content"]["text"].as_str()?.to_owned())).collect()
    }

    async fn find<T>(&self, look: impl Fn(&[Output]) -> Option<T>) -> T {
        let search = async {
            loop {
                let changed = self.seen.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(found) = look(&self.seen.outputs.lock().unwrap()) {
                    return found;
                }
                changed.await;
            }
        };
        match tokio::time::timeout(LIMIT, search).await {
            Ok(found) => found,
            Err(_) => panic!("not seen in time; lines so far: {:#?}", self.lines()),
        }
    }
}

fn line_of(output: &Output) -> Option<String> {
    match output {
        Output::Line(line) => Some(String::from_utf8_lossy(line).into_owned()),
        _ => None,
    }
}

fn parsed(output: &Output) -> Option<Value> {
    serde_json::from_str(&line_of(output)?).ok()
}

fn exit_of(output: &Output) -> Option<Exit> {
    match output {
        Output::Exited(exit) => Some(exit.clone()),
        _ => None,
    }
}

/// Returns the process id in a session id of the stub agent.
pub(crate) fn pid_of(session: &str) -> u32 {
    session.split('-').nth(1).and_then(|pid| pid.parse().ok()).expect("stub-PID-N")
}

/// Returns the live processes of a process group.
pub(crate) fn group_members(group: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
        // The name is in parentheses and may contain anything. State, parent and group follow it.
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 1..].split_whitespace().collect();
        fields[0] != "Z" && fields[2] == group.to_string()
    })
    .collect()
}

/// Waits until the group has no live process.
pub(crate) async fn group_is_gone(group: u32) {
    let gone = async {
        while !group_members(group).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, gone).await;
    assert!(waited.is_ok(), "still there: {:?}", group_members(group));
}

/// Returns a memory figure of this process in KiB.
pub(crate) fn memory(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
