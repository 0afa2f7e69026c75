//! Processes that leave the process group of their command, and must end with it.

use sandbox_agent_sdk::tools::{AgentTools, Terminals};
use serde_json::json;

use super::looking::{running_below, runs};
use super::support::{Place, script, sh, until, within};

/// How a command is ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Kill,
    Release,
    Close,
    Drop,
}

const ENDS: [End; 4] = [End::Kill, End::Release, End::Close, End::Drop];

/// Lines that start a process which is not in the group of its command. `LIVE` is the process.
const WAYS: [(&str, &str); 12] = [
    ("a group of its own", "timeout 1000 LIVE"),
    ("a shell with job control", "bash -c 'set -m; LIVE & wait'"),
    ("a shell with job control that has ended", "bash -c 'set -m; LIVE &'"),
    ("a session of its own", "setsid LIVE; wait"),
    ("a session of its own, and no parent", "setsid -f LIVE"),
    ("no hangup", "nohup LIVE >/dev/null 2>&1 &"),
    ("a daemon", "(setsid LIVE </dev/null >/dev/null 2>&1 &) &"),
    ("no environment", "env -i timeout 1000 LIVE"),
    ("a daemon without an environment", "GATE; env -i setsid -f LIVE </dev/null >/dev/null 2>&1"),
    (
        "a daemon of a daemon",
        "GATE; env -i setsid -f timeout 1000 setsid -f env -i LIVE </dev/null >/dev/null 2>&1",
    ),
    ("signals ignored", "trap '' TERM HUP INT QUIT TSTP; setsid timeout -s TERM 1000 LIVE"),
    ("stopped", "setsid -f STOPPED"),
];

/// Puts the programs that the lines name into the root.
fn line_for(place: &Place, way: &str) -> String {
    let file = place.at("stray").display().to_string();
    let live = script(place, "live", &format!("echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000"));
    let stopped =
        script(place, "stopped", &format!("echo $$ > {file}.new; mv {file}.new {file}; kill -STOP $$"));
    // By then the start of the command has been recorded.
    let gate = format!("echo started > {file}.gate; while [ ! -e {file}.go ]; do sleep 0.01; done");
    way.replace("LIVE", &live).replace("STOPPED", &stopped).replace("GATE", &gate)
}

/// The id of the process that left, once it runs.
async fn stray(place: &Place) -> String {
    let read = || std::fs::read_to_string(place.at("stray")).unwrap_or_default().trim().to_owned();
    until(|| {
        open_gate(place);
        !read().is_empty()
    })
    .await;
    read()
}

/// Lets a line continue that waits at the gate.
fn open_gate(place: &Place) {
    if place.at("stray.gate").exists() {
        place.file("stray.go", "");
    }
}

