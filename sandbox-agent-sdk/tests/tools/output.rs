//! What commands write.

use sandbox_agent_sdk::tools::{TerminalError, Terminals};

use super::looking::is_listed;
use super::support::{Place, line_after, run, sh, until, within};

#[tokio::test]
async fn both_streams_come_in_the_order_in_which_they_were_written() {
    let place = Place::new();
    let line = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done";
    let expected: String = (0..500).map(|number| format!("out {number}\nerr {number}\n")).collect();
    assert_eq!(run(&place.terminals(), line).await, expected);
}

#[tokio::test]
async fn everything_that_was_written_before_the_end_is_there_when_the_end_is() {
    let place = Place::new();
    let terminals = place.terminals();
    for round in 0..100 {
        let line = format!("head -c 60000 /dev/zero | tr '\\0' x; echo end {round}");
        let text = run(&terminals, &line).await;
        assert!(text.ends_with(&format!("end {round}\n")) && text.len() > 60_000, "{}", text.len());
        within(terminals.release_all()).await;
    }
}

#[tokio::test]
async fn the_end_of_the_output_is_kept_and_truncation_is_reported() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("printf 'one🦀two'").output_limit(6)).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    let output = |limit| {
        let output = terminals.output("s", &id, limit).unwrap();
        (output.text, output.truncated)
    };
    assert_eq!(output(None), ("two".to_owned(), true), "the crab has four bytes and three are there");
    assert_eq!(output(Some(2)), ("wo".to_owned(), true));
    assert_eq!(output(Some(0)), (String::new(), true));
    assert_eq!(output(Some(u64::MAX)), ("two".to_owned(), true));
    let id = terminals.create("s", &sh("printf 'one🦀two'").output_limit(10)).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    let output = terminals.output("s", &id, None).unwrap();
    assert_eq!((output.text.as_str(), output.truncated), ("one🦀two", false));
    let output = terminals.output("s", &id, Some(7)).unwrap();
    assert_eq!((output.text.as_str(), output.truncated), ("🦀two", true));
}

#[tokio::test]
async fn the_limit_of_the_program_is_the_upper_one() {
    let place = Place::new();
    let terminals = Terminals::new(place.options().output_limit(5).max_output_limit(8));
    let text = |id: &str| terminals.output("s", id, None).unwrap().text;
    let id = terminals.create("s", &sh("printf 0123456789")).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(text(&id), "56789");
    let id = terminals.create("s", &sh("printf 0123456789").output_limit(u64::MAX)).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    assert_eq!(text(&id), "23456789");
}

#[tokio::test]
async fn output_is_seen_while_the_command_runs() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals
        .create("s", &sh("echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"))
        .unwrap();
    line_after(&terminals, &id, "first").await;
    assert_eq!(terminals.output("s", &id, None).unwrap().exit, None);
    place.file("go", "");
    line_after(&terminals, &id, "second").await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replaced() {
    let place = Place::new();
    assert_eq!(run(&place.terminals(), r"printf 'a\377b\303'").await, "a\u{FFFD}b\u{FFFD}");
}

/// The bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[tokio::test]
async fn a_flood_is_read_to_its_end_in_flat_memory() {
    const FLOOD: u64 = 200 << 20;
    let place = Place::new();
    let terminals = place.terminals();
    let before = resident();
    let line = format!("yes 0123456789abcdef | head -c {FLOOD}; echo; echo done");
    let id = terminals.create("s", &sh(&line).output_limit(64 << 10)).unwrap();
    let mut most = 0;
    until(|| {
        most = most.max(resident().saturating_sub(before));
        let output = terminals.output("s", &id, None).unwrap();
        assert!(output.text.len() <= 64 << 10);
        output.exit.is_some()
    })
    .await;
    let output = terminals.output("s", &id, None).unwrap();
    assert_eq!(output.exit.unwrap().code, Some(0), "it was not held up");
    assert!(output.truncated && output.text.ends_with("\ndone\n"));
    // Other tests run beside this one; the flood is ten times as large.
    assert!(most < FLOOD / 10, "{most} bytes more");
}

#[tokio::test]
async fn a_flood_that_is_cut_off_is_ended() {
    let place = Place::new();
    let terminals = place.terminals();
    let id = terminals.create("s", &sh("echo self $$ >&2; touch up; exec yes").output_limit(1000)).unwrap();
    until(|| place.at("up").exists()).await;
    until(|| terminals.output("s", &id, None).unwrap().truncated).await;
    within(terminals.release("s", &id)).await.unwrap();
    let id = terminals.create("s", &sh("echo self $$; exec sleep 1000")).unwrap();
    let pid = line_after(&terminals, &id, "self ").await;
    within(terminals.release_all()).await;
    assert!(!is_listed(&pid));
}

#[tokio::test]
async fn the_output_of_all_terminals_has_one_budget() {
    let place = Place::new();
    let options = place.options().output_limit(40).max_output_limit(80).total_output_limit(100);
    let terminals = Terminals::new(options);
    let blocked = "while [ ! -e go ]; do sleep 0.01; done";
    let create = |session: &str, limit: u64| terminals.create(session, &sh(blocked).output_limit(limit));
    let is_over = |error: TerminalError| matches!(error, TerminalError::OutputBudget { limit: 100, .. });
    let first = create("a", 40).unwrap();
    assert!(is_over(create("b", 61).unwrap_err()), "above");
    assert_eq!(terminals.count(), 1);
    let second = create("b", 59).unwrap();
    let third = create("a", 1).expect("at");
    assert!(is_over(create("a", 1).unwrap_err()));
    create("a", 0).expect("it buffers nothing");
    // A released terminal frees its part.
    within(terminals.release("b", &second)).await.unwrap();
    assert!(is_over(create("b", 60).unwrap_err()));
    create("b", 59).unwrap();
    within(terminals.release("a", &first)).await.unwrap();
    within(terminals.release("a", &third)).await.unwrap();
    // Unless the agent asks for less, the default counts.
    terminals.create("a", &sh(blocked)).unwrap();
    assert!(is_over(create("a", 2).unwrap_err()));
}

#[tokio::test]
async fn a_command_that_has_ended_counts_only_for_what_it_wrote() {
    let place = Place::new();
    let terminals = Terminals::new(place.options().total_output_limit(100));
    let id = terminals.create("s", &sh("printf 0123456789").output_limit(91)).unwrap();
    within(terminals.wait_for_exit("s", &id)).await.unwrap();
    // The output ends when no process can write to it any more, which may be a moment after the exit.
    until(|| terminals.create("s", &sh("sleep 1000").output_limit(90)).is_ok()).await;
    let error = terminals.create("s", &sh("sleep 1000").output_limit(1)).unwrap_err();
    assert!(matches!(error, TerminalError::OutputBudget { wanted: 1, .. }), "{error:?}");
    assert_eq!(terminals.output("s", &id, None).unwrap().text, "0123456789");
}

/// Every default together: no agent can make the application buffer more than the budget.
#[tokio::test]
async fn an_agent_that_asks_for_the_largest_buffers_gets_no_more_than_the_budget() {
    let place = Place::new();
    let terminals = place.terminals();
    let mut created = 0;
    let refused = loop {
        match terminals.create("s", &sh("sleep 1000").output_limit(u64::MAX)) {
            Ok(_) => created += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, TerminalError::OutputBudget { limit: 67_108_864, .. }), "{refused:?}");
    assert_eq!(created, 4);
}
