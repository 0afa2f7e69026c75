//! Following the output of processes over faulty servers and networks. The suite of the workspace tests the normal
//! behaviour on the mock server and on the released one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use mock_server::{MockServer, State};
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::ControlPlane;
use sandbox_agent_sdk::control::desktop::{DesktopProblem, DesktopProblemKind, StartDesktop};
use sandbox_agent_sdk::control::processes::{
    CreateProcess, Follow, FollowEvent, FollowFrom, FollowOptions, LogEntry, ProcessExit, RunProcess,
};
use sandbox_agent_sdk::limits::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stub::{Stub, reply, response};
use crate::support::{impatient, plane, soon};

/// The responses of a scripted server to requests about a process, in order for each kind of request.
#[derive(Default)]
struct Script {
    /// Whether the process is running, and when it was created. The last entry repeats.
    statuses: Vec<(bool, u64)>,
    /// The entries of each event stream, and whether it stays open.
    streams: Vec<(Vec<u64>, bool)>,
    /// The entries of the log.
    log: Vec<u64>,
    /// Entries that an open stream sends after the exit was reported.
    late: Vec<u64>,
}

fn entry(sequence: u64) -> String {
    json!({ "sequence": sequence, "stream": "stdout", "timestampMs": 1, "data": "eA==", "encoding": "base64" })
        .to_string()
}

fn event(sequence: u64) -> String {
    format!("event: log\nid: {sequence}\ndata: {}\n\n", entry(sequence))
}

impl Script {
    async fn serve(self) -> (Stub, Arc<Mutex<Script>>) {
        let script = Arc::new(Mutex::new(self));
        let shared = Arc::clone(&script);
        let stub = Stub::serve(move |head, stream| {
            let script = Arc::clone(&shared);
            Box::pin(async move { answer(&head, stream, &script).await })
        });
        (stub.await, script)
    }

    fn next_status(&mut self) -> Option<(bool, u64)> {
        if self.statuses.len() > 1 { Some(self.statuses.remove(0)) } else { self.statuses.first().copied() }
    }
}

async fn answer(head: &str, stream: TcpStream, script: &Mutex<Script>) {
    let target = head.split(' ').nth(1).unwrap();
    let since =
        target.split("since=").nth(1).and_then(|rest| rest.split('&').next()).map(|n| n.parse().unwrap());
    if target.contains("follow=true") {
        let (entries, open) = {
            let mut script = script.lock().unwrap();
            if script.streams.is_empty() { (Vec::new(), true) } else { script.streams.remove(0) }
        };
        let entries = entries.into_iter().filter(|entry| Some(*entry) > since);
        return events(stream, entries.map(event).collect(), open.then_some(script)).await;
    }
    let body = if target.contains("/logs") {
        let script = script.lock().unwrap();
        let entries = script.log.iter().filter(|entry| Some(**entry) > since);
        format!(
            r#"{{"entries":[{}]}}"#,
            entries.map(|entry| self::entry(*entry)).collect::<Vec<_>>().join(",")
        )
    } else {
        let Some((running, created)) = script.lock().unwrap().next_status() else {
            let problem = r#"{"type":"urn:sandbox-agent:error:not_found","title":"Not Found","status":404}"#;
            return reply(stream, response("404 Not Found", "application/problem+json", problem)).await;
        };
        let status = if running { "running" } else { "exited" };
        json!({ "id": "proc_1", "status": status, "createdAtMs": created, "exitCode": if running { None } else { Some(3) } })
            .to_string()
    };
    reply(stream, response("200 OK", "application/json", &body)).await;
}

/// Sends events, and keeps the stream open if there is a script.
async fn events(mut stream: TcpStream, events: String, script: Option<&Mutex<Script>>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(format!("{head}{events}").as_bytes()).await;
    let Some(script) = script else { return };
    let exited = || script.lock().unwrap().statuses.first().is_none_or(|(running, _)| !running);
    let mut byte = [0];
    loop {
        tokio::select! {
            read = stream.read(&mut byte) => if !matches!(read, Ok(1..)) { return },
            () = tokio::time::sleep(Duration::from_millis(20)) => if exited() {
                let late = std::mem::take(&mut script.lock().unwrap().late);
                let text: String = late.iter().copied().map(event).collect();
                let _ = stream.write_all(text.as_bytes()).await;
                script.lock().unwrap().log.extend(late);
            },
        }
    }
}

fn follow(stub: &Stub, options: FollowOptions) -> Follow {
    ControlPlane::new(&stub.url).unwrap().processes().follow("proc_1", options)
}