#[tokio::test]
async fn a_process_ends_with_its_command_however_it_leaves_it() {
    for (name, way) in WAYS {
        for end in ENDS {
            let place = Place::new();
            let terminals = place.terminals();
            let tools = AgentTools::new().terminals(terminals.clone());
            let id = terminals.create("s", &sh(&line_for(&place, way))).unwrap();
            let stray = stray(&place).await;
            assert!(runs(&stray), "{name}");
            let params = json!({"sessionId": "s", "terminalId": id});
            match end {
                End::Kill => drop(within(tools.respond("terminal/kill", &params).unwrap()).await.unwrap()),
                End::Release => within(terminals.release("s", &id)).await.unwrap(),
                End::Close => terminals.close(),
                End::Drop => drop((tools, terminals)),
            }
            assert!(!runs(&stray), "{name}, {end:?}");
        }
    }
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_processes_and_no_others() {
    let (place, other) = (Place::new(), Place::new());
    let roots = sandbox_agent_sdk::tools::Roots::at(place.root()).and(other.root());
    let terminals = Terminals::new(sandbox_agent_sdk::tools::TerminalOptions::new(roots));
    terminals.create("s", &sh(&line_for(&place, "setsid -f LIVE"))).unwrap();
    terminals.create("t", &sh(&line_for(&other, "setsid -f LIVE"))).unwrap();
    let (mine, theirs) = (stray(&place).await, stray(&other).await);
    within(terminals.release_session("s")).await;
    assert!(!runs(&mine) && runs(&theirs));
    within(terminals.release_all()).await;
    assert!(!runs(&theirs));
}

#[tokio::test]
async fn a_command_that_has_exited_can_still_be_killed_with_its_processes() {
    let place = Place::new();
    let terminals = place.terminals();
    let tools = AgentTools::new().terminals(terminals.clone());
    let line = format!("{}; echo last; exit 5", line_for(&place, "setsid -f LIVE"));
    let id = terminals.create("s", &sh(&line)).unwrap();
    let exit = within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(
        exit.code,
        Some(5),
        "the process that left holds the output open, and the exit does not wait for it"
    );
    let stray = stray(&place).await;
    let params = json!({"sessionId": "s", "terminalId": id});
    within(tools.respond("terminal/kill", &params).unwrap()).await.unwrap();
    assert!(!runs(&stray));
    let output = terminals.output("s", &id, None).unwrap();
    assert_eq!((output.text.as_str(), output.exit), ("last\n", Some(exit)), "its exit status and its output");
    within(terminals.release("s", &id)).await.unwrap();
}

#[tokio::test]
async fn output_of_a_child_after_the_exit_of_its_command_can_be_read() {
    let place = Place::new();
    let terminals = place.terminals();
    let line =
        "sh -c 'while [ ! -e go ]; do sleep 0.01; done; echo late; exec sleep 1000' & echo early; exit 4";
    let id = terminals.create("s", &sh(line)).unwrap();
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().code, Some(4));
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "early\n");
    place.file("go", "");
    super::support::line_after(&terminals, &id, "late").await;
    within(terminals.release("s", &id)).await.unwrap();
    assert_eq!(running_below(&place.root()), Vec::<String>::new());
}

#[tokio::test]
async fn processes_that_start_others_faster_than_a_scan_are_ended() {
    let storms = [
        // Each starts another process in a new session, and exits.
        "setsid HOP &",
        // The same without an environment, many at once.
        "GATE; i=0; while [ $i -lt 10 ]; do env -i setsid -f HOP; i=$((i+1)); done",
        // Each one that ends is replaced by its parent.
        "setsid sh -c 'while :; do timeout 1000 sleep 1000; done' & setsid sh -c 'while :; do (sleep 0.01 &); done' &",
    ];
    for storm in storms {
        for end in [End::Release, End::Drop] {
            let place = Place::new();
            let terminals = place.terminals();
            let up = place.at("up").display().to_string();
            // If a test fails, it ends when its directory is removed; if the test is killed, after many generations.
            let next = "n=$((${1:-0}+1)); [ $n -lt 20000 ] || exit; setsid \"$0\" $n & exit";
            let hop = script(&place, "hop", &format!("echo x >> {up} || exit; {next}"));
            let line = line_for(&place, storm).replace("HOP", &hop);
            let id = terminals.create("s", &sh(&format!("touch {up}; {line}"))).unwrap();
            let hopped = || std::fs::metadata(&up).map_or(0, |up| up.len());
            until(|| {
                open_gate(&place);
                if storm.contains("HOP") { hopped() > 40 } else { running_below(&place.root()).len() > 3 }
            })
            .await;
            match end {
                End::Drop => drop(terminals),
                _ => within(terminals.release("s", &id)).await.unwrap(),
            }
            assert_eq!(running_below(&place.root()), Vec::<String>::new(), "{storm} {end:?}");
        }
    }
}

#[tokio::test]
async fn a_command_has_no_terminal_of_this_program_to_talk_to() {
    let place = Place::new();
    let text =
        super::support::run(&place.terminals(), "ps -o sid= -p $$; echo $$; (: < /dev/tty) && echo tty")
            .await;
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    assert_eq!(words[0], words[1], "{text}");
    assert!(!text.ends_with("tty\n"), "{text}");
}
