use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use serde_json::{Value, json};

use super::{EndReason, StderrOutput, TerminatedBy, TerminationInfo, TerminationReport};

fn info(value: Value) -> TerminationInfo {
    TerminationInfo::from_value(&value).unwrap()
}

fn ended() -> TerminationReport {
    TerminationReport::from_session_ended(&json!({"session_id": "s1", "data": {"reason": "error",
        "terminated_by": "agent", "message": "agent exited with status exit status: 3", "exit_code": 3,
        "stderr": {"head": "first", "tail": "last", "truncated": true, "total_lines": 250}}}))
    .unwrap()
}

fn notice() -> TerminationReport {
    TerminationReport::from_agent_exited(&json!({"code": 3, "success": false}))
}

fn problem() -> TerminationReport {
    TerminationReport::from_problem(&json!({"type": "urn:sandbox-agent:error:agent_process_exited",
        "title": "Agent Process Exited", "status": 500, "detail": "agent process exited: mock", "agent": "mock",
        "details": {"exitCode": 3, "stderr": "boom line 1\nboom line 2"}}))
    .unwrap()
}

fn dead_write() -> TerminationReport {
    TerminationReport::from_problem(
        &json!({"type": "urn:sandbox-agent:error:stream_error", "title": "Stream Error",
        "status": 502, "detail": "stream error: failed writing to agent stdin: Broken pipe (os error 32)",
        "details": {"message": "failed writing to agent stdin: Broken pipe (os error 32)"}}),
    )
    .unwrap()
}

fn orders<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    if items.len() < 2 {
        return vec![items.to_vec()];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.to_vec();
        let first = rest.remove(at);
        for mut order in orders(&rest) {
            order.insert(0, first.clone());
            all.push(order);
        }
    }
    all
}

#[test]
fn snake_case_camel_case_and_a_mixture_are_read_alike() {
    let snake = info(json!({"reason": "error", "terminated_by": "agent", "message": "m", "exit_code": 1,
        "stderr": {"head": "h", "tail": "t", "truncated": true, "total_lines": 250}}));
    let camel = info(json!({"reason": "error", "terminatedBy": "agent", "message": "m", "exitCode": 1,
        "stderr": {"head": "h", "tail": "t", "truncated": true, "totalLines": 250}}));
    let mixed = info(json!({"reason": "error", "terminated_by": "agent", "message": "m", "exitCode": 1,
        "stderr": {"head": "h", "tail": "t", "truncated": true, "total_lines": 250}, "signal": null}));
    assert_eq!(snake, camel);
    assert_eq!(snake, mixed);
    assert_eq!(snake.exit_code, Some(1));
    assert_eq!(snake.stderr.as_ref().and_then(|stderr| stderr.total_lines), Some(250));
    assert_eq!(
        serde_json::to_value(&snake).unwrap(),
        json!({"reason": "error", "terminatedBy": "agent", "message": "m", "exitCode": 1,
            "stderr": {"head": "h", "tail": "t", "truncated": true, "totalLines": 250}})
    );
}

#[test]
fn what_is_unknown_or_oddly_typed_is_kept() {
    let odd =
        json!({"reason": "evicted", "terminatedBy": "scheduler", "exitCode": "three", "node": {"id": 4}});
    let read = info(odd.clone());
    assert_eq!(read.reason, EndReason::Other("evicted".to_owned()));
    assert_eq!(read.terminated_by, TerminatedBy::Other("scheduler".to_owned()));
    assert_eq!(read.exit_code, None);
    assert_eq!(serde_json::to_value(read).unwrap(), odd);
    let odder =
        json!({"reason": 0, "terminatedBy": ["agent"], "stderr": {"truncated": "no"}, "requested": "yes"});
    assert_eq!(serde_json::to_value(info(odder.clone())).unwrap(), odder);
}

#[test]
fn a_missing_reason_is_taken_from_the_exit() {
    for (value, reason) in [
        (json!({"exit_code": 0}), EndReason::Completed),
        (json!({"exit_code": -1_073_741_819}), EndReason::Error),
        (json!({"exit_code": 3_221_225_477_u32}), EndReason::Error),
        (json!({"signal": "SIGKILL"}), EndReason::Error),
        (json!({}), EndReason::Unknown),
        (json!({"reason": 7}), EndReason::Unknown),
    ] {
        assert_eq!(info(value.clone()).reason, reason, "{value}");
    }
}