/// Reads a stream to its end. Returns its events in short form, and its error.
async fn collected(mut follow: Follow) -> (Vec<String>, Option<Error>) {
    let mut seen = Vec::new();
    let collecting = async {
        while let Some(event) = follow.next().await {
            match event {
                Ok(FollowEvent::Output(LogEntry { sequence, .. })) => seen.push(sequence.to_string()),
                Ok(FollowEvent::Gap { after, next, .. }) => seen.push(format!("gap {after}..{next}")),
                Ok(FollowEvent::Exited(process)) => seen.push(format!("{:?}", process.exit().unwrap())),
                Ok(other) => panic!("{other:?}"),
                Err(error) => return Some(error),
            }
        }
        None
    };
    let error = soon(collecting).await;
    (seen, error)
}

const EXIT: &str = "Code(3)";

#[tokio::test]
async fn entries_that_the_event_stream_skipped_are_fetched_from_the_log() {
    let script = Script {
        statuses: vec![(true, 7), (true, 7), (false, 7)],
        streams: vec![(vec![1, 4, 5], true)],
        log: vec![1, 2, 3, 4, 5],
        ..Script::default()
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, ["1", "2", "3", "4", "5", EXIT]);
}

#[tokio::test]
async fn entries_that_the_log_has_dropped_are_a_gap() {
    let script = Script {
        statuses: vec![(false, 7)],
        streams: vec![(vec![4], true)],
        log: vec![4, 5, 9],
        ..Script::default()
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, ["gap 0..4", "4", "5", "gap 5..9", "9", EXIT]);
    let script = Script { statuses: vec![(false, 7)], log: vec![4, 5], ..Script::default() };
    let (stub, _) = script.serve().await;
    let (seen, _) = collected(follow(&stub, FollowOptions::new().from(FollowFrom::After(3)))).await;
    assert_eq!(seen, ["4", "5", EXIT], "entries that were not requested are not a gap");
}

#[tokio::test]
async fn an_entry_with_the_largest_number_is_the_last() {
    let script = Script {
        statuses: vec![(true, 7), (true, 7), (false, 7)],
        streams: vec![(vec![u64::MAX, u64::MAX, 1], true)],
        log: vec![u64::MAX],
        ..Script::default()
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, [format!("gap 0..{}", u64::MAX), u64::MAX.to_string(), EXIT.to_owned()]);
}

#[tokio::test]
async fn output_after_the_reported_exit_is_waited_for() {
    let script = Script {
        statuses: vec![(true, 7), (false, 7)],
        streams: vec![(vec![1], true)],
        log: vec![1],
        late: vec![2, 3],
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new().drain(Duration::from_secs(2)))).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, ["1", "2", "3", EXIT]);
}

#[tokio::test]
async fn a_lost_stream_is_reopened_after_the_last_entry() {
    let script = Script {
        statuses: vec![(true, 7), (true, 7), (true, 7), (true, 7), (false, 7)],
        streams: vec![(vec![1, 2], false), (vec![], false), (vec![1, 2, 3], true)],
        log: vec![1, 2, 3],
        ..Script::default()
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, ["1", "2", "3", EXIT]);
    let opened: Vec<String> = stub.heads().into_iter().filter(|head| head.contains("follow=true")).collect();
    assert!(
        opened.len() == 3 && opened[1].contains("since=2") && opened[2].contains("since=2"),
        "{opened:?}"
    );
}

