//! Files and terminals of a client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use mock_server::{MockServer, Script, Step, Terminal};
use sandbox_agent_sdk::connection::ReconnectPolicy;
use sandbox_agent_sdk::tools::{
    ConfinedFiles, FileAccess, FileError, ReadText, Roots, TerminalOptions, TextFiles, WriteText,
};
use sandbox_agent_sdk::{ClientOptions, ConnectionState, Event, NewSession, SandboxAgentClient, ServerKind};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::looking::{is_listed, running_below, runs};
use super::support::{KINDS, LIMIT, client, event, options, session, within};

fn root(directory: &TempDir) -> Roots {
    Roots::at(directory.path())
}

fn files(directory: &TempDir) -> ConfinedFiles {
    ConfinedFiles::open(root(directory)).unwrap()
}

fn at(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).display().to_string()
}

/// A step that starts a shell command and continues immediately.
fn start(line: &str) -> Step {
    Step::Request {
        method: "terminal/create".into(),
        params: json!({"command": "/bin/sh", "args": ["-c", line]}),
    }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    within(async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits for the process ids that a process and its child have written.
async fn pids(directory: &TempDir) -> Vec<String> {
    let read = || std::fs::read_to_string(directory.path().join("pids")).unwrap_or_default();
    until(|| read().lines().count() == 2).await;
    read().lines().map(str::to_owned).collect()
}

/// Writes the ids of a process and its child into a file, and keeps running.
const LIVE: &str = "sleep 1000 & printf '%s\\n%s\\n' $$ $! > pids; wait";

fn server(steps: Vec<Step>) -> impl Future<Output = MockServer> {
    MockServer::builder().agent("mock", Script::steps(steps)).start()
}

fn with_terminals(options: ClientOptions, directory: &TempDir) -> ClientOptions {
    options.terminals(TerminalOptions::new(root(directory)))
}

#[tokio::test]
async fn only_enabled_tools_are_advertised() {
    let directory = tempfile::tempdir().unwrap();
    let offers = |read: bool, write: bool, terminal: bool| json!({"fs": {"readTextFile": read, "writeTextFile": write}, "terminal": terminal});
    type Setting<'a> = Box<dyn Fn(ClientOptions) -> ClientOptions + 'a>;
    let table: [(Setting<'_>, Value); 4] = [
        (Box::new(|options| options), offers(false, false, false)),
        (Box::new(|options| options.files(files(&directory))), offers(true, true, false)),
        (Box::new(|options| options.files(files(&directory).read_only())), offers(true, false, false)),
        (Box::new(|options| with_terminals(options, &directory)), offers(false, false, true)),
    ];
    for kind in KINDS {
        for (setting, expected) in &table {
            let server = MockServer::start().await;
            let client = setting(options(&server, kind)).build().unwrap();
            session(&client).await;
            let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"];
            for capability in ["fs", "terminal"] {
                assert_eq!(advertised[capability], expected[capability]);
            }
        }
    }
}

#[tokio::test]
async fn disabled_tools_are_method_not_found() {
    let all = [
        ("fs/read_text_file", json!({"path": "/etc/passwd"})),
        ("fs/write_text_file", json!({"path": "/tmp/never", "content": "x"})),
        ("terminal/create", json!({"command": "true"})),
        ("terminal/output", json!({"terminalId": "t"})),
        ("terminal/wait_for_exit", json!({"terminalId": "t"})),
        ("terminal/kill", json!({"terminalId": "t"})),
        ("terminal/release", json!({"terminalId": "t"})),
    ];
    let steps =
        all.iter().map(|(method, params)| Step::Request { method: (*method).into(), params: params.clone() });
    let server = server(steps.collect()).await;
    let session = session(&client(&server, ServerKind::Shared)).await;
    within(session.prompt("go").outcome()).await.unwrap();
    let answers = server.answers();
    assert_eq!(answers.len(), 7);
    assert!(answers.iter().all(|answer| answer.answer["error"]["code"] == -32601), "{answers:?}");
}

#[tokio::test]
async fn an_agent_reads_and_writes_files() {
    for kind in KINDS {
        let directory = tempfile::tempdir().unwrap();
        let path = at(&directory, "deep/f");
        let lines = json!({"path": path, "line": 2, "limit": 1});
        let server = server(vec![
            Step::WriteFile { path: path.clone(), content: "one\r\ntwo\n".into() },
            Step::ReadFile { path: path.clone() },
            Step::Request { method: "fs/read_text_file".into(), params: lines },
            Step::ReadFile { path: "/etc/passwd".into() },
            Step::WriteFile { path: at(&directory, "../escaped"), content: "x".into() },
        ])
        .await;
        let client = options(&server, kind).files(files(&directory)).build().unwrap();
        let session = session(&client).await;
        let text = within(session.prompt("go").text()).await.unwrap();
        assert!(
            text.starts_with("write: doneread: one\r\ntwo\n") && text.ends_with("write: refused"),
            "{text}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\r\ntwo\n");
        let answers = server.answers();
        assert_eq!(answers[2].result(), &json!({"content": "two\n"}));
        assert_eq!(answers[3].answer["error"]["data"]["reason"], "outside");
        assert_eq!(answers[4].answer["error"]["data"]["reason"], "outside");
    }
}

#[tokio::test]
async fn an_agent_runs_a_command_to_completion() {
    for kind in KINDS {
        let directory = tempfile::tempdir().unwrap();
        let line = "printf out; printf err >&2; printf more; exit 9";
        let terminal = Terminal { command: "/bin/sh".into(), args: vec!["-c".into(), line.into()] };
        let server = server(vec![Step::Terminal(terminal)]).await;
        let client = with_terminals(options(&server, kind), &directory).build().unwrap();
        let session = session(&client).await;
        assert_eq!(within(session.prompt("go").text()).await.unwrap(), "terminal: outerrmore");
        let answers = server.answers();
        let status = json!({"exitCode": 9, "signal": null});
        assert_eq!(answers[1].result(), &json!({"exitCode": 9, "signal": null, "exitStatus": status}));
        assert_eq!(
            (&answers[2].result()["exitStatus"], &answers[2].result()["exitCode"]),
            (&status, &json!(9))
        );
        assert_eq!(answers[3].result(), &json!({}), "it was released");
    }
}

#[tokio::test]
async fn a_terminal_belongs_to_its_session_only() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::new(|turn| match turn.text.split_once(' ') {
        Some((method, id)) => {
            vec![Step::Request { method: method.into(), params: json!({"terminalId": id}) }]
        }
        None => vec![start("exec sleep 1000")],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = with_terminals(options(&server, ServerKind::Shared), &directory).build().unwrap();
    let (one, two) = (session(&client).await, session(&client).await);
    within(one.prompt("start").outcome()).await.unwrap();
    let id = server.answers()[0].result()["terminalId"].as_str().unwrap().to_owned();
    for action in ["output", "wait_for_exit", "kill", "release"] {
        within(two.prompt(format!("terminal/{action} {id}")).outcome()).await.unwrap();
        let error = server.answers().last().unwrap().answer["error"].clone();
        assert_eq!((&error["code"], &error["data"]["reason"]), (&json!(-32002), &json!("unknown_terminal")));
    }
    within(one.prompt(format!("terminal/output {id}")).outcome()).await.unwrap();
    assert_eq!(server.answers().last().unwrap().result()["exitStatus"], Value::Null, "it runs");
}

/// Returns a client whose agent has started a process with a child, and the ids of both.
async fn running(
    kind: ServerKind,
    tail: Vec<Step>,
) -> (MockServer, SandboxAgentClient, TempDir, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let mut steps = vec![start(LIVE)];
    steps.extend(tail);
    let server = server(steps).await;
    let policy = ReconnectPolicy::default().base(Duration::from_millis(5)).max_attempts(3);
    let client = with_terminals(options(&server, kind), &directory).reconnect(policy).build().unwrap();
    let session = session(&client).await;
    let mut turn = session.prompt("go");
    let pids = pids(&directory).await;
    assert!(pids.iter().all(|pid| runs(pid)));
    // The turn may end with the agent.
    let _ = within(turn.outcome()).await;
    (server, client, directory, pids)
}

#[tokio::test]
async fn disconnecting_leaves_no_process_behind() {
    for kind in KINDS {
        let (_server, client, _directory, pids) = running(kind, Vec::new()).await;
        assert!(pids.iter().all(|pid| runs(pid)), "the end of a turn ends no process");
        within(client.disconnect()).await.unwrap();
        assert!(!is_listed(&pids[0]), "it is not even a zombie");
        until(|| !pids.iter().any(|pid| runs(pid))).await;
    }
}

#[tokio::test]
async fn dropping_the_client_leaves_no_process_behind() {
    for kind in KINDS {
        let (_server, client, _directory, pids) = running(kind, Vec::new()).await;
        drop(client);
        // The runtime of this test has one thread, so no other task runs before this check.
        let started = std::time::Instant::now();
        while pids.iter().any(|pid| runs(pid)) && started.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        assert!(!pids.iter().any(|pid| runs(pid)));
    }
}

#[tokio::test]
async fn the_end_of_the_session_leaves_no_process_behind() {
    let directory = tempfile::tempdir().unwrap();
    let server = server(vec![start(LIVE)]).await;
    let client = with_terminals(options(&server, ServerKind::Shared), &directory).build().unwrap();
    let session = session(&client).await;
    within(session.prompt("go").outcome()).await.unwrap();
    let pids = pids(&directory).await;
    within(session.terminate()).await.unwrap();
    until(|| !pids.iter().any(|pid| runs(pid))).await;
    assert!(client.state().is_usable());
}

#[tokio::test]
async fn the_death_of_the_agent_leaves_no_process_behind() {
    for kind in KINDS {
        let wait = Step::Wait(Duration::from_millis(300));
        let (_server, client, _directory, pids) = running(kind, vec![wait, Step::crash(3, ["x"])]).await;
        until(|| !pids.iter().any(|pid| runs(pid))).await;
        drop(client);
    }
}

#[tokio::test]
async fn a_lost_connection_leaves_no_process_behind() {
    let (server, client, _directory, pids) = running(ServerKind::Shared, Vec::new()).await;
    let mut events = client.events();
    drop(server);
    let lost = |event| matches!(event, Event::Connection(ConnectionState::Lost(_))).then_some(());
    event(&mut events, lost).await;
    until(|| !pids.iter().any(|pid| runs(pid))).await;
}

#[tokio::test]
async fn a_stream_that_is_lost_for_a_moment_ends_no_command() {
    let (server, client, _directory, pids) = running(ServerKind::Shared, Vec::new()).await;
    let mut events = client.events();
    server.restart(mock_server::State::Preserved).await;
    event(&mut events, |event| matches!(event, Event::Reconnected { .. }).then_some(())).await;
    assert!(pids.iter().all(|pid| runs(pid)));
}

#[tokio::test]
async fn a_cancelled_wait_ends_and_the_command_continues() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::new(|turn| match turn.text.as_str() {
        "start" => vec![start(LIVE)],
        id => vec![
            Step::Request { method: "terminal/wait_for_exit".into(), params: json!({"terminalId": id}) },
            Step::WaitForCancel,
        ],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = with_terminals(options(&server, ServerKind::Shared), &directory).build().unwrap();
    let session = session(&client).await;
    within(session.prompt("start").outcome()).await.unwrap();
    let pids = pids(&directory).await;
    let id = server.answers()[0].result()["terminalId"].as_str().unwrap().to_owned();
    let _turn = session.prompt(id);
    assert!(server.wait_for(|_| server.messages("session/prompt").len() == 2, LIMIT).await);
    // The agent's request arrives before the response to this.
    let _ = within(client.list_models(None)).await;
    within(session.cancel()).await.unwrap();
    assert_eq!(server.answers()[1].answer["error"]["code"], -32800);
    assert!(pids.iter().all(|pid| runs(pid)));
}

#[tokio::test]
async fn a_response_too_large_for_the_server_becomes_an_error_for_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("large"), "x".repeat(3 << 20)).unwrap();
    std::fs::write(directory.path().join("small"), "small").unwrap();
    let (large, small) = (at(&directory, "large"), at(&directory, "small"));
    let server = server(vec![Step::ReadFile { path: large }, Step::ReadFile { path: small }]).await;
    let client = options(&server, ServerKind::PerAgent).files(files(&directory)).build().unwrap();
    let session = session(&client).await;
    let mut events = client.events();
    let text = within(session.prompt("go").text()).await.unwrap();
    assert!(text.starts_with("read: error: ") && text.ends_with("read: small"), "{text}");
    let lost = event(&mut events, |event| match event {
        Event::ResponseLost { method, .. } => Some(method),
        _ => None,
    });
    assert_eq!(lost.await, "fs/read_text_file");
}

/// Slow files.
struct Slow(Arc<Semaphore>);

impl TextFiles for Slow {
    fn read(&self, request: ReadText) -> BoxFuture<'_, Result<String, FileError>> {
        Box::pin(async move {
            if request.path == Path::new("/slow") {
                let _ = self.0.acquire().await;
            }
            Ok(format!("{} for {}", request.path.display(), request.session_id.unwrap_or_default()))
        })
    }

    fn write(&self, _: WriteText) -> BoxFuture<'_, Result<(), FileError>> {
        Box::pin(async { panic!("a tool that panics") })
    }
}

#[tokio::test]
async fn a_custom_tool_that_is_slow_or_panics_delays_no_other_request() {
    let script = Script::new(|turn| match turn.text.as_str() {
        "write" => vec![Step::WriteFile { path: "/f".into(), content: String::new() }],
        path => vec![Step::ReadFile { path: path.into() }],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let gate = Arc::new(Semaphore::new(0));
    let client = options(&server, ServerKind::Shared).files(Slow(Arc::clone(&gate))).build().unwrap();
    let (one, two) = (session(&client).await, session(&client).await);
    let slow = one.prompt("/slow");
    let text = within(two.prompt("/quick").text()).await.unwrap();
    assert_eq!(text, format!("read: /quick for {}", two.id()));
    assert_eq!(within(two.prompt("write").text()).await.unwrap(), "write: refused");
    gate.add_permits(1);
    assert_eq!(within(slow.text()).await.unwrap(), format!("read: /slow for {}", one.id()));
}

#[tokio::test]
async fn every_connection_has_its_own_terminals() {
    let directory = tempfile::tempdir().unwrap();
    let script = Script::new(|turn| match turn.text.as_str() {
        "start" => vec![start("exec sleep 1000")],
        id => vec![Step::Request { method: "terminal/output".into(), params: json!({"terminalId": id}) }],
    });
    let server = MockServer::builder().agent("mock", script).start().await;
    let client = with_terminals(options(&server, ServerKind::Shared), &directory).build().unwrap();
    let session = within(client.new_session(NewSession::in_dir("/"))).await.unwrap();
    within(session.prompt("start").outcome()).await.unwrap();
    let id = server.answers()[0].result()["terminalId"].as_str().unwrap().to_owned();
    within(client.disconnect()).await.unwrap();
    within(client.connect()).await.unwrap();
    within(session.prompt(id).outcome()).await.unwrap();
    assert_eq!(server.answers()[1].answer["error"]["code"], -32002, "it ended with its connection");
    within(session.prompt("start").outcome()).await.unwrap();
    assert!(server.answers()[2].result()["terminalId"].is_string(), "a new one can be created");
}

/// What happens during the start of a command.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Race {
    Cancel,
    SessionEnd,
    Disconnect,
    Drop,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_command_that_starts_during_an_end_is_killed() {
    for crossing in [Race::Cancel, Race::SessionEnd, Race::Disconnect, Race::Drop] {
        let directory = tempfile::tempdir().unwrap();
        let script = Script::new(|turn| match turn.text.as_str() {
            "start" => vec![start("exec sleep 1000"), Step::WaitForCancel],
            _ => vec![start("exec true")],
        });
        let server = MockServer::builder().agent("mock", script).start().await;
        // The first start blocks in `allow_if` until the other event has happened.
        let entered = Arc::new(Semaphore::new(0));
        let signal = Arc::clone(&entered);
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(Some(gate));
        let terminals = TerminalOptions::new(root(&directory)).allow_if(move |_| {
            let gate = gate.lock().unwrap().take();
            if let Some(gate) = gate {
                signal.add_permits(1);
                gate.recv_timeout(LIMIT).unwrap();
            }
            true
        });
        let client = options(&server, ServerKind::Shared).terminals(terminals).build().unwrap();
        let (one, two) = (session(&client).await, session(&client).await);
        let turn = one.prompt("start");
        let _entered = within(entered.acquire()).await.unwrap();
        match crossing {
            Race::Cancel => within(one.cancel()).await.unwrap(),
            Race::SessionEnd => drop(within(one.terminate()).await.unwrap()),
            Race::Disconnect => {
                within(async {
                    let (closed, ()) = tokio::join!(client.disconnect(), async {
                        // The response to the start is sent before the tools end.
                        until(|| !server.answers().is_empty()).await;
                        open.send(()).unwrap();
                    });
                    closed.unwrap();
                })
                .await
            }
            Race::Drop => {
                drop((turn, one, two, client));
                open.send(()).unwrap();
                until(|| running_below(directory.path()).is_empty()).await;
                continue;
            }
        }
        // An error means that it is already open.
        let _ = open.send(());
        if crossing != Race::Disconnect {
            // After a second start has completed, the first has completed too.
            within(two.prompt("other").outcome()).await.unwrap();
            assert!(client.state().is_usable());
        }
        until(|| running_below(directory.path()).is_empty()).await;
    }
}

#[tokio::test]
async fn the_advertised_file_access_depends_on_the_agent_and_the_options() {
    let directory = tempfile::tempdir().unwrap();
    let choose =
        |access: FileAccess| move |options: ClientOptions| options.advertised_file_access(move |_| access);
    type Setting = Box<dyn Fn(ClientOptions) -> ClientOptions>;
    let table: [(&str, Setting, (bool, bool)); 6] = [
        ("mock", Box::new(|options| options), (true, true)),
        // It reads a file before it creates the file, and fails if that read fails.
        ("gemini", Box::new(|options| options), (false, true)),
        ("gemini", Box::new(choose(FileAccess::ReadWrite)), (true, true)),
        ("mock", Box::new(choose(FileAccess::Write)), (false, true)),
        ("mock", Box::new(choose(FileAccess::Read)), (true, false)),
        ("mock", Box::new(choose(FileAccess::Nothing)), (false, false)),
    ];
    for (agent, setting, (read, write)) in table {
        let server = MockServer::builder().agent(agent, Script::steps(vec![])).start().await;
        let options = options(&server, ServerKind::Shared).agent(agent).files(files(&directory));
        session(&setting(options).build().unwrap()).await;
        let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"]["fs"];
        assert_eq!(*advertised, json!({"readTextFile": read, "writeTextFile": write}), "{agent}");
    }
    let server = MockServer::start().await;
    let options = options(&server, ServerKind::Shared).files(files(&directory).read_only());
    session(&choose(FileAccess::ReadWrite)(options).build().unwrap()).await;
    let advertised = &server.messages("initialize")[0]["params"]["clientCapabilities"]["fs"];
    assert_eq!(advertised["writeTextFile"], false, "no more than the files allow");
}

#[tokio::test]
async fn a_missing_file_is_the_protocols_own_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = at(&directory, "missing");
    let server =
        server(vec![Step::Request { method: "fs/read_text_file".into(), params: json!({ "path": path }) }])
            .await;
    let client = options(&server, ServerKind::Shared).files(files(&directory)).build().unwrap();
    within(session(&client).await.prompt("go").outcome()).await.unwrap();
    let error = server.answers()[0].answer["error"].clone();
    assert_eq!(
        (&error["code"], &error["message"]),
        (&json!(-32002), &json!(format!("Resource not found: {path}")))
    );
}