#[test]
fn a_signal_is_found_where_servers_put_it() {
    for (value, signal) in [
        (json!({"signal": "SIGTERM"}), Some("SIGTERM")),
        (json!({"signal": 9}), Some("SIGKILL")),
        (json!({"signal": 64}), Some("64")),
        (json!({"message": "agent exited with status signal: 9 (SIGKILL)"}), Some("SIGKILL")),
        (json!({"message": "agent exited with status signal: 11 (SIGSEGV) (core dumped)"}), Some("SIGSEGV")),
        (json!({"message": "agent exited with status signal: 15"}), Some("SIGTERM")),
        (json!({"message": "agent exited with status ExitStatus(unix_wait_status(9))"}), Some("SIGKILL")),
        (json!({"message": "agent exited with status ExitStatus(unix_wait_status(139))"}), Some("SIGSEGV")),
        (json!({"message": "agent exited with status ExitStatus(unix_wait_status(256))"}), None),
        (json!({"message": "lost the signal: none"}), None),
        (json!({"message": "signal: 9 (SIGKILL)", "exit_code": 1}), None),
        (json!({"message": "agent exited with status exit status: 1"}), None),
    ] {
        assert_eq!(info(value.clone()).signal.as_deref(), signal, "{value}");
    }
}

#[test]
fn the_text_for_a_person_says_how_the_agent_ended_and_shows_no_wait_status() {
    for (status, code, shown) in [(9, None, "error, killed by SIGKILL"), (256, Some(1), "error, exit code 1")]
    {
        let message = format!("agent exited with status ExitStatus(unix_wait_status({status}))");
        let end = info(json!({"reason": "error", "message": message, "exit_code": code}));
        assert_eq!(end.to_string(), shown);
        assert_eq!(end.message, Some(message), "the server's message is kept");
    }
    let unknown = info(json!({"reason": "error", "message": "unix_wait_status(oops)"}));
    assert_eq!(unknown.to_string(), "error: unix_wait_status(oops)");
}

#[test]
fn the_ended_notification_is_read_in_every_spelling() {
    for params in [
        json!({"session_id": "s1", "data": {"reason": "terminated", "terminated_by": "daemon"}}),
        json!({"sessionId": "s1", "data": {"reason": "terminated", "terminatedBy": "daemon"}}),
        json!({"sessionId": "s1", "reason": "terminated", "terminated_by": "daemon"}),
    ] {
        let report = TerminationReport::from_session_ended(&params).unwrap();
        assert_eq!(report.session_id(), Some("s1"), "{params}");
        assert!(report.is_account());
        assert_eq!(report.into_info(), TerminationInfo::new(EndReason::Terminated, TerminatedBy::Daemon));
    }
    assert_eq!(TerminationReport::from_session_ended(&json!([1])), None);
    let bare = TerminationReport::from_session_ended(&json!({})).unwrap();
    assert_eq!((bare.session_id(), bare.is_account()), (None, false));
    assert_eq!(bare.into_info().reason, EndReason::Unknown);
}

#[test]
fn only_problems_about_a_dead_agent_are_reports() {
    for (problem, is_report) in [
        (json!({"type": "urn:sandbox-agent:error:agent_process_exited"}), true),
        (json!({"type": "about:blank", "title": "agent_exited", "status": 502}), true),
        (json!({"type": "about:blank", "title": "write_failed", "status": 502}), true),
        (
            json!({"type": "urn:sandbox-agent:error:stream_error", "detail": "stream error: failed to start agent process: No such file or directory (os error 2)"}),
            false,
        ),
        (json!({"type": "urn:sandbox-agent:error:stream_error"}), false),
        (json!({"type": "urn:sandbox-agent:error:timeout"}), false),
        (json!({"title": "agent_exited"}), false),
        (json!("agent_process_exited"), false),
        (json!(null), false),
    ] {
        assert_eq!(TerminationReport::from_problem(&problem).is_some(), is_report, "{problem}");
    }
}

#[test]
fn the_one_sentence_report_of_the_adapter_is_parsed() {
    let info = |detail: &str| {
        let problem =
            json!({"type": "about:blank", "title": "agent_exited", "status": 502, "detail": detail});
        let report = TerminationReport::from_problem(&problem).unwrap();
        assert!(!report.is_failed_write());
        report.into_info()
    };
    let whole = info("agent process exited before responding (exit_code: Some(3), stderr: one (1)\ntwo)");
    assert_eq!((whole.exit_code, whole.last_stderr_lines(9)), (Some(3), vec!["one (1)", "two"]));
    let signal = info("agent process exited before responding (exit_code: None, stderr: oom)");
    assert_eq!((signal.exit_code, signal.last_stderr_lines(9)), (None, vec!["oom"]));
    assert_eq!(info("agent process exited before responding (exit_code: Some(-1))").exit_code, Some(-1));
    assert_eq!(info("gone").exit_code, None);
    assert_eq!(info("(exit_code: Some(x), stderr: ").stderr, None);
}

