//! Processes.

use std::time::Duration;

use futures::StreamExt;
use sandbox_agent_sdk::Error;
use sandbox_agent_sdk::control::Upload;
use sandbox_agent_sdk::control::processes::{
    CreateProcess, Follow, FollowEvent, FollowFrom, FollowOptions, LogQuery, LogStream, ProcessExit,
    ProcessInfo, ProcessOwner, Processes, RunProcess,
};
use sdk_tests::within;

use super::{Kind, Server};

fn sh(script: &str) -> CreateProcess {
    CreateProcess::new("sh").args(["-c", script])
}

/// Reads a stream to its end. Returns the bytes and the exited process.
async fn to_the_end(mut follow: Follow) -> (Vec<u8>, ProcessInfo) {
    let mut bytes = Vec::new();
    let end = async {
        loop {
            match follow.next().await.expect("an end").expect("no error") {
                FollowEvent::Output(entry) => bytes.extend_from_slice(&entry.data),
                FollowEvent::Exited(process) => return process,
                other => panic!("{other:?}"),
            }
        }
    };
    let process = within("the end of the process", end).await;
    assert!(follow.next().await.is_none(), "nothing follows the end");
    (bytes, process)
}

/// Waits until a process has written this text.
async fn written(processes: &Processes, id: &str, text: &str) {
    written_until(processes, id, |output| output.contains(text)).await;
}

/// Waits until the output of a process satisfies the condition.
pub(super) async fn written_until(processes: &Processes, id: &str, condition: impl Fn(&str) -> bool) {
    let mut follow = processes.follow(id, FollowOptions::new());
    let mut seen = Vec::new();
    let seeing = async {
        while !condition(&String::from_utf8_lossy(&seen)) {
            match follow.next().await.expect("more output").expect("no error") {
                FollowEvent::Output(entry) => seen.extend_from_slice(&entry.data),
                other => panic!("{other:?} behind {:?}", String::from_utf8_lossy(&seen)),
            }
        }
    };
    within("output", seeing).await;
}

pub(super) async fn a_command_is_run_with_its_output_and_its_end(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let run = |script: &str| RunProcess::new("sh").args(["-c", script]);
    let output =
        within("running", processes.run(run("echo out; echo err >&2; exit 4"))).await.expect("output");
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(output.exit(), ProcessExit::Code(4));
    assert!(!output.timed_out && !output.is_success());

    let killed = within("running", processes.run(run("kill -9 $$"))).await.expect("output");
    assert_eq!((killed.exit(), killed.timed_out), (ProcessExit::Signal, false));

    let sleep = RunProcess::new("sleep").args(["60"]).timeout(Duration::from_millis(200));
    let slow = within("running", processes.run(sleep)).await.expect("output");
    assert!(slow.timed_out && !slow.is_success(), "{slow:?}");

    let long = run("yes | head -c 100000").max_output_bytes(10);
    let long = within("running", processes.run(long)).await.expect("output");
    assert_eq!((long.stdout.as_str(), long.stdout_truncated), ("y\ny\ny\ny\ny\n", true));
    assert!(!long.stderr_truncated);

    let place = run("printf '%s %s' \"$GREETING\" \"$TERM\"; pwd >&2").env("GREETING", "hello").cwd("/");
    let place = within("running", processes.run(place)).await.expect("output");
    assert_eq!(place.stdout, "hello xterm-256color");

    let error = processes.run(RunProcess::new("/no/such/program")).await.expect_err("no program");
    assert!(matches!(&error, Error::Http(http) if http.status == 502), "{error:?}");
    let error = processes.run(RunProcess::new("")).await.expect_err("no command");
    assert!(matches!(&error, Error::Http(http) if http.status == 400), "{error:?}");
}

