//! Processes: how they start, end and are ended.

use sandbox_agent_sdk::tools::{TerminalCommand, TerminalError, TerminalExit};
use serde_json::json;

use super::looking::{is_listed, runs};
use super::support::{LIMIT, Place, line_after, run, sh, until, within};

fn shown(exit: &TerminalExit) -> (Option<i32>, Option<&str>) {
    (exit.code, exit.signal.as_deref())
}

#[tokio::test]
async fn a_command_gets_its_arguments_environment_and_directory() {
    let place = Place::new();
    let terminals = place.terminals();
    std::fs::create_dir(place.at("sub")).unwrap();
    let command = sh(r#"printf '%s|' "$0" "$@" "$GREETING" "$(pwd -P)"; cat"#)
        .args(["zero", "two words", "", "*", "$HOME"])
        .env("GREETING", "good = day\n")
        .cwd(place.at("sub"));
    let id = terminals.create("s", &command).unwrap();
    let exit = within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(shown(&exit), (Some(0), None), "there is nothing to read from standard input");
    let sub = place.at("sub").canonicalize().unwrap();
    let output = terminals.output("s", &id, None).unwrap();
    assert_eq!(output.text, format!("zero|two words||*|$HOME|good = day\n|{}|", sub.display()));
    assert!(!output.truncated);
}

#[tokio::test]
async fn codes_and_signals_are_the_real_ones() {
    let place = Place::new();
    let terminals = place.terminals();
    let table = [
        ("exit 0", Some(0), None),
        ("exit 7", Some(7), None),
        ("exit 255", Some(255), None),
        ("kill -TERM $$", None, Some("SIGTERM")),
        ("kill -SEGV $$", None, Some("SIGSEGV")),
        ("kill -9 $$", None, Some("SIGKILL")),
        ("kill -34 $$", None, Some("signal 34")),
        // The shell reports it by its own exit code, because the shell is the command that was run.
        ("sh -c 'kill -9 $$'; exit $?", Some(137), None),
    ];
    for (line, code, signal) in table {
        let id = terminals.create("s", &sh(line)).unwrap();
        let exit = within(terminals.wait_for_exit("s", &id)).await.unwrap();
        assert_eq!(shown(&exit), (code, signal), "{line}");
        assert_eq!(terminals.output("s", &id, None).unwrap().exit, Some(exit));
    }
}

#[tokio::test]
async fn several_can_wait_for_one_end_and_later_ones_too() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("while [ ! -e go ]; do sleep 0.01; done; exit 3")).unwrap();
    assert_eq!(terminals.output("s", &id, None).unwrap().exit, None);
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let (terminals, id) = (terminals.clone(), id.clone());
            tokio::spawn(async move { terminals.wait_for_exit("s", &id).await.unwrap() })
        })
        .collect();
    place.file("go", "");
    for waiter in waiters {
        assert_eq!(within(waiter).await.unwrap().code, Some(3));
    }
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().code, Some(3));
}

#[tokio::test]
async fn killing_ends_the_whole_group_and_keeps_what_was_written() {
    let place = Place::new();
    let terminals = place.terminals();
    let line =
        "echo before; sleep 1000 & echo child $!; sh -c 'sleep 1000 & echo grandchild $!; wait' & wait";
    let id = terminals.create("s", &sh(line)).unwrap();
    let child = line_after(&terminals, &id, "child ").await;
    let grandchild = line_after(&terminals, &id, "grandchild ").await;
    assert!(runs(&child) && runs(&grandchild));
    within(terminals.kill("s", &id)).await.unwrap();
    let exit = within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(shown(&exit), (None, Some("SIGKILL")));
    until(|| !runs(&child) && !runs(&grandchild)).await;
    assert!(terminals.output("s", &id, None).unwrap().text.starts_with("before\n"));
    within(terminals.kill("s", &id)).await.unwrap();
    terminals.release("s", &id).await.unwrap();
}

#[tokio::test]
async fn a_command_that_heeds_no_signal_is_killed_all_the_same() {
    let place = Place::new();
    let terminals = place.terminals();
    let id =
        terminals.create("s", &sh("trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done")).unwrap();
    line_after(&terminals, &id, "ready").await;
    within(terminals.kill("s", &id)).await.unwrap();
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().signal.as_deref(), Some("SIGKILL"));
}

