//! How a process can die, and how that is reported.

use std::time::Duration;

use mock_server::{ExitStatus, MAX_STDERR_LINE_BYTES, StderrSummary};
use serde_json::json;

use crate::probe::{Probe, stub};

fn numbered(lines: std::ops::RangeInclusive<u64>) -> String {
    lines.map(|number| format!("stderr line {number}")).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_crash_before_the_handshake_reports_code_and_stderr() {
    let probe = Probe::launch(&stub(&["--at-start", "stderr 2; exit 3"])).await;
    let exit = probe.exit().await;
    assert_eq!(exit.status, ExitStatus::Code(3));
    assert_eq!(exit.stderr.head, Some(numbered(1..=2)));
    assert_eq!(exit.stderr.total_lines, 2);
    assert_eq!(probe.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_while_the_handshake_is_pending_leaves_it_without_a_response() {
    let probe = Probe::launch(&stub(&["--on", "initialize", "exit 0"])).await;
    probe.request(1, "initialize", json!({ "protocolVersion": 1 })).await;
    assert_eq!(probe.exit().await.status, ExitStatus::Code(0));
    assert_eq!(probe.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn a_crash_in_the_middle_of_an_update_forwards_what_was_printed() {
    let (probe, session) = Probe::session(&[]).await;
    let before = probe.lines().len();
    probe.prompt(3, &session, "updates 5; torn; exit 7").await;
    assert_eq!(probe.exit().await.status, ExitStatus::Code(7));
    let lines = &probe.lines()[before..];
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[5], r#"{"jsonrpc":"2.0","method":"session/upd"#);
}

#[tokio::test]
async fn a_crash_between_turns_is_reported_without_a_request() {
    let (probe, session) = Probe::session(&[]).await;
    probe.prompt(3, &session, "say done; answer; stderr 1; exit 4").await;
    assert_eq!(probe.exit().await.status, ExitStatus::Code(4));
    assert!(probe.lines().last().unwrap().contains("stopReason"));
}

#[tokio::test]
async fn a_crash_during_a_permission_request_is_reported() {
    let (probe, session) = Probe::session(&[]).await;
    let other = probe.call(3, "session/new", json!({ "cwd": "/" })).await["result"]["sessionId"].clone();
    probe.prompt(4, &session, "permission").await;
    probe.message(|message| message["method"] == "session/request_permission").await;
    probe.prompt(5, other.as_str().unwrap(), "signal SEGV").await;
    assert_eq!(probe.exit().await.status, ExitStatus::Signal(11));
}

#[tokio::test]
async fn exit_codes_are_the_real_ones() {
    for code in [0, 1, 2, 42, 127, 255] {
        let probe = Probe::launch(&stub(&["--at-start", &format!("exit {code}")])).await;
        let exit = probe.exit().await;
        assert_eq!(exit.status, ExitStatus::Code(code));
        assert_eq!(exit.status.wait_status(), code << 8);
        assert_eq!(exit.stderr, StderrSummary::default());
    }
}

#[tokio::test]
async fn a_signal_is_reported_by_name_and_without_a_code() {
    let signals =
        [("HUP", 1), ("ABRT", 6), ("KILL", 9), ("SEGV", 11), ("PIPE", 13), ("TERM", 15), ("XCPU", 24)];
    for (name, number) in signals {
        let probe = Probe::launch(&stub(&["--at-start", &format!("stderr 1; signal {name}")])).await;
        let exit = probe.exit().await;
        assert_eq!(exit.status, ExitStatus::Signal(number), "{name}");
        assert_eq!(exit.status.code(), None);
        assert_eq!(exit.status.signal_name(), Some(format!("SIG{name}")));
        assert_eq!(exit.stderr.head.as_deref(), Some("stderr line 1"));
    }
}

#[tokio::test]
async fn stderr_follows_the_head_and_tail_rule() {
    for total in [0, 2, 100, 101, 10_000] {
        let probe = Probe::launch(&stub(&["--at-start", &format!("stderr {total}; exit 1")])).await;
        let stderr = probe.exit().await.stderr;
        assert_eq!(stderr.total_lines, total);
        assert_eq!(stderr.truncated, total > 100);
        let (head, tail) = match total {
            0 => (None, None),
            1..=100 => (Some(numbered(1..=total)), None),
            _ => (Some(numbered(1..=50)), Some(numbered(total - 49..=total))),
        };
        assert_eq!(stderr.head, head, "{total} lines");
        assert_eq!(stderr.tail, tail, "{total} lines");
    }
}

#[tokio::test]
async fn invalid_utf8_on_stderr_is_replaced_and_long_lines_are_cut() {
    let steps = "stderr 1 invalid; stderr 120 bytes 1048576 invalid; signal KILL";
    let probe = Probe::launch(&stub(&["--at-start", steps])).await;
    let stderr = probe.exit().await.stderr;
    assert_eq!(stderr.total_lines, 121);
    let head = stderr.head.unwrap();
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("stderr line 1 \u{fffd}\u{fffd}"));
    let cut = format!("… ({} more bytes)", 1_048_576 - MAX_STDERR_LINE_BYTES);
    for line in lines.chain(stderr.tail.unwrap().lines()) {
        assert!(line.starts_with("stderr line ") && line.ends_with(&cut), "{} bytes", line.len());
        assert_eq!(line.len(), MAX_STDERR_LINE_BYTES + cut.len());
    }
}

#[tokio::test]
async fn everything_printed_comes_before_the_exit() {
    for round in 0..5 {
        let (probe, session) = Probe::session(&[]).await;
        let before = probe.count();
        probe.prompt(3, &session, "updates 2000 bytes 1000; stderr 500; exit 1").await;
        let exit = probe.exit().await;
        assert_eq!(exit.stderr.total_lines, 500);
        assert_eq!(probe.lines().len(), before + 2000, "round {round}");
        assert_eq!(probe.count(), before + 2001, "nothing follows the exit");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_to_read_still_gets_everything_before_the_exit() {
    let slow = Duration::from_micros(100);
    let probe = Probe::launch_slow(&stub(&["--at-start", "updates 1000 bytes 500; exit 1"]), slow).await;
    probe.exit().await;
    assert_eq!(probe.lines().len(), 1000);
    assert_eq!(probe.count(), 1001, "nothing follows the exit");
}