pub(super) async fn a_process_is_created_listed_stopped_and_deleted(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let mut ids = Vec::new();
    for _ in 0..11 {
        ids.push(processes.create(CreateProcess::new("cat").interactive(true)).await.expect("a process").id);
    }
    let listed = processes.list().await.expect("a list");
    assert_eq!(
        listed.iter().map(|process| process.id.clone()).collect::<Vec<_>>(),
        ids,
        "in order of creation"
    );
    assert!(
        listed.iter().all(|process| process.is_running() && process.pid.is_some() && process.interactive)
    );
    assert!(processes.list_of(&ProcessOwner::Desktop).await.expect("a list").is_empty());
    assert_eq!(processes.list_of(&ProcessOwner::User).await.expect("a list").len(), 11);

    let id = &ids[0];
    let error = processes.delete(id).await.expect_err("it runs");
    assert!(matches!(&error, Error::Http(http) if http.status == 409), "{error:?}");
    let stopped = within("stopping", processes.stop(id)).await.expect("a process");
    assert_eq!(stopped.exit(), Some(ProcessExit::Signal), "{stopped:?}");
    assert!(stopped.exited_at_ms.is_some() && stopped.pid.is_none());
    assert_eq!(
        processes.stop(id).await.expect("a process").exit(),
        stopped.exit(),
        "a second stop changes nothing"
    );
    let error = processes.send_input(id, "x").await.expect_err("it has exited");
    assert!(matches!(&error, Error::Http(http) if http.status == 409), "{error:?}");
    processes.delete(id).await.expect("it is deleted");
    assert!(processes.get(id).await.expect_err("it is gone").is_not_found());
}