#[test]
fn a_half_report_gives_what_it_knows() {
    assert_eq!(notice().into_info().to_string(), "error, exit code 3");
    assert!(!notice().has_stderr() && problem().has_stderr());
    assert_eq!(problem().agent(), Some("mock"));
    assert_eq!(
        problem().into_info().to_string(),
        "error, exit code 3: agent process exited: mock\nstderr:\n  boom line 1\n  boom line 2"
    );
    let unexplained = dead_write().into_info();
    assert_eq!((unexplained.reason, unexplained.terminated_by), (EndReason::Unknown, TerminatedBy::Unknown));
    let signalled =
        TerminationReport::from_agent_exited(&json!({"code": null, "success": false})).into_info();
    assert_eq!((signalled.reason, signalled.exit_code), (EndReason::Error, None));
    let unanswered =
        TerminationReport::from_problem(&json!({"type": "urn:sandbox-agent:error:agent_process_exited"}))
            .unwrap();
    assert_eq!(unanswered.into_info().reason, EndReason::Error);
    let from_call = TerminationReport::from_error_data(
        &json!({"terminationInfo": {"reason": "error", "terminatedBy": "agent", "exitCode": 1}}),
    );
    assert_eq!(from_call.unwrap().into_info().exit_code, Some(1));
    assert_eq!(TerminationReport::from_error_data(&json!({"agentStderr": "old"})), None);
}

#[test]
fn every_order_of_arrival_gives_the_same_end() {
    let sets = [
        vec![notice(), problem()],
        vec![notice(), problem(), dead_write()],
        vec![ended(), notice(), problem(), dead_write()],
        vec![TerminationReport::requested(), ended(), notice(), problem(), dead_write()],
    ];
    for set in sets {
        let expected = set.iter().cloned().reduce(TerminationReport::merge).unwrap();
        for order in orders(&set) {
            let merged = order.into_iter().reduce(TerminationReport::merge).unwrap();
            assert_eq!(merged, expected);
            assert_eq!(merged.into_info(), expected.clone().into_info());
        }
    }
}

#[test]
fn the_better_source_is_believed() {
    let merged = notice().merge(problem());
    let released = merged.clone().into_info();
    assert_eq!((&released.reason, released.exit_code), (&EndReason::Error, Some(3)));
    assert_eq!(released.last_stderr_lines(1), ["boom line 2"]);
    let full = merged.merge(ended()).into_info();
    assert_eq!(full.message.as_deref(), Some("agent exited with status exit status: 3"));
    assert_eq!(full.last_stderr_lines(5), ["last"]);
    // A report with missing parts does not erase the parts of another one.
    let bare = TerminationReport::from_info(TerminationInfo::new(EndReason::Error, TerminatedBy::Agent));
    assert_eq!(bare.merge(problem()).into_info().last_stderr_lines(1), ["boom line 2"]);
}

#[test]
fn of_two_accounts_the_first_counts() {
    let second =
        TerminationReport::from_info(TerminationInfo::new(EndReason::Terminated, TerminatedBy::Daemon));
    assert_eq!(ended().merge(second).into_info().reason, EndReason::Error);
}

#[test]
fn an_end_we_asked_for_is_never_an_error() {
    let exit = |code: Value| {
        TerminationReport::from_agent_exited(&json!({"success": code == json!(0), "code": code}))
    };
    let said = |reason: &str, author: &str| {
        let data = json!({"reason": reason, "terminated_by": author, "exit_code": 143});
        TerminationReport::from_session_ended(&json!({"session_id": "s", "data": data})).unwrap()
    };
    // The server's report, then the reason and the author without and with a request of ours.
    let table = [
        (exit(json!(0)), ("completed", "agent"), ("terminated", "daemon")),
        (exit(json!(137)), ("error", "agent"), ("terminated", "daemon")),
        (exit(json!(143)), ("error", "agent"), ("terminated", "daemon")),
        (exit(json!(null)), ("error", "agent"), ("terminated", "daemon")),
        (problem(), ("error", "agent"), ("terminated", "daemon")),
        (dead_write(), ("unknown", "unknown"), ("terminated", "daemon")),
        (said("error", "agent"), ("error", "agent"), ("terminated", "daemon")),
        (said("terminated", "daemon"), ("terminated", "daemon"), ("terminated", "daemon")),
        (said("completed", "agent"), ("completed", "agent"), ("completed", "agent")),
        (said("evicted", "scheduler"), ("evicted", "scheduler"), ("evicted", "scheduler")),
    ];
    for (report, unasked, asked) in table {
        let by_itself = report.clone().into_info();
        assert_eq!((by_itself.reason.as_str(), by_itself.terminated_by.as_str()), unasked);
        assert!(!by_itself.requested);
        for merged in [
            report.clone().merge(TerminationReport::requested()),
            TerminationReport::requested().merge(report),
        ] {
            let info = merged.into_info();
            assert_eq!((info.reason.as_str(), info.terminated_by.as_str()), asked);
            assert!(info.requested && !info.is_crash());
        }
    }
}