#[tokio::test]
async fn releasing_kills_the_command_removes_the_terminal_and_notifies_waiters() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("sleep 1000 & echo child $!; echo self $$; wait")).unwrap();
    let child = line_after(&terminals, &id, "child ").await;
    let leader = line_after(&terminals, &id, "self ").await;
    let waiter = {
        let (terminals, id) = (terminals.clone(), id.clone());
        tokio::spawn(async move { terminals.wait_for_exit("s", &id).await })
    };
    tokio::task::yield_now().await;
    within(terminals.release("s", &id)).await.unwrap();
    assert!(!is_listed(&leader), "not even its remnant is left");
    until(|| !runs(&child)).await;
    assert_eq!(within(waiter).await.unwrap().unwrap().signal.as_deref(), Some("SIGKILL"));
    assert!(matches!(terminals.output("s", &id, None), Err(TerminalError::Unknown(_))));
    assert!(matches!(within(terminals.kill("s", &id)).await, Err(TerminalError::Unknown(_))));
    assert!(matches!(within(terminals.wait_for_exit("s", &id)).await, Err(TerminalError::Unknown(_))));
    assert!(matches!(within(terminals.release("s", &id)).await, Err(TerminalError::Unknown(_))));
    assert_eq!(terminals.count(), 0);
}

#[tokio::test]
async fn a_child_that_holds_the_output_does_not_hold_up_the_end() {
    let place = Place::new();
    let terminals = place.terminals();
    let line = "(while [ ! -e go ]; do sleep 0.01; done; echo late; exec sleep 1000) & echo child $!; exit 4";
    let id = terminals.create("s", &sh(line)).unwrap();
    let exit = within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(exit.code, Some(4));
    let child = line_after(&terminals, &id, "child ").await;
    assert!(runs(&child));
    place.file("go", "");
    line_after(&terminals, &id, "late").await;
    within(terminals.release("s", &id)).await.unwrap();
    until(|| !runs(&child)).await;
}

#[tokio::test]
async fn a_child_that_floods_the_output_does_not_hold_up_the_end() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("yes & exit 5").output_limit(1000)).unwrap();
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().code, Some(5));
    within(terminals.release("s", &id)).await.unwrap();
}

#[tokio::test]
async fn a_command_that_closes_its_output_and_lives_is_waited_for() {
    let place = Place::new();
    let terminals = place.terminals();
    let line = "echo bye; exec >&- 2>&-; touch closed; while [ ! -e go ]; do sleep 0.01; done; exit 6";
    let id = terminals.create("s", &sh(line)).unwrap();
    until(|| place.at("closed").exists()).await;
    let output = terminals.output("s", &id, None).unwrap();
    assert_eq!(output.exit, None, "it lives");
    place.file("go", "");
    assert_eq!(within(terminals.wait_for_exit("s", &id)).await.unwrap().code, Some(6));
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "bye\n");
}

#[tokio::test]
async fn dropping_the_terminals_leaves_no_process_behind() {
    let place = Place::new();
    let terminals = place.terminals();
    let mut pids = Vec::new();
    for _ in 0..3 {
        let id = terminals.create("s", &sh("sleep 1000 & echo child $!; echo self $$; wait")).unwrap();
        pids.push(line_after(&terminals, &id, "child ").await);
        pids.push(line_after(&terminals, &id, "self ").await);
    }
    // One whose command has ended and whose child has not.
    let id = terminals.create("s", &sh("sleep 1000 & echo child $!")).unwrap();
    pids.push(line_after(&terminals, &id, "child ").await);
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert!(pids.iter().all(|pid| runs(pid)));
    let copy = terminals.clone();
    drop(terminals);
    assert!(pids.iter().all(|pid| runs(pid)), "a copy is left");
    drop(copy);
    until(|| !pids.iter().any(|pid| runs(pid))).await;
}

#[test]
fn the_end_of_the_runtime_leaves_no_process_behind() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let terminals = place.terminals();
    let pid = runtime.block_on(async {
        let id = terminals.create("s", &sh("sleep 1000 & echo child $!; wait")).unwrap();
        line_after(&terminals, &id, "child ").await
    });
    assert!(runs(&pid));
    drop(runtime);
    let started = std::time::Instant::now();
    while runs(&pid) && started.elapsed() < LIMIT {
        std::thread::yield_now();
    }
    assert!(!runs(&pid));
    drop(terminals);
}

