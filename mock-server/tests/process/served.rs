//! Crashes of a real process, as seen by a client of the server.

use std::time::Duration;

use futures::StreamExt;
use mock_server::{MockServer, ProcessAgent};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use serde_json::{Value, json};

use crate::probe::{group_is_gone, group_members, memory, pid_of, stub};

/// The timeout of one step, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A server with the stub agent, and a client for it.
struct Client {
    server: MockServer,
    http: reqwest::Client,
}

impl Client {
    async fn start(args: &[&str]) -> Self {
        Self::with(stub(args)).await
    }

    async fn with(agent: ProcessAgent) -> Self {
        let server = MockServer::builder().agent("stub", agent).start().await;
        let http = crate::http_client::builder().timeout(LIMIT).build().unwrap();
        Self { server, http }
    }

    async fn call(&self, id: &str, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        let post =
            self.http.post(format!("{}/v1/rpc", self.server.url())).header(CONTENT_TYPE, "application/json");
        let answer = post.body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{method}");
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
    }

    /// Performs the handshake and creates a session.
    async fn session(&self) -> String {
        self.initialize().await;
        self.new_session("new").await
    }

    async fn initialize(&self) -> Value {
        let meta = json!({ "sandboxagent.dev": { "agent": "stub" } });
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {}, "_meta": meta });
        self.call("init", "initialize", params).await
    }

    async fn new_session(&self, id: &str) -> String {
        let meta = json!({ "sandboxagent.dev": { "agent": "stub" } });
        let created =
            self.call(id, "session/new", json!({ "cwd": "/", "mcpServers": [], "_meta": meta })).await;
        created["result"]["sessionId"].as_str().unwrap().to_owned()
    }

    async fn prompt(&self, id: &str, session: &str, text: &str) -> Value {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.call(id, "session/prompt", json!({ "sessionId": session, "prompt": prompt })).await
    }

    /// Returns all published messages up to and including the first one that `last` accepts.
    async fn published(&self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let get = self.http.get(format!("{}/v1/rpc", self.server.url())).header(ACCEPT, "text/event-stream");
        let mut stream = get.send().await.unwrap().bytes_stream();
        let mut bytes = Vec::new();
        loop {
            bytes.extend_from_slice(&stream.next().await.expect("another event").unwrap());
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            let text = String::from_utf8_lossy(&bytes[..whole]);
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            let messages: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
            if let Some(end) = messages.iter().position(&last) {
                return messages[..=end].to_vec();
            }
        }
    }

    async fn ended(&self, session: &str) -> Value {
        let messages = self.published(|message| message["params"]["session_id"] == session).await;
        messages.last().unwrap()["params"]["data"].clone()
    }
}