#[test]
fn a_requested_end_is_remembered_when_it_is_stored() {
    let asked = notice().merge(TerminationReport::requested()).into_info();
    let text = serde_json::to_string(&asked).unwrap();
    assert!(text.contains(r#""requested":true"#));
    assert_eq!(serde_json::from_str::<TerminationInfo>(&text).unwrap(), asked);
}

#[test]
fn display_can_be_shown_as_it_is() {
    let many = (1..=250).map(|line| format!("line {line}")).collect::<Vec<_>>().join("\n");
    let mut long = TerminationInfo::new(EndReason::Error, TerminatedBy::Agent);
    long.signal = Some("SIGKILL".to_owned());
    long.stderr = Some(StderrOutput::from_text(&many));
    let shown = long.to_string();
    assert!(shown.starts_with("error, killed by SIGKILL\nstderr, last 10 of 250 lines:\n  line 241\n"));
    assert!(shown.ends_with("\n  line 250"));
    for (value, shown) in [
        (json!({"reason": "completed", "terminated_by": "agent"}), "completed"),
        (
            json!({"reason": "terminated", "requested": true, "exitCode": 143}),
            "terminated as requested, exit code 143",
        ),
        (
            json!({"reason": "error", "exit_code": 1, "message": "agent exited with status exit status: 1",
                "stderr": {"head": "\u{1b}[31mno key\u{1b}[0m\r\nbye\r", "truncated": false, "total_lines": 2}}),
            "error, exit code 1: agent exited with status exit status: 1\nstderr:\n  no key\n  bye",
        ),
        (json!({"reason": "error", "stderr": {"truncated": false, "total_lines": 0}}), "error"),
        (
            json!({"reason": "error", "stderr": {"tail": "x", "truncated": true}}),
            "error\nstderr, last lines:\n  x",
        ),
        (
            json!({"reason": "error", "stderr": {"head": "x", "truncated": true}}),
            "error\nstderr, truncated:\n  x",
        ),
        (json!({"reason": "odd\u{1b}[2J"}), "odd"),
    ] {
        assert_eq!(info(value).to_string(), shown);
    }
}

/// Arbitrary values under the names of the type's fields.
fn hostile() -> impl Strategy<Value = Value> {
    let member = prop_oneof![
        Just(Value::Null),
        any::<String>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!({"head": 1, "tail": "x", "truncated": "no"})),
        Just(json!([{}])),
    ];
    let name = prop_oneof![
        Just("reason"),
        Just("terminated_by"),
        Just("terminatedBy"),
        Just("message"),
        Just("exit_code"),
        Just("exitCode"),
        Just("signal"),
        Just("stderr"),
        Just("requested"),
        Just("data"),
        Just("code"),
        Just("success"),
        Just("unheard"),
    ];
    proptest::collection::vec((name, member), 0..12)
        .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

proptest! {
    #[test]
    fn whatever_was_read_is_read_again_the_same(value in hostile()) {
        let read = info(value);
        prop_assert_eq!(&info(serde_json::to_value(&read).unwrap()), &read);
        let as_report = TerminationReport::from_info(read.clone()).into_info();
        prop_assert_eq!((as_report.exit_code, as_report.stderr), (read.exit_code, read.stderr));
    }

    #[test]
    fn nothing_on_the_wire_makes_a_report_panic(value in hostile()) {
        let reports = [
            TerminationReport::from_session_ended(&value),
            Some(TerminationReport::from_agent_exited(&value)),
            TerminationReport::from_problem(&json!({"type": "urn:sandbox-agent:error:agent_process_exited",
                "details": value})),
        ];
        for report in reports.into_iter().flatten() {
            let joined = report.clone().merge(report.clone());
            prop_assert_eq!(&joined, &report);
            report.into_info().to_string();
        }
    }
}

#[test]
fn stderr_of_the_turn_is_shown_instead_of_that_of_the_whole_run() {
    let shown = |turn_lines: u64| {
        let stderr = json!({"head": "start\nboom 1\nboom 2", "total_lines": 3, "turn_lines": turn_lines});
        info(json!({"reason": "error", "exit_code": 3, "stderr": stderr})).to_string()
    };
    assert_eq!(shown(2), "error, exit code 3\nstderr of the turn:\n  boom 1\n  boom 2");
    assert_eq!(shown(0), "error, exit code 3\nstderr before the turn:\n  start\n  boom 1\n  boom 2");
}