#[tokio::test]
async fn closing_ends_everything_and_starts_nothing_more() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("echo self $$; exec sleep 1000")).unwrap();
    let pid = line_after(&terminals, &id, "self ").await;
    terminals.close();
    until(|| !is_listed(&pid)).await;
    assert!(matches!(terminals.create("s", &sh("true")), Err(TerminalError::Closed)));
}

#[tokio::test]
async fn a_terminal_belongs_to_its_session() {
    let place = Place::new();
    let terminals = place.terminals();
    let mine = terminals.create("mine", &sh("echo self $$; exec sleep 1000")).unwrap();
    let other = terminals.create("other", &sh("sleep 1000")).unwrap();
    assert!(mine != other && mine.len() > 32, "it cannot be guessed");
    for id in [mine.as_str(), "", "term-1", "../x"] {
        assert!(matches!(terminals.output("other", id, None), Err(TerminalError::Unknown(_))));
        assert!(matches!(within(terminals.kill("other", id)).await, Err(TerminalError::Unknown(_))));
        assert!(matches!(within(terminals.wait_for_exit("other", id)).await, Err(TerminalError::Unknown(_))));
        assert!(matches!(within(terminals.release("other", id)).await, Err(TerminalError::Unknown(_))));
    }
    within(terminals.release_session("other")).await;
    assert!(terminals.output("mine", &mine, None).unwrap().exit.is_none(), "it lives");
    assert!(matches!(terminals.output("other", &other, None), Err(TerminalError::Unknown(_))));
    within(terminals.release_all()).await;
    assert_eq!(terminals.count(), 0);
}

#[tokio::test]
async fn a_command_that_cannot_start_is_an_error_and_leaves_nothing() {
    let place = Place::new();
    let terminals = place.terminals();
    let missing = TerminalCommand::new("/no/such/program");
    assert!(matches!(terminals.create("s", &missing), Err(TerminalError::NoCommand(_))));
    assert!(matches!(
        terminals.create("s", &TerminalCommand::new("no-such-program-here")),
        Err(TerminalError::NoCommand(_))
    ));
    assert!(terminals.create("s", &TerminalCommand::new("")).is_err());
    assert!(terminals.create("s", &TerminalCommand::new("nul\0")).is_err());
    assert!(terminals.create("s", &sh("true").args(["nul\0"])).is_err());
    let plain = place.file("plain", "no program");
    let result = terminals.create("s", &TerminalCommand::new(plain.display().to_string()));
    assert!(matches!(result, Err(TerminalError::Io { .. })));
    assert_eq!(terminals.count(), 0);
    assert_eq!(run(&terminals, "echo fine").await, "fine\n");
}

#[tokio::test]
async fn there_are_no_more_terminals_than_allowed() {
    let place = Place::new();
    let terminals = sandbox_agent_sdk::tools::Terminals::new(place.options().max_terminals(2));
    let first = terminals.create("s", &sh("true")).unwrap();
    terminals.create("s", &sh("true")).unwrap();
    assert!(matches!(terminals.create("s", &sh("true")), Err(TerminalError::TooMany { limit: 2, .. })));
    within(terminals.release("s", &first)).await.unwrap();
    terminals.create("s", &sh("true")).unwrap();
}

#[tokio::test]
async fn a_session_has_no_more_terminals_than_it_may_and_others_have_theirs() {
    let place = Place::new();
    let options = place.options().max_session_terminals(2).max_terminals(3);
    let terminals = sandbox_agent_sdk::tools::Terminals::new(options);
    let first = terminals.create("s", &sh("true")).unwrap();
    terminals.create("s", &sh("true")).unwrap();
    let error = terminals.create("s", &sh("true")).unwrap_err();
    assert!(matches!(error, TerminalError::TooManyInSession { limit: 2, .. }));
    let data = error.to_rpc().data.unwrap();
    assert_eq!((&data["reason"], &data["limit"]), (&json!("too_many_in_session"), &json!(2)));
    terminals.create("t", &sh("true")).unwrap();
    // Sessions that an agent invents have no terminals.
    for invented in ["u", "v", "w"] {
        assert!(matches!(
            terminals.create(invented, &sh("true")),
            Err(TerminalError::TooMany { limit: 3, .. })
        ));
    }
    within(terminals.release("s", &first)).await.unwrap();
    terminals.create("s", &sh("true")).unwrap();
}