fn numbered(lines: std::ops::RangeInclusive<u64>) -> String {
    lines.map(|number| format!("stderr line {number}")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn the_end_of_a_session_is_exact_for_every_kind_of_exit() {
    let table = [
        ("exit 0", json!({ "reason": "completed", "terminated_by": "agent" })),
        ("stderr 5; exit 0", json!({ "reason": "completed", "terminated_by": "agent" })),
        (
            "exit 3",
            json!({
                "reason": "error", "terminated_by": "agent", "exit_code": 3,
                "message": "agent exited with status ExitStatus(unix_wait_status(768))",
            }),
        ),
        (
            "stderr 2; exit 1",
            json!({
                "reason": "error", "terminated_by": "agent", "exit_code": 1,
                "message": "agent exited with status ExitStatus(unix_wait_status(256))",
                "stderr": { "head": numbered(1..=2), "truncated": false, "total_lines": 2 },
            }),
        ),
        (
            "stderr 101; signal KILL",
            json!({
                "reason": "error", "terminated_by": "agent", "signal": "SIGKILL",
                "message": "agent exited with status ExitStatus(unix_wait_status(9))",
                "stderr": {
                    "head": numbered(1..=50), "tail": numbered(52..=101), "truncated": true, "total_lines": 101,
                },
            }),
        ),
    ];
    for (steps, expected) in table {
        let client = Client::start(&[]).await;
        let session = client.session().await;
        let answer = client.prompt("turn", &session, steps).await;
        assert_eq!(answer["error"]["code"], -32000, "{steps}: {answer}");
        assert_eq!(client.ended(&session).await, expected, "{steps}");
    }
}

#[tokio::test]
async fn ten_million_lines_of_stderr_do_not_cost_memory() {
    const TOTAL: u64 = 10_000_000;
    let client = Client::start(&[]).await;
    let session = client.session().await;
    let before = memory("VmHWM");
    client.prompt("turn", &session, &format!("stderr {TOTAL}; exit 1")).await;
    // The kernel reports the peak only approximately, so it may seem to shrink.
    let growth = memory("VmHWM").saturating_sub(before);
    let (head, tail) = (numbered(1..=50), numbered(TOTAL - 49..=TOTAL));
    let expected = json!({ "head": head, "tail": tail, "truncated": true, "total_lines": TOTAL });
    assert_eq!(client.ended(&session).await["stderr"], expected);
    // The process wrote almost 200 MB. The bound is generous because other tests run in this process.
    assert!(growth < 100 * 1024, "grew by {growth} KiB");
}

#[tokio::test]
async fn invalid_utf8_and_lines_of_a_mebibyte_on_stderr_are_in_the_termination() {
    let client = Client::start(&[]).await;
    let session = client.session().await;
    client.prompt("turn", &session, "stderr 1 invalid; stderr 120 bytes 1048576; signal KILL").await;
    let ended = client.ended(&session).await;
    assert_eq!((&ended["reason"], &ended["signal"]), (&json!("error"), &json!("SIGKILL")));
    assert_eq!((&ended["stderr"]["total_lines"], &ended["stderr"]["truncated"]), (&json!(121), &json!(true)));
    let head = ended["stderr"]["head"].as_str().unwrap();
    let tail = ended["stderr"]["tail"].as_str().unwrap();
    assert!(head.starts_with("stderr line 1 \u{fffd}\u{fffd}\n"), "{}", &head[..40]);
    assert_eq!((head.lines().count(), tail.lines().count()), (50, 50));
    assert!(tail.lines().all(|line| line.len() < 16 * 1024 && line.ends_with(" more bytes)")));
}

#[tokio::test]
async fn the_end_is_reported_once_per_session_before_the_prompts_error() {
    let client = Client::start(&[]).await;
    let first = client.session().await;
    let second = client.new_session("second").await;
    let crash = async {
        client.published(|message| message["method"] == "session/request_permission").await;
        client.prompt("crash", &second, "exit 9").await
    };
    let (answer, _) = tokio::join!(client.prompt("turn", &first, "updates 3; permission"), crash);
    assert_eq!(answer["error"]["data"]["terminationInfo"]["exitCode"], 9);
    let messages = client.published(|message| message["id"] == "turn").await;
    let ended: Vec<&Value> =
        messages.iter().filter(|message| message["method"] == "_sandboxagent/session/ended").collect();
    let mut sessions: Vec<&str> =
        ended.iter().map(|message| message["params"]["session_id"].as_str().unwrap()).collect();
    sessions.sort_unstable();
    let mut expected = [first.as_str(), second.as_str()];
    expected.sort_unstable();
    assert_eq!(sessions, expected);
}

#[tokio::test]
async fn a_crash_before_the_handshake_fails_the_handshake() {
    let client = Client::start(&["--on", "initialize", "stderr 2; exit 4"]).await;
    let answer = client.initialize().await;
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
}

#[tokio::test]
async fn a_crashed_agent_is_restarted_when_its_session_is_loaded() {
    let client = Client::start(&[]).await;
    let session = client.session().await;
    client.prompt("crash", &session, "signal SEGV").await;
    let refused = client.prompt("early", &session, "say hello").await;
    assert_eq!(refused["error"]["message"], "session already ended");
    let load = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    client.call("load", "session/load", load).await;
    let answer = client.prompt("late", &session, "say hello").await;
    assert_eq!(answer["result"]["stopReason"], "end_turn");
}

#[tokio::test]
async fn lines_that_are_not_json_are_published_as_unparsed() {
    let client = Client::start(&[]).await;
    let session = client.session().await;
    client.prompt("turn", &session, "garbage").await;
    let messages = client.published(|message| message["id"] == "turn").await;
    let unparsed: Vec<&str> = messages
        .iter()
        .filter(|message| message["method"] == "_sandboxagent/agent/unparsed")
        .map(|message| message["params"]["raw"].as_str().unwrap())
        .collect();
    assert_eq!(unparsed, ["this is not json", "{\"half\":"]);
    assert!(messages.contains(&json!(42)) && messages.contains(&json!([1, 2])), "other JSON passes");
}

#[tokio::test]
async fn stubborn_agents_end_with_their_server() {
    let client = Client::start(&["--ignore-eof", "--ignore-sigterm"]).await;
    let session = client.session().await;
    drop(client);
    group_is_gone(pid_of(&session)).await;
}

#[tokio::test]
async fn after_a_shutdown_no_agent_is_running_however_stubborn() {
    for arguments in [&[][..], &["--ignore-eof"], &["--ignore-eof", "--ignore-sigterm"]] {
        let client = Client::start(arguments).await;
        let group = pid_of(&client.session().await);
        client.server.shutdown().await;
        assert_eq!(group_members(group), Vec::<u32>::new(), "{arguments:?}");
    }
}

#[tokio::test]
async fn an_agent_that_ends_with_its_input_is_not_signalled_at_a_shutdown() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let script = r#"
        trap 'echo signalled >> "$0"; exit' TERM
        while read -r line; do
            id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\).*/\1/p')
            printf '{"jsonrpc":"2.0","id":%s,"result":{}}\n' "$id"
        done
        sleep 0.3
        echo finished >> "$0"
    "#;
    let agent = ProcessAgent::new("sh").args(["-c", script]).arg(&record);
    let client = Client::with(agent).await;
    client.initialize().await;
    client.server.shutdown().await;
    assert_eq!(std::fs::read_to_string(record).unwrap(), "finished\n");
}

#[tokio::test]
async fn a_stubborn_agent_ends_although_the_client_gives_up_its_delete() {
    let agent = stub(&["--ignore-eof", "--ignore-sigterm"]);
    let server = MockServer::builder().agent("stub", agent).released_quirks(false).start().await;
    let http = crate::http_client::builder().timeout(LIMIT).build().unwrap();
    let url = format!("{}/v1/acp/one", server.url());
    let new = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {} }).to_string();
    let post = http.post(format!("{url}?agent=stub")).header(CONTENT_TYPE, "application/json").body(new);
    let created: Value = serde_json::from_slice(&post.send().await.unwrap().bytes().await.unwrap()).unwrap();
    let group = pid_of(created["result"]["sessionId"].as_str().unwrap());
    let given_up = http.delete(&url).timeout(Duration::from_millis(100)).send().await;
    assert!(given_up.unwrap_err().is_timeout());
    group_is_gone(group).await;
}

#[tokio::test]
async fn a_real_agent_is_in_the_catalogue() {
    let client = Client::start(&[]).await;
    let url = format!("{}/v1/agents/stub", client.server.url());
    let answer = client.http.get(url).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let info: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!((&info["id"], &info["installed"]), (&json!("stub"), &json!(true)));
}