#[tokio::test]
async fn another_process_with_the_same_id_is_a_restart_of_the_server() {
    let script = Script {
        statuses: vec![(true, 7), (true, 7), (true, 99)],
        streams: vec![(vec![1], false)],
        log: vec![1],
        ..Script::default()
    };
    let (stub, _) = script.serve().await;
    let (seen, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert_eq!(seen, ["1"]);
    assert!(matches!(error, Some(Error::ServerRestarted { .. })), "{error:?}");
}

#[tokio::test]
async fn reconnecting_is_bounded_and_fails_with_the_cause() {
    let script = Script { statuses: vec![(true, 7)], ..Script::default() };
    let (stub, script) = script.serve().await;
    script.lock().unwrap().streams = (0..1000).map(|_| (Vec::new(), false)).collect();
    let options = FollowOptions::new().retry_for(Duration::from_millis(200));
    let (_, error) = collected(follow(&stub, options.clone())).await;
    assert!(matches!(error, Some(Error::ConnectionLost { .. })), "{error:?}");
    let nowhere = impatient(&crate::support::nowhere(), |_| {}).processes().follow("proc_1", options);
    let (_, error) = collected(nowhere).await;
    assert!(matches!(error, Some(Error::Unreachable(_))), "{error:?}");
}

#[tokio::test]
async fn a_record_that_is_deleted_is_not_found() {
    let (stub, _) = Script::default().serve().await;
    let (_, error) = collected(follow(&stub, FollowOptions::new())).await;
    assert!(error.is_some_and(|error| error.is_not_found()));
}

#[tokio::test]
async fn hostile_events_end_the_stream_with_an_error() {
    let huge = format!("data: {}", "x".repeat(5 * 1024 * 1024));
    for text in ["data: {}\n\n".to_owned(), "data: nonsense\n\n".to_owned(), huge] {
        let stub = Stub::serve(move |head, stream| {
            let text = text.clone();
            Box::pin(async move {
                if head.contains("follow=true") {
                    return events(stream, text, None).await;
                }
                let body = r#"{"id":"proc_1","status":"running","entries":[]}"#;
                reply(stream, response("200 OK", "application/json", body)).await;
            })
        });
        let (seen, error) = collected(follow(&stub.await, FollowOptions::new())).await;
        assert!(seen.is_empty());
        assert!(matches!(error, Some(Error::Decode { .. } | Error::MessageTooLarge { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn a_log_event_is_read_up_to_the_limit_and_not_above() {
    let event = "event: log\r\nid: 1\r\ndata: {\"sequence\":1,\"stream\":\"stdout\",\"timestampMs\":1,\"data\":\"eA==\",\"encoding\":\"base64\"}\r\n\r\n";
    let size: usize = event.lines().map(str::len).sum();
    let stub = Stub::serve(move |head, stream| {
        Box::pin(async move {
            if head.contains("follow=true") {
                return events(stream, event.repeat(3), None).await;
            }
            let body = r#"{"id":"proc_1","status":"running","entries":[]}"#;
            reply(stream, response("200 OK", "application/json", body)).await;
        })
    })
    .await;
    for (limit, fits) in [(size - 1, false), (size, true), (size + 1, true)] {
        let limits = Limits::default().log_event(limit);
        let plane = ControlPlane::builder(&stub.url).limits(limits).build().unwrap();
        let mut follow = plane.processes().follow("proc_1", FollowOptions::new());
        match soon(follow.next()).await.unwrap() {
            Ok(FollowEvent::Output(entry)) => assert!(fits && entry.sequence == 1, "{limit}"),
            Err(Error::MessageTooLarge { limit: reported, .. }) => assert!(!fits && reported == limit),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_restarted_server_ends_the_stream_and_its_processes() {
    let server = MockServer::start().await;
    let processes = plane(&server).processes();
    let process = processes.create(CreateProcess::new("sh").args(["-c", "echo up; exec cat"])).await.unwrap();
    let pid = process.pid.unwrap();
    let mut follow = processes.follow(&process.id, FollowOptions::new());
    let first = soon(follow.next()).await.unwrap().unwrap();
    assert!(matches!(first, FollowEvent::Output(entry) if entry.text_lossy() == "up\n"));
    server.restart(State::Lost).await;
    let (_, error) = collected(follow).await;
    assert!(error.is_some_and(|error| error.is_not_found()));
    let gone = async {
        while std::path::Path::new(&format!("/proc/{pid}")).exists() {
            tokio::task::yield_now().await;
        }
    };
    soon(gone).await;
}

#[tokio::test]
async fn the_response_timeout_of_a_command_includes_its_run_time() {
    let server = MockServer::start().await;
    let plane = impatient(&server.url(), |timeouts| timeouts.response = Duration::from_millis(300));
    let command = RunProcess::new("sleep").args(["0.6"]).timeout(Duration::from_secs(20));
    let output = plane.processes().run(command).await.unwrap();
    assert_eq!(output.exit(), ProcessExit::Code(0));
}

#[tokio::test]
async fn a_desktop_that_is_not_installed_reports_missing_programs() {
    let server = MockServer::start().await;
    let desktop = plane(&server).desktop();
    assert_eq!(desktop.status().await.unwrap().state.as_str(), "install_required");
    let error = desktop.start(StartDesktop::new()).await.unwrap_err();
    let problem = DesktopProblem::of(&error).unwrap();
    assert_eq!(problem.kind, DesktopProblemKind::DependenciesMissing);
    assert!(problem.missing_dependencies.contains(&"Xvfb".to_owned()), "{problem:?}");
    assert_eq!(problem.install_command.as_deref(), Some("sandbox-agent install desktop --yes"));
    let error = desktop.move_mouse(-1, 0).await.unwrap_err();
    assert_eq!(DesktopProblem::of(&error).unwrap().kind, DesktopProblemKind::InvalidAction);
    let error = desktop.download_recording("rec_1").await.unwrap_err();
    assert!(error.is_not_found());
}