pub(super) async fn a_process_that_ignores_sigterm_is_killed(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let stubborn = sh("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let id = processes.create(stubborn).await.expect("a process").id;
    written(&processes, &id, "ready").await;
    let stopped = processes.stop_within(&id, Duration::from_millis(200)).await.expect("a process");
    assert!(stopped.is_running(), "{stopped:?}");
    let killed =
        within("killing", processes.kill_within(&id, Duration::from_secs(10))).await.expect("a process");
    assert_eq!(killed.exit(), Some(ProcessExit::Signal));
}

pub(super) async fn logs_are_read_by_stream_tail_and_position(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes
        .create(sh("echo one; read x; echo two >&2; read x; echo three"))
        .await
        .expect("a process")
        .id;
    written(&processes, &id, "one").await;
    processes.send_input(&id, "\n").await.expect("input");
    written(&processes, &id, "two").await;
    processes.send_input(&id, "\n").await.expect("input");
    let (all, process) = to_the_end(processes.follow(&id, FollowOptions::new())).await;
    assert_eq!(String::from_utf8_lossy(&all), "one\ntwo\nthree\n");
    assert_eq!(process.exit(), Some(ProcessExit::Code(0)));

    let texts = async |query: LogQuery| {
        let entries = processes.logs(&id, query).await.expect("entries");
        entries.iter().map(|entry| (entry.sequence, entry.text_lossy())).collect::<Vec<_>>()
    };
    let entry = |sequence: u64, text: &str| (sequence, format!("{text}\n"));
    assert_eq!(texts(LogQuery::new()).await, [entry(1, "one"), entry(2, "two"), entry(3, "three")]);
    assert_eq!(texts(LogQuery::new().stream(LogStream::Stderr)).await, [entry(2, "two")]);
    assert_eq!(texts(LogQuery::new().stream(LogStream::Stdout).tail(1)).await, [entry(3, "three")]);
    assert_eq!(texts(LogQuery::new().since(2)).await, [entry(3, "three")]);
    assert_eq!(texts(LogQuery::new().stream(LogStream::Pty)).await, []);

    let errors = FollowOptions::new().stream(LogStream::Stderr);
    assert_eq!(to_the_end(processes.follow(&id, errors)).await.0, b"two\n");
    let last = FollowOptions::new().from(FollowFrom::Tail(2));
    assert_eq!(to_the_end(processes.follow(&id, last)).await.0, b"two\nthree\n");
    let behind = FollowOptions::new().from(FollowFrom::After(3));
    assert_eq!(to_the_end(processes.follow(&id, behind)).await.0, b"");
}

pub(super) async fn output_is_followed_to_its_end_including_late_output_of_children(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    // The process exits before its child writes, so its exit is reported before its last output.
    let script = "echo early; { sleep 0.3; echo late; } & exit 3";
    let id = processes.create(sh(script)).await.expect("a process").id;
    let options = FollowOptions::new().drain(Duration::from_secs(3));
    let (bytes, process) = to_the_end(processes.follow(&id, options)).await;
    assert_eq!(String::from_utf8_lossy(&bytes), "early\nlate\n");
    assert_eq!(process.exit(), Some(ProcessExit::Code(3)));
}

pub(super) async fn large_output_is_followed_whole_and_in_order(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(sh("seq 1 200000")).await.expect("a process").id;
    let (bytes, process) = to_the_end(processes.follow(&id, FollowOptions::new())).await;
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(bytes.len(), expected.len());
    assert!(bytes == expected.as_bytes(), "the bytes differ");
    assert_eq!(process.exit(), Some(ProcessExit::Code(0)));
}

pub(super) async fn bytes_pass_unchanged_in_both_directions(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let bytes: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    let command = CreateProcess::new("head").args(["-c", "20000"]);
    let id = processes.create(command).await.expect("a process").id;
    assert_eq!(processes.send_input(&id, &bytes).await.expect("input"), 20_000);
    let (echoed, _) = to_the_end(processes.follow(&id, FollowOptions::new())).await;
    assert!(echoed == bytes, "{} bytes came back", echoed.len());
}

pub(super) async fn input_of_any_size_is_streamed_and_one_request_has_a_limit(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(sh("head -c 1000000 | cksum")).await.expect("a process").id;
    let error = processes.send_input(&id, vec![0; 65_537]).await.expect_err("it is too large");
    assert!(matches!(error, Error::PayloadTooLarge { .. }), "{error:?}");
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let input = Upload::reader(std::io::Cursor::new(bytes.clone()));
    let sent = within("input", processes.send_input_stream(&id, input)).await.expect("all of it");
    assert_eq!(sent, 1_000_000);
    let (sum, _) = to_the_end(processes.follow(&id, FollowOptions::new())).await;
    assert_eq!(String::from_utf8_lossy(&sum), cksum(&bytes).await);
}

/// Returns the output of the program `cksum` for these bytes.
async fn cksum(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("it is written");
    let input = std::fs::File::open(file.path()).expect("it is there");
    let output = tokio::process::Command::new("cksum").stdin(input).output().await.expect("cksum");
    String::from_utf8(output.stdout).expect("text")
}

pub(super) async fn the_end_of_input_reaches_a_process_in_a_terminal(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = processes.create(sh("cat; echo over; exit 2").tty(true)).await.expect("a process").id;
    processes.send_input(&id, "hello\n").await.expect("input");
    processes.end_input(&id).await.expect("the end of input");
    let (bytes, process) = to_the_end(processes.follow(&id, FollowOptions::new())).await;
    let text = String::from_utf8_lossy(&bytes);
    assert_eq!(text.replace("^D\u{8}\u{8}", ""), "hello\r\nhello\r\nover\r\n", "without text of the server");
    assert_eq!(process.exit(), Some(ProcessExit::Code(2)));

    let id = processes.create(CreateProcess::new("cat")).await.expect("a process").id;
    let error = processes.end_input(&id).await.expect_err("a pipe cannot be closed");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
}

pub(super) async fn limits_are_read_changed_and_kept(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let mut config = processes.config().await.expect("the limits");
    assert_eq!(config.max_concurrent_processes, 64);
    config.max_concurrent_processes = 1;
    config.max_run_timeout_ms = 100;
    let set = processes.set_config(&config).await.expect("new limits");
    assert_eq!(set.default_run_timeout_ms, 100, "the default is limited to the maximum");
    assert_eq!(processes.config().await.expect("the limits"), set);
    let slow = processes.run(RunProcess::new("sleep").args(["60"]).timeout(Duration::from_secs(60)));
    assert!(within("running", slow).await.expect("output").timed_out);
    processes.create(CreateProcess::new("cat")).await.expect("a process");
    let error = processes.create(CreateProcess::new("cat")).await.expect_err("one too many");
    assert!(matches!(&error, Error::Http(http) if http.status == 409), "{error:?}");
    config.max_output_bytes = 0;
    let error = processes.set_config(&config).await.expect_err("a limit of nothing");
    assert!(matches!(&error, Error::Http(http) if http.status == 400), "{error:?}");
}

pub(super) async fn an_unknown_process_is_not_found(kind: Kind) {
    let Some(server) = Server::start(kind).await else { return };
    let processes = server.plane().processes();
    let id = "proc_99";
    let failed = [
        processes.get(id).await.err(),
        processes.stop(id).await.err(),
        processes.kill(id).await.err(),
        processes.delete(id).await.err(),
        processes.logs(id, LogQuery::new()).await.err(),
        processes.send_input(id, "x").await.err(),
        processes.end_input(id).await.err(),
        processes.connect_terminal(id).await.err(),
        processes.follow(id, FollowOptions::new()).next().await.and_then(Result::err),
    ];
    for (at, error) in failed.into_iter().enumerate() {
        assert!(error.as_ref().is_some_and(Error::is_not_found), "call {at}: {error:?}");
    }
}
